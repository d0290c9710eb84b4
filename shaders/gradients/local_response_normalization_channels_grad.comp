//@ op DML_OPERATOR_LOCAL_RESPONSE_NORMALIZATION_GRAD
//@ variants WIDE: p1(places=1, turn=4) p2(places=2, turn=4) p4(places=4, turn=8)
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Across channels, every element read once. An invocation goes along the channels at one place of a plane, or
// at neighbours of FLOAT16. It keeps what the windows reach. S = bias + alpha * the sum of the window's squares. The term of an element is
// dY X S^(-beta - 1). Its gradient is dY S^-beta, less X times the terms whose windows contain it.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint BEFORE = 0u;  // the elements of a window before its own, ...
layout(constant_id = 3) const uint AFTER = 0u;   // ... and after it
layout(constant_id = 4) const bool THREE_QUARTERS = false;  // beta is 0.75
const uint PLACES = WIDE_places;  // of an invocation
const uint TURN = WIDE_turn;  // channels read at once
layout(push_constant) uniform Push {
    uint places;    // of all planes, divided by PLACES
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
layout(binding = 0) readonly buffer XPairs { uvec2 x_pairs[]; };
layout(binding = 1) readonly buffer DyPairs { uvec2 dy_pairs[]; };
layout(binding = 2) writeonly buffer DxPairs { uvec2 dx_pairs[]; };
const uint SIZE = BEFORE + AFTER + 1u, KEPT = SIZE * PLACES;

bool is_usual(float base) {
    return THREE_QUARTERS && floatBitsToUint(base) - 0x00800000u < 0x7F000000u;
}

// base^-beta, and that divided by the base
vec2 usual_powers_of(float base) {
    float root = inversesqrt(base), power = root * (root * inversesqrt(root));
    return vec2(power, power * root * root);
}

vec2 powers_of(float base) {
    if (is_usual(base)) return usual_powers_of(base);
    float power = pow_of(base, -beta);
    return vec2(power, divide(power, base));
}

void main() {
    uint i = invocation_index();
    if (i >= places * spans) return;
    uint next = i / places;
    uint[3] at = walk(0u, i - next * places);
    // Channels are counted from the first that is read, SIZE - 1 before the first that is made.
    uint made = next * span, beyond = min(channels, made + span) + SIZE - 1u;
    float xs[KEPT], gradients[KEPT], powers[KEPT], terms[KEPT];  // the last first
    [[unroll]] for (uint n = 0u; n < KEPT; ++n) xs[n] = gradients[n] = powers[n] = terms[n] = 0.0;
    // What lies outside of the tensor adds nothing.
    uint c = made < SIZE - 1u ? 0u : made - (SIZE - 1u);
    for (; c < beyond; c += TURN) {
        vec4 x[TURN], dy[TURN];
        [[unroll]] for (uint t = 0u; t < TURN; ++t) {
            uint channel = min(c + t, channels - 1u);
            uint from = x_offset + at[0] + channel * x_step, dy_from = dy_offset + at[1] + channel * dy_step;
            if (PLACES == 4u) {
                uvec2 words = x_pairs[from / 4u], dy_words = dy_pairs[dy_from / 4u];
                x[t] = vec4(halves_to_floats(words.x), halves_to_floats(words.y));
                dy[t] = vec4(halves_to_floats(dy_words.x), halves_to_floats(dy_words.y));
            } else if (PLACES == 2u) {
                x[t].xy = halves_to_floats(x_words[from / 2u]);
                dy[t].xy = halves_to_floats(dy_words[dy_from / 2u]);
            } else {
                x[t].x = x_float(from);
                dy[t].x = dy_float(dy_from);
            }
        }
        [[unroll]] for (uint t = 0u; t < TURN; ++t) {
            bool there = c + t < channels;
            [[unroll]] for (uint n = KEPT - 1u; n >= PLACES; --n) {
                xs[n] = xs[n - PLACES];
                gradients[n] = gradients[n - PLACES];
                powers[n] = powers[n - PLACES];
                terms[n] = terms[n - PLACES];
            }
            vec4 results, bases;  // of the elements AFTER before
            vec2 own[4];
            bool usual = THREE_QUARTERS;
            [[unroll]] for (uint p = 0u; p < PLACES; ++p) {
                xs[p] = there ? x[t][p] : 0.0;
                gradients[p] = there ? dy[t][p] : 0.0;
                float squares = 0.0;
                [[unroll]] for (uint n = p; n < KEPT; n += PLACES) squares += xs[n] * xs[n];
                bases[p] = bias + alpha * squares;
                usual = usual && is_usual(bases[p]);
            }
            if (usual) {
                [[unroll]] for (uint p = 0u; p < PLACES; ++p) own[p] = usual_powers_of(bases[p]);
            } else {
                [[unroll]] for (uint p = 0u; p < PLACES; ++p) own[p] = powers_of(bases[p]);
            }
            [[unroll]] for (uint p = 0u; p < PLACES; ++p) {
                float sum = 0.0;
                powers[p] = own[p].x;
                const uint middle = AFTER * PLACES + p, last = KEPT - PLACES + p;
                terms[p] = c + t - AFTER < channels ? gradients[middle] * xs[middle] * own[p].y : 0.0;
                [[unroll]] for (uint n = p; n < KEPT; n += PLACES) sum += terms[n];
                results[p] = gradients[last] * powers[BEFORE * PLACES + p] - 2.0 * alpha * beta * xs[last] * sum;
            }
            if (c + t < made + SIZE - 1u || c + t >= beyond) continue;
            uint to = dx_offset + at[2] + (c + t - (SIZE - 1u)) * dx_step;
            if (PLACES == 4u) dx_pairs[to / 4u] = floats_to_halves(results);
            else if (PLACES == 2u) dx_words[to / 2u] = floats_to_halves(results.x, results.y);
            else dx_store_float(to, results.x);
        }
    }
}
