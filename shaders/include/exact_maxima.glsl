// Stores the maxima of a block of pooling, or with OP winner their places, one by one. NaN is the largest, -0 equals
// 0, and the first of equal ones counts. For shaders of planes (include/planes.glsl) that lose NaN.
void store_exactly(uint from, int top, int left, uint to, uint rows, uint columns) {
    for (uint i = 0u; i < rows * columns * LANES; ++i) {
        uint lane = i % LANES, e = i / LANES % columns, q = i / LANES / columns;
        uint most = 0u, found = 255u, largest = EMPTY & (HALVES ? 0xFFFFu : 0xFFFFFFFFu);
        for (uint k = 0u; k < WINDOW_Y * WINDOW_X; ++k) {
            int iy = top + int(q * STRIDE_Y + k / WINDOW_X), ix = left + int(e * STRIDE_X + k % WINDOW_X);
            if (uint(iy) >= uint(x_sizes[0]) || uint(ix) >= uint(x_sizes[1])) continue;
            uint x = x_bits(from + uint(iy) * x_strides[2] + uint(ix) * x_strides[3] + lane).x;
            uint b = HALVES ? x << 16u : x;
            bool nan = (b & 0x7FFFFFFFu) > (HALVES ? 0x7C000000u : 0x7F800000u);
            uint order = nan ? 0xFFFFFFFFu : uint(rank_of(b)) ^ 0x80000000u;
            if (order > most || found == 255u) {
                most = order;
                found = k;
                largest = x;
            }
        }
#if defined(OP_winner)
        largest = found;
#endif
        y_store_bits(to + q * y_strides[2] + e * y_strides[3] + lane, uvec2(largest, 0u));
    }
}
