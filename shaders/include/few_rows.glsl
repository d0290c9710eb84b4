// For the few rows of A that a vector makes, all that counts is how fast B is read: it comes in
// vectors of 16 or words of 4 elements, many of them on their way at a time.
#define SPECIALIZED
layout(constant_id = 13) const bool EXACT_UNITS = false;
#define HAS_EXACT_UNITS EXACT_UNITS
#include "include/matrix_multiply_integer_to_float.glsl"
#include "include/bytes.glsl"
#include "include/lowered.glsl"
#include "include/dot_product.glsl"

layout(binding = 9) readonly buffer AVectors { uvec4 a_vectors[]; };
layout(binding = 10) readonly buffer BVectors { uvec4 b_vectors[]; };

const uint A_MASK = A_SIGNED ? 0u : 0x80808080u;
const uint B_MASK = B_SIGNED ? 0u : 0x80808080u;

// The tile of this workgroup, where all rows are in one. Nothing is read before this is known, so
// that there is no division where there is one batch: it takes a third of a microsecond.
bool find_columns(out uint batch, out uint column) {
    uint across = (columns - 1u) / TILE_COLUMNS + 1u;
    uint tile = group_index();
    batch = 0u;
    if (batches > 1u || tile >= across) batch = tile / across;
    column = (tile - batch * across) * TILE_COLUMNS;
    return batch < batches;
}

// The vector of A that a row begins with; rows past the last repeat it.
uint row_begin(uint batch, uint row) {
    return (a_offset + batch * a_strides[0] + min(row, rows - 1u) * a_strides[1]) / 16u;
}

// The same of a column of B that lies along the depth.
uint column_begin(uint batch, uint column) {
    return (b_offset + batch * b_strides[0] + min(column, columns - 1u) * b_strides[2]) / 16u;
}

// The element of B, a multiple of 4, that four columns begin with; past the last these repeat.
uint columns_begin(uint batch, uint column) {
    return b_offset + batch * b_strides[0] + min(column, columns - 4u);
}
