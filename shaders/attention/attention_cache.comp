//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation copies an element, or a vector of 16 bytes, of past or new keys (or values) to the joint
// tensor. New ones get their bias. With LENGTHS each batch has a number of past ones: only these are
// copied, and new ones follow them. With JOINS one dispatch copies past ones, then ``more``, the new ones.
#define PARAMS_BINDING 5
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool BIAS = false;
layout(constant_id = 3) const bool LENGTHS = false;
layout(constant_id = 4) const bool PAST = false;
layout(constant_id = 5) const bool VECTORS = false;  // the walk and row_stride count vectors
layout(constant_id = 6) const bool JOINS = false;
layout(push_constant) uniform Push {
    uint count;
    uint first;  // row of the result, before lengths are added
    uint capacity;
    uint row_stride;
    uint more_count;
    uint more_first;
    uint more_walk;  // where its walk begins
    uint x_offset;
    uint bias_offset;
    uint lengths_offset;
    uint y_offset;
    uint more_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(bias, 1, TYPE)
INPUT_TENSOR(lengths, 2, 20u)
OUTPUT_TENSOR(y, 3, TYPE)
INPUT_TENSOR(more, 4, TYPE)
WALK(walk, 5)  // input, output, bias, length, row

void main() {
    uint index = invocation_index();
    bool is_more = JOINS && index >= count;
    if (is_more) index -= count;
    if (index >= (is_more ? more_count : count)) return;
    uint[5] at = walk(is_more ? more_walk : 0u, index);
    uint row = at[4], shift = is_more ? more_first : first;
    bool is_past = PAST && !is_more;
    if (LENGTHS) {
        uint past = uint(max(int(lengths_words[lengths_offset + at[3]]), 0));
        if (is_past && row >= past) return;
        if (!is_past) shift = past;
    }
    if (row >= capacity || shift >= capacity - row) return;
    uint to = at[1] + shift * row_stride;
    const uint EACH = 16u / BYTES_OF(TYPE);
    bool biased = BIAS && !is_past;
    if (VECTORS) {
        if (is_more) y_vectors[y_offset / EACH + to] = more_vectors[more_offset / EACH + at[0]];
        else y_vectors[y_offset / EACH + to] = x_vectors[x_offset / EACH + at[0]];
    } else if (biased) {
        float x = is_more ? more_float(more_offset + at[0]) : x_float(x_offset + at[0]);
        y_store_float(y_offset + to, x + bias_float(bias_offset + at[2]));
    } else {
        y_store_bits(y_offset + to, is_more ? more_bits(more_offset + at[0]) : x_bits(x_offset + at[0]));
    }
}
