//@ op DML_OPERATOR_LOCAL_RESPONSE_NORMALIZATION
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Each invocation computes one element of {N, C, H, W}. Its window reaches from ``before`` to ``after``
// it along the channels, or along height and width.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool CROSS_CHANNEL = true;
layout(push_constant) uniform Push {
    uint count;
    uint sizes[4];
    uint x_steps[4];
    uint before;
    uint after;
    uint alpha;  // divided by the window's size
    uint beta;
    uint bias;
    uint x_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
const bool SHORT = false;
#include "include/exponentials.glsl"
#include "include/sigmoids.glsl"
#include "include/short_functions.glsl"
#include "include/powers.glsl"

INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, TYPE)
WALK(walk, 2)

uint begin_of(uint at) { return at - min(at, before); }
uint end_of(uint at, uint size) { return at + min(size - 1u - at, after) + 1u; }

float squares(uint from, uint count, uint step) {
    float sum = 0.0;
    for (uint i = 0u; i < count; ++i) {
        float value = x_float(from + i * step);
        sum += value * value;
    }
    return sum;
}

void main() {
    uint i = invocation_index();
    if (i >= count) return;
    uint[2] at = walk(0u, i);
    uint w = i % sizes[3], h = i / sizes[3] % sizes[2], c = i / sizes[3] / sizes[2] % sizes[1];
    uint own = x_offset + at[0];
    float sum = 0.0;
    if (CROSS_CHANNEL) {
        uint begin = begin_of(c);
        sum = squares(own - (c - begin) * x_steps[1], end_of(c, sizes[1]) - begin, x_steps[1]);
    } else {
        uint top = begin_of(h), left = begin_of(w), width = end_of(w, sizes[3]) - left;
        uint line = own - (h - top) * x_steps[2] - (w - left) * x_steps[3];
        for (uint row = top; row < end_of(h, sizes[2]); ++row) {
            sum += squares(line, width, x_steps[3]);
            line += x_steps[2];
        }
    }
    float base = uintBitsToFloat(bias) + uintBitsToFloat(alpha) * sum;
    y_store_float(y_offset + at[1], x_float(own) * pow_of(base, -uintBitsToFloat(beta)));
}
