//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation makes one element of the output from what the parts of the keys gave: outputs before
// their division, with the maximum and the sum of each part.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint TYPE = 36u;
layout(push_constant) uniform Push {
    uint count;
    uint value_size;
    uint parts;
    uint records_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/exponentials.glsl"

INPUT_TENSOR(records, 0, 36u)
OUTPUT_TENSOR(y, 1, TYPE)
WALK(walk, 1)

float record(uint row, uint part, uint i) {
    return uintBitsToFloat(records_words[records_offset + (row * parts + part) * (value_size + 2u) + i]);
}

void main() {
    uint index = invocation_index();
    if (index >= count) return;
    uint row = index / value_size, d = index % value_size;
    float most = uintBitsToFloat(0xFF800000u), sum = 0.0, y = 0.0;
    for (uint p = 0u; p < parts; ++p) most = max(most, record(row, p, value_size));
    float base = most == uintBitsToFloat(0xFF800000u) ? 0.0 : most;
    for (uint p = 0u; p < parts; ++p) {
        float share = exp_of(record(row, p, value_size) - base);
        sum += share * record(row, p, value_size + 1u);
        y += share * record(row, p, d);
    }
    y_store_float(y_offset + walk(0u, index)[0], sum == 0.0 ? 0.0 : y / sum);
}
