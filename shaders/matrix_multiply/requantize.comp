//@ op DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation quantizes the sums of four columns of a row. The sums are a packed tensor.
#define PARAMS_BINDING 6
layout(constant_id = 1) const uint TYPE = 1u;
layout(constant_id = 2) const bool HAS_ZERO = false;
// Whether four columns are an aligned word of the output.
layout(constant_id = 3) const bool WORDS = false;
layout(push_constant) uniform Push {
    uint rows;  // in all batches
    uint columns;
    uint y_column;
    uint b_scale_step;
    uint sums_offset;
    uint a_scale_offset;
    uint b_scale_offset;
    uint y_scale_offset;
    uint y_zero_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
const uint FLOAT32 = 36u, INT32 = 20u;
INPUT_TENSOR(sums, 0, INT32)
INPUT_TENSOR(a_scale, 1, FLOAT32)
INPUT_TENSOR(b_scale, 2, FLOAT32)
INPUT_TENSOR(y_scale, 3, FLOAT32)
INPUT_TENSOR(y_zero, 4, TYPE)
OUTPUT_TENSOR(y, 5, TYPE)
WALK(walk, 4)

void main() {
    uint quads = (columns - 1u) / 4u + 1u;
    uint row = invocation_index() / quads;
    if (row >= rows) return;
    uint column = (invocation_index() - row * quads) * 4u;
    uint[4] at = walk(0u, row);  // in the output, A's scale, the output's scale and zero point
    float from_a = a_scale_float(a_scale_offset + at[1]);
    float to_y = y_scale_float(y_scale_offset + at[2]);
    float zero = HAS_ZERO ? y_zero_float(y_zero_offset + at[3]) : 0.0;
    float low = IS_SIGNED(TYPE) ? -128.0 : 0.0;
    uint word = 0u;
    uvec4 four = WORDS ? sums_vectors[(sums_offset + row * columns + column) / 4u] : uvec4(0u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        if (column + i >= columns) break;
        int sum =
            int(WORDS ? four[i] : sums_words[sums_offset + row * columns + column + i]);
        precise float scale = from_a * b_scale_float(b_scale_offset + (column + i) * b_scale_step);
        scale = scale / to_y;
        precise float x = roundEven(float(sum) * scale) + zero;
        uint bits = uint(int(clamp(x, low, low + 255.0))) & 0xFFu;
        if (WORDS) word |= bits << (8u * i);
        else y_store_bits(y_offset + at[0] + (column + i) * y_column, uvec2(bits, 0u));
    }
    if (WORDS) y_words[(y_offset + at[0] + column) / 4u] = word;
}
