//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT DML_OPERATOR_MATRIX_MULTIPLY_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY
//@ variants ROWS: r1 r4
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require
#extension GL_KHR_shader_subgroup_arithmetic : require

// Each subgroup of 32 multiplies all rows of A by COLUMNS of a K-contiguous B, up to MOST_AHEAD vectors
// of each at a time. No subgroup waits for another, and each issues its reads at once. This matters if
// products wait for one another, because then each takes a workgroup's whole latency.
#if defined(ROWS_r1)
const uint TILE_ROWS = 1u, COLUMNS = 1u;
#define MOST_AHEAD 8u
#else
const uint TILE_ROWS = 4u, COLUMNS = 4u;
#define MOST_AHEAD 1u
#endif
const uint LANES = 32u;
const uint INVOCATIONS = 128u;
layout(local_size_x = INVOCATIONS) in;
const uint TILE_COLUMNS = INVOCATIONS / LANES * COLUMNS;
#include "include/few_rows.glsl"

// Vectors of a column that a lane reads at once, and whether K is a multiple of all lanes' vectors.
layout(constant_id = 14) const uint AHEAD = MOST_AHEAD;  // a constant that the host reads
layout(constant_id = 15) const bool WHOLE = false;

void main() {
    Part p;
    if (!find_part(p)) return;
    uint column = p.column + gl_LocalInvocationIndex / LANES * COLUMNS;
    uint lane = gl_LocalInvocationIndex % LANES;
    uint a_from[TILE_ROWS], b_from[COLUMNS];
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) a_from[r] = row_begin(p.batch, r);
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) b_from[c] = column_begin(p.batch, column + c);
    // The first lanes finish a sum each, and read its operands at the beginning.
    uint my_row = lane / COLUMNS, my_column = column + lane % COLUMNS;
    Finish finish = finish_at(p.batch, my_row, my_column);
    uint a_words[TILE_ROWS], b_words[COLUMNS];
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) a_words[r] = zero_word(true, r);
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) b_words[c] = zero_word(false, column + c);

    uint vectors = p.end;
    int products[TILE_ROWS][COLUMNS], row_sums[TILE_ROWS], column_sums[COLUMNS];
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) column_sums[c] = 0;
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) {
        row_sums[r] = 0;
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) products[r][c] = 0;
    }
    for (uint begin = 0u; begin < vectors; begin += AHEAD * LANES) {
        uvec4 y[AHEAD][COLUMNS];
        // Past the end the last vectors are read again, and not used.
#define AT(u) (WHOLE ? begin + u * LANES + lane : min(begin + u * LANES + lane, vectors - 1u))
        [[unroll]] for (uint u = 0u; u < AHEAD; ++u)
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                y[u][c] = b_vectors[b_from[c] + AT(u)] ^ B_MASK;
        [[unroll]] for (uint u = 0u; u < AHEAD; ++u) {
            bool counts = WHOLE || begin + u * LANES + lane < vectors;
            if (COLUMN_SUMS)
                [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                    column_sums[c] += dot_product(y[u][c], uvec4(counts ? ONES : 0u));
            [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) {
                uvec4 x = a_vectors[a_from[r] + AT(u)] ^ A_MASK;
                x = counts ? x : uvec4(0u);
                if (ROW_SUMS) row_sums[r] += dot_product(x, uvec4(ONES));
                [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                    products[r][c] += dot_product(x, y[u][c]);
            }
        }
    }
    int sum = 0;
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) {
        int a_zero = zero_point(true, r, a_words[r]);
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
            int b_zero = zero_point(false, column + c, b_words[c]);
            int product = products[r][c];
            if (HAS_CORRECTION) product -= b_zero * row_sums[r] + a_zero * column_sums[c];
            product = subgroupAdd(product);
            if (HAS_CORRECTION) product += int(K) * a_zero * b_zero;
            if (lane == r * COLUMNS + c) sum = product;
        }
    }
    if (lane < TILE_ROWS * COLUMNS && my_row < rows && my_column < columns)
        out_words[out_offset + p.batch * out_strides[0] + my_row * out_strides[1] +
                  my_column * out_strides[2]] = floatBitsToUint(scale_and_bias(widen(sum), finish));
}
