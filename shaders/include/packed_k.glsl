// Matrices of 8-bit elements for instructions that compute several products at once. Four signed elements
// along K are one word. Elements beyond the edges are 0. A line is a row of A or a column of B. The lines
// of a tile are its rows, then its columns.
#include "include/bytes.glsl"
#include "include/lowered.glsl"
const uint LINES = TILE_ROWS + TILE_COLUMNS;

shared int s_sums[LINES];
shared int s_zeros[LINES];

struct Lines {
    bool of_a;  // else B
    uint offset;
    uint line_stride;
    uint k_stride;
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

NEIGHBOURS(a_neighbours, a)
NEIGHBOURS(b_neighbours, b)

// Four elements from ``index`` on. Those after the first ``count`` are 0.
uint neighbours(bool of_a, uint index, uint count) {
    uint word = of_a ? a_neighbours(index, count) : b_neighbours(index, count);
    return lowered(of_a, word) & first_bytes(count);
}

// Four elements of a line from ``begin`` on. Those after the first ``count`` are 0.
uint packed_elements(Lines lines, uint line, uint begin, uint count) {
    if (line >= lines.count || count == 0u) return 0u;
    uint index = lines.offset + line * lines.line_stride + begin * lines.k_stride;
    if (lines.k_stride == 1u) return neighbours(lines.of_a, index, count);
    uint word = 0u;
    for (uint e = 0u; e < min(count, 4u); ++e)
        word |= neighbours(lines.of_a, index + e * lines.k_stride, 1u) << (8u * e);
    return word;
}

// Stores the sum and the zero point of a line. A barrier must precede their use.
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
        sum = add64(sum, multiply64(int(K), s_zeros[i] * s_zeros[j]));
    }
    return sum;
}

// Finishes the products at (i, j) and (i, j + 1) of the tile at (row, column).
void finish_products(uint batch, uint row, uint column, uint i, uint j, int product, int next) {
    finish_pair(batch, row + i, column + j, corrected(product, i, j), corrected(next, i, j + 1u));
}
