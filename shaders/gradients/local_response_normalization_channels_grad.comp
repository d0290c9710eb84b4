//@ op DML_OPERATOR_LOCAL_RESPONSE_NORMALIZATION_GRAD
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Across channels, every element read once. An invocation goes along the channels at one place of a plane. It
// keeps what the windows reach. S = bias + alpha * the sum of the window's squares. The term of an element is
// dY X S^(-beta - 1). Its gradient is dY S^-beta, less X times the terms whose windows contain it.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint BEFORE = 0u;  // the elements of a window before its own, ...
layout(constant_id = 3) const uint AFTER = 0u;   // ... and after it
layout(constant_id = 4) const bool THREE_QUARTERS = false;  // beta is 0.75
const uint TURN = 4u;  // channels read at once
layout(push_constant) uniform Push {
    uint places;    // of all planes
    uint channels;
    uint span;      // channels of an invocation
    uint spans;
    uint x_step;    // from channel to channel
    uint dy_step;
    uint dx_step;
    float alpha;  // divided by the window's size
    float beta;
    float bias;
    uint x_offset;
    uint dy_offset;
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
OUTPUT_TENSOR(dx, 2, TYPE)
WALK(walk, 3)
const uint SIZE = BEFORE + AFTER + 1u;

// base^-beta, and that divided by the base
vec2 powers_of(float base) {
    if (THREE_QUARTERS) {
        if (floatBitsToUint(base) - 0x00800000u < 0x7F000000u) {
            float root = inversesqrt(base), power = root * (root * inversesqrt(root));
            return vec2(power, power * root * root);
        }
    }
    float power = pow_of(base, -beta);
    return vec2(power, divide(power, base));
}

void main() {
    uint i = invocation_index();
    if (i >= places * spans) return;
    uint[3] at = walk(0u, i % places);
    // Channels are counted from the first that is read, SIZE - 1 before the first that is made.
    uint made = i / places * span, beyond = min(channels, made + span) + SIZE - 1u;
    float xs[SIZE], gradients[SIZE], powers[SIZE], terms[SIZE];  // the last first
    [[unroll]] for (uint n = 0u; n < SIZE; ++n) xs[n] = gradients[n] = powers[n] = terms[n] = 0.0;
    // What lies outside of the tensor adds nothing.
    uint c = made < SIZE - 1u ? 0u : made - (SIZE - 1u);
    for (; c < beyond; c += TURN) {
        float x[TURN], dy[TURN];
        [[unroll]] for (uint t = 0u; t < TURN; ++t) {
            uint from = min(c + t, channels - 1u);
            x[t] = x_float(x_offset + at[0] + from * x_step);
            dy[t] = dy_float(dy_offset + at[1] + from * dy_step);
        }
        [[unroll]] for (uint t = 0u; t < TURN; ++t) {
            bool there = c + t < channels;
            [[unroll]] for (uint n = SIZE - 1u; n > 0u; --n) {
                xs[n] = xs[n - 1u];
                gradients[n] = gradients[n - 1u];
                powers[n] = powers[n - 1u];
                terms[n] = terms[n - 1u];
            }
            xs[0] = there ? x[t] : 0.0;
            gradients[0] = there ? dy[t] : 0.0;
            float squares = 0.0, sum = 0.0;
            [[unroll]] for (uint n = 0u; n < SIZE; ++n) squares += xs[n] * xs[n];
            vec2 own = powers_of(bias + alpha * squares);  // of the element AFTER before
            powers[0] = own.x;
            terms[0] = c + t - AFTER < channels ? gradients[AFTER] * xs[AFTER] * own.y : 0.0;
            [[unroll]] for (uint n = 0u; n < SIZE; ++n) sum += terms[n];
            float result = gradients[SIZE - 1u] * powers[BEFORE] - 2.0 * alpha * beta * xs[SIZE - 1u] * sum;
            uint to = c + t - (SIZE - 1u);
            if (c + t >= made + SIZE - 1u && c + t < beyond) dx_store_float(dx_offset + at[2] + to * dx_step, result);
        }
    }
}
