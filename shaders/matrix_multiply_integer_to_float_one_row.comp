//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT
//@ variants B: along
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require
#extension GL_KHR_shader_subgroup_arithmetic : require

// Each subgroup of 32 multiplies the only row of A by one column of B that lies along the depth.
// No subgroup waits for another, and what one reads is asked for at once: where products wait for
// one another, the time from a workgroup's beginning to its end is in each of them.
const uint LANES = 32u;
const uint INVOCATIONS = 128u;
layout(local_size_x = INVOCATIONS) in;
const uint TILE_ROWS = 1u;
const uint TILE_COLUMNS = INVOCATIONS / LANES;
#include "include/few_rows.glsl"

// Vectors that a lane asks for at once, and whether the depth is a multiple of so many.
layout(constant_id = 14) const uint AHEAD = 8u;
layout(constant_id = 15) const bool WHOLE = false;

void main() {
    Part p;
    if (!find_part(p)) return;
    uint column = p.column + gl_LocalInvocationIndex / LANES;
    uint lane = gl_LocalInvocationIndex % LANES;
    uint a_from = row_begin(p.batch, 0u), b_from = column_begin(p.batch, column);
    // What the end needs is on its way from the beginning.
    Finish finish = finish_at(p.batch, 0u, column);
    uint a_zero_word = zero_word(true, 0u), b_zero_word = zero_word(false, column);

    uint vectors = p.end;
    int product = 0, row_sum = 0, column_sum = 0;
    for (uint begin = 0u; begin < vectors; begin += AHEAD * LANES) {
        uvec4 y[AHEAD];
        // Past the end the last vectors are read again, and count for nothing.
#define AT(u) (WHOLE ? begin + u * LANES + lane : min(begin + u * LANES + lane, vectors - 1u))
        [[unroll]] for (uint u = 0u; u < AHEAD; ++u) y[u] = b_vectors[b_from + AT(u)] ^ B_MASK;
        [[unroll]] for (uint u = 0u; u < AHEAD; ++u) {
            bool counts = WHOLE || begin + u * LANES + lane < vectors;
            uvec4 x = a_vectors[a_from + AT(u)] ^ A_MASK;
            x = counts ? x : uvec4(0u);
            product += dot_product(x, y[u]);
            if (ROW_SUMS) row_sum += dot_product(x, uvec4(ONES));
            if (COLUMN_SUMS) column_sum += dot_product(y[u], uvec4(counts ? ONES : 0u));
        }
    }
    int a_zero = zero_point(true, 0u, a_zero_word);
    int b_zero = zero_point(false, column, b_zero_word);
    if (HAS_CORRECTION) product -= b_zero * row_sum + a_zero * column_sum;
    int sum = subgroupAdd(product);
    if (HAS_CORRECTION) sum += int(depth) * a_zero * b_zero;
    if (lane == 0u && column < columns)
        out_words[out_offset + p.batch * out_strides[0] + column * out_strides[2]] =
            floatBitsToUint(scale_and_bias(widen(sum), finish));
}
