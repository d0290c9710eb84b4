//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
#version 450
#define MAY_BE_BFLOAT16
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation computes four elements of a row of the output, or one, from the parts of the keys: each has
// undivided outputs, a maximum and a sum. A part without keys has a maximum of -infinity, and any outputs.
// A sink is a score of no key, by head, which takes its share.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool FOURS = false;  // else single elements
layout(constant_id = 3) const bool SINK = false;
layout(push_constant) uniform Push {
    uint count;
    uint value_size;
    uint parts;
    uint y_step;  // between elements of a row
    uint queries;
    uint heads;
    uint records_offset;
    uint y_offset;
    uint sink_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/exponentials.glsl"

INPUT_TENSOR(records, 0, 36u)
OUTPUT_TENSOR(y, 1, TYPE)
INPUT_TENSOR(sink, 2, TYPE)
WALK(walk, 1)

#define LOWEST uintBitsToFloat(0xFF800000u)
const uint TOGETHER = 4u;  // parts that load at once

float record(uint row, uint part, uint i) {
    return uintBitsToFloat(records_words[records_offset + (row * parts + part) * (value_size + 2u) + i]);
}

void main() {
    const uint EACH = FOURS ? 4u : 1u;
    uint index = invocation_index();
    if (index >= count / EACH) return;
    // Neighbours read neighbouring elements: those of an invocation are apart.
    uint apart = value_size / EACH, row = index / apart, d = index - row * apart;
    float most = LOWEST, sum = 0.0, y[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) y[e] = 0.0;
    for (uint first = 0u; first < parts; first += TOGETHER) {
        float mosts[TOGETHER], sums[TOGETHER], values[TOGETHER][EACH], now = most;
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            uint part = min(first + n, parts - 1u);
            mosts[n] = record(row, part, value_size);
            sums[n] = record(row, part, value_size + 1u);
            [[unroll]] for (uint e = 0u; e < EACH; ++e) values[n][e] = record(row, part, d + e * apart);
        }
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) now = max(now, mosts[n]);
        float base = now == LOWEST ? 0.0 : now, shrink = exp_of(most - base);
        sum *= shrink;
        [[unroll]] for (uint e = 0u; e < EACH; ++e) y[e] *= shrink;
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            float share = first + n < parts ? exp_of(mosts[n] - base) : 0.0;
            sum += share * sums[n];
            [[unroll]] for (uint e = 0u; e < EACH; ++e) if (share > 0.0) y[e] += share * values[n][e];
        }
        most = now;
    }
    if (SINK) {
        float own = sink_float(sink_offset + row / queries % heads), now = max(most, own);
        float shrink = exp_of(most - now);
        sum = sum * shrink + exp_of(own - now);
        [[unroll]] for (uint e = 0u; e < EACH; ++e) y[e] *= shrink;
    }
    uint to = y_offset + walk(0u, row * value_size + d)[0];
    [[unroll]] for (uint e = 0u; e < EACH; ++e)
        y_store_float(to + e * apart * y_step, sum == 0.0 ? 0.0 : y[e] / sum);
}
