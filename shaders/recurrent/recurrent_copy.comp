//@ op DML_OPERATOR_RNN DML_OPERATOR_GRU DML_OPERATOR_LSTM
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation copies one element to or from the state. Absent tensors, and outputs of sequences of
// length 0, are 0.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint FROM = 36u;
layout(constant_id = 2) const uint TO = 36u;
layout(constant_id = 3) const bool GIVEN = false;
layout(constant_id = 4) const bool LENGTHS = false;
layout(push_constant) uniform Push {
    uint count;
    uint x_offset;
    uint lengths_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"

INPUT_TENSOR(x, 0, FROM)
INPUT_TENSOR(lengths, 1, 4u)
OUTPUT_TENSOR(y, 2, TO)
WALK(walk, 3)  // input, output, length

void main() {
    uint index = invocation_index();
    if (index >= count) return;
    uint[3] at = walk(0u, index);
    float value = GIVEN ? x_float(x_offset + at[0]) : 0.0;
    if (LENGTHS && lengths_words[lengths_offset + at[2]] == 0u) value = 0.0;
    y_store_float(y_offset + at[1], value);
}
