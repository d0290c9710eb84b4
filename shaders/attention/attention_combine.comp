//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation computes one element of the output from the parts of the keys: each has undivided
// outputs, a maximum and a sum.
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

#define LOWEST uintBitsToFloat(0xFF800000u)
const uint TOGETHER = 8u;  // parts that load at once

float record(uint row, uint part, uint i) {
    return uintBitsToFloat(records_words[records_offset + (row * parts + part) * (value_size + 2u) + i]);
}

void main() {
    uint index = invocation_index();
    if (index >= count) return;
    uint row = index / value_size, d = index % value_size;
    float most = LOWEST, sum = 0.0, y = 0.0;
    for (uint first = 0u; first < parts; first += TOGETHER) {
        float mosts[TOGETHER], sums[TOGETHER], values[TOGETHER], now = most;
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            uint part = min(first + n, parts - 1u);
            mosts[n] = record(row, part, value_size);
            sums[n] = record(row, part, value_size + 1u);
            values[n] = record(row, part, d);
        }
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) now = max(now, mosts[n]);
        float base = now == LOWEST ? 0.0 : now, shrink = exp_of(most - base);
        sum *= shrink;
        y *= shrink;
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            float share = first + n < parts ? exp_of(mosts[n] - base) : 0.0;
            sum += share * sums[n];
            y += share * values[n];
        }
        most = now;
    }
    y_store_float(y_offset + walk(0u, index)[0], sum == 0.0 ? 0.0 : y / sum);
}
