// Marks the taps of a workgroup's rows that lie inside the input, with a bit for each tap of each axis.
// The includer has include/convolution.glsl, TILE_ROWS, INVOCATIONS, and a shared array of vectors
// ROW_TABLE for the first tap and the bits of each row.
const uint MAX_TAPS = 63u;  // as in matrix_units.py
shared uint s_to[TILE_ROWS];        // where a row lies in the output
shared uvec3 s_tap[MAX_TAPS + 1u];  // distances in input and filter, and bits, of a tap

// Fills the tables and returns the number of taps. A barrier must follow. A tap after the last is
// outside.
uint fill_tables(Taps taps, uint row_tile, uint group, uint split) {
    uvec3 first = uvec3(0u, taps.count.x, taps.count.x + taps.count.y);
    uint count = taps.count.x * taps.count.y * taps.count.z;
    for (uint t = gl_LocalInvocationIndex; t <= count; t += INVOCATIONS) {
        uvec3 at;
        at.z = t % max(taps.count.z, 1u);
        at.y = t / max(taps.count.z, 1u) % max(taps.count.y, 1u);
        at.x = t / max(taps.count.z * taps.count.y, 1u);
        uvec3 added = uvec3(0u);
        [[unroll]] for (uint a = 0u; a < 3u; ++a)
            added += uvec3(at[a] * axis_word(a, 2u) * axis_word(a, 6u),
                           taps.filter_first[a] + at[a] * axis_word(a, 3u),
                           1u << (first[a] + at[a]));
        s_tap[t] = t < count ? added : uvec3(0u, 0u, 1u << 31);
    }
    for (uint r = gl_LocalInvocationIndex; r < TILE_ROWS; r += INVOCATIONS) {
        uint to, inside = 0u;
        ivec4 at = input_row(taps, row_tile + r, group, to);
        [[unroll]] for (uint a = 0u; a < 3u; ++a) {
            uint step = axis_word(a, 2u);
            int from = at[a + 1u], size = int(axis_word(a, 0u));
            if (step == 1u) {
                int begin = max(-from, 0), end = min(int(taps.count[a]), size - from);
                if (begin < end) inside |= ((1u << end) - (1u << begin)) << first[a];
                continue;
            }
            for (uint t = 0u; t < taps.count[a]; ++t)
                if (uint(from) + t * step < uint(size)) inside |= 1u << (first[a] + t);
        }
        ROW_TABLE[r].xy = uvec2(at.x, to == NOWHERE ? 0u : inside);
        // Channels of the group and of the split.
        s_to[r] = to == NOWHERE ? NOWHERE : to + split * y_strides[0] +
                                                group * out_channels * y_strides[2];
    }
    return count;
}
