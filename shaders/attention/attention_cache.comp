//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation copies an element, or a vector of 16 bytes, of past or new keys (or values) to the joint
// tensor. New ones get their bias. With LENGTHS each batch has a number of past ones: only these are
// copied, and new ones follow them.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool BIAS = false;
layout(constant_id = 3) const bool LENGTHS = false;
layout(constant_id = 4) const bool PAST = false;
layout(constant_id = 5) const bool VECTORS = false;  // the walk and row_stride count vectors
layout(push_constant) uniform Push {
    uint count;
    uint first;  // row of the result, before lengths are added
    uint capacity;
    uint row_stride;
    uint x_offset;
    uint bias_offset;
    uint lengths_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(bias, 1, TYPE)
INPUT_TENSOR(lengths, 2, 20u)
OUTPUT_TENSOR(y, 3, TYPE)
WALK(walk, 5)  // input, output, bias, length, row

void main() {
    uint index = invocation_index();
    if (index >= count) return;
    uint[5] at = walk(0u, index);
    uint row = at[4], shift = first;
    if (LENGTHS) {
        uint past = uint(max(int(lengths_words[lengths_offset + at[3]]), 0));
        if (PAST && row >= past) return;
        if (!PAST) shift = past;
    }
    if (row >= capacity || shift >= capacity - row) return;
    uint to = at[1] + shift * row_stride;
    const uint EACH = 16u / BYTES_OF(TYPE);
    if (VECTORS) y_vectors[y_offset / EACH + to] = x_vectors[x_offset / EACH + at[0]];
    else if (BIAS)
        y_store_float(y_offset + to, x_float(x_offset + at[0]) + bias_float(bias_offset + at[2]));
    else y_store_bits(y_offset + to, x_bits(x_offset + at[0]));
}
