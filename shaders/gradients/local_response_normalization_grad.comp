//@ op DML_OPERATOR_LOCAL_RESPONSE_NORMALIZATION_GRAD
//@ variants STEP: factors sums
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// ``factors`` computes for each element S^-beta, and the term dY X S^(-beta - 1) that it adds to the
// gradients of its window's elements. S = bias + alpha * the sum of the window's squares. ``sums`` adds
// the terms over the elements whose windows contain an element: over the reflected window.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool CROSS_CHANNEL = true;
layout(push_constant) uniform Push {
    uint count;
    uint sizes[4];
    uint steps[4];  // strides of x (factors) or of parts (sums)
    uint before;
    uint after;
    float alpha;  // divided by the window's size
    float beta;
    float bias;
    uint x_offset;
    uint dy_offset;
    uint parts_offset;
    uint dx_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"
#include "include/typed.glsl"
const bool SHORT = false;
#include "include/exponentials.glsl"
#include "include/sigmoids.glsl"
#include "include/short_functions.glsl"
#include "include/powers.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(dy, 1, TYPE)
layout(binding = 2) buffer Parts { float parts[]; };  // two for each element
OUTPUT_TENSOR(dx, 3, TYPE)
// x, dy, dx, and the coordinates in a plane or along the channels
WALK(walk, 5)

#if defined(STEP_factors)
float term(uint at) {
    float value = x_float(at);
    return value * value;
}
#else
float term(uint at) {
    return parts[at + 1u];
}
#endif

// A sum over the window of the element at ``own``, with coordinates c, or h and w.
float over_window(uint own, uint across, uint along) {
    const uint last = CROSS_CHANNEL ? 1u : 3u;
    uint left = along - min(along, before), right = along + min(sizes[last] - 1u - along, after);
    uint top = across - min(across, before);
    uint bottom = CROSS_CHANNEL ? top : across + min(sizes[2] - 1u - across, after);
    float sum = 0.0;
    for (uint row = top; row <= bottom; ++row) {
        uint at = own + (row - across) * steps[2] - (along - left) * steps[last];
        for (uint i = left; i <= right; ++i) {
            sum += term(at);
            at += steps[last];
        }
    }
    return sum;
}

void main() {
    uint i = invocation_index();
    if (i >= count) return;
    uint[5] at = walk(0u, i);
    float value = x_float(x_offset + at[0]), gradient = dy_float(dy_offset + at[1]);
    uint own = parts_offset + 2u * i;
#if defined(STEP_factors)
    float base = bias + alpha * over_window(x_offset + at[0], at[3], at[4]);
    float power = pow_of(base, -beta);
    parts[own] = power;
    parts[own + 1u] = gradient * value * divide(power, base);
#else
    float sum = over_window(own, at[3], at[4]);
    dx_store_float(dx_offset + at[2], gradient * parts[own] - 2.0 * alpha * beta * value * sum);
#endif
}
