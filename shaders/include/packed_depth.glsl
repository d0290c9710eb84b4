// Matrices of 8-bit elements for instructions that take several products at once: four elements
// that follow one another along the depth lie in one word, as signed numbers. Unsigned ones are
// lowered by 128, and so are their zero points. Elements beyond the edges are 0. A line is a row of
// A or a column of B; the lines of a tile are numbered rows first.
//
// Zero points come in at the end, through the sums of the lines:
//   sum (x - p)(y - q) = sum xy - q sum x - p sum y + depth p q
// The host uses these shaders only where the sums on the right fit 32 bits.
const uint LINES = TILE_ROWS + TILE_COLUMNS;
#define HAS_CORRECTION (!A_SIGNED || !B_SIGNED || HAS_A_ZERO || HAS_B_ZERO)

shared int s_sums[LINES];
shared int s_zeros[LINES];

struct Lines {
    bool of_a;  // else of B
    uint offset;
    uint line_stride;
    uint depth_stride;
    uint count;  // lines before the edge
};

Lines rows_from(uint batch, uint row) {
    return Lines(true, a_offset + batch * a_strides[0] + row * a_strides[1], a_strides[1],
                 a_strides[2], rows - row);
}

Lines columns_from(uint batch, uint column) {
    return Lines(false, b_offset + batch * b_strides[0] + column * b_strides[2], b_strides[2],
                 b_strides[1], columns - column);
}

uint word_of(bool of_a, uint index) {
    return of_a ? a[index] : b[index];
}

uint first_bytes(uint count) {
    return count < 4u ? (1u << (8u * count)) - 1u : 0xFFFFFFFFu;
}

uint lowered(bool of_a, uint word) {
    return (of_a ? A_SIGNED : B_SIGNED) ? word : word ^ 0x80808080u;
}

// The elements at ``index`` and after it, of which ``count`` exist.
uint neighbours(bool of_a, uint index, uint count) {
    uint at = index / 4u;
    uint shift = index % 4u * 8u;
    uint word = word_of(of_a, at) >> shift;
    // The next word may lie past the buffer's end: read it only for elements that exist.
    if (shift + 8u * min(count, 4u) > 32u) word |= word_of(of_a, at + 1u) << (32u - shift);
    return lowered(of_a, word) & first_bytes(count);
}

// Four elements of a line from ``begin`` on, of which ``count`` exist.
uint packed_elements(Lines lines, uint line, uint begin, uint count) {
    if (line >= lines.count || count == 0u) return 0u;
    uint index = lines.offset + line * lines.line_stride + begin * lines.depth_stride;
    if (lines.depth_stride == 1u) return neighbours(lines.of_a, index, count);
    uint word = 0u;
    for (uint e = 0u; e < min(count, 4u); ++e)
        word |= neighbours(lines.of_a, index + e * lines.depth_stride, 1u) << (8u * e);
    return word;
}

// Byte i of word j becomes byte j of word i.
uvec4 transposed(uvec4 x) {
    uvec2 even = (x.xz & 0x00FF00FFu) | ((x.yw & 0x00FF00FFu) << 8);
    uvec2 odd = ((x.xz >> 8) & 0x00FF00FFu) | (x.yw & 0xFF00FF00u);
    return uvec4((even.x & 0xFFFFu) | (even.y << 16), (odd.x & 0xFFFFu) | (odd.y << 16),
                 (even.x >> 16) | (even.y & 0xFFFF0000u), (odd.x >> 16) | (odd.y & 0xFFFF0000u));
}

int byte_sum(uint word) {
    int x = int(word);
    return (x << 24 >> 24) + (x << 16 >> 24) + (x << 8 >> 24) + (x >> 24);
}

int signed_byte(uint bits) {
    return int(bits << 24) >> 24;
}

int lowered_zero_point(bool of_a, uint line) {
    if (line >= (of_a ? rows : columns)) return 0;
    uint zero = 0u;
    if (of_a && HAS_A_ZERO) {
        uint at = a_zero_offset + line * a_zero_stride;
        zero = a_zero[at / 4u] >> (at % 4u * 8u);
    } else if (!of_a && HAS_B_ZERO) {
        uint at = b_zero_offset + line * b_zero_stride;
        zero = b_zero[at / 4u] >> (at % 4u * 8u);
    }
    return signed_byte(lowered(of_a, zero));
}

// Publishes what a line of the tile contributes; a barrier comes before the first use.
void keep_line(uint line, uint row, uint column, int sum) {
    if (!HAS_CORRECTION) return;
    bool of_a = line < TILE_ROWS;
    s_sums[line] = sum;
    s_zeros[line] = of_a ? lowered_zero_point(true, row + line)
                         : lowered_zero_point(false, column + line - TILE_ROWS);
}

uvec2 corrected(int product, uint i, uint j) {
    uvec2 sum = widen(product);
    if (HAS_CORRECTION) {
        j += TILE_ROWS;
        sum = subtract64(sum, multiply64(s_zeros[j], s_sums[i]));
        sum = subtract64(sum, multiply64(s_zeros[i], s_sums[j]));
        sum = add64(sum, multiply64(int(depth), s_zeros[i] * s_zeros[j]));
    }
    return sum;
}

// Finishes the products at (i, j) and (i, j + 1) of the tile at (row, column).
void finish_products(uint batch, uint row, uint column, uint i, uint j, int product, int next) {
    finish_pair(batch, row + i, column + j, corrected(product, i, j), corrected(next, i, j + 1u));
}
