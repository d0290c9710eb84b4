//@ op DML_OPERATOR_LOCAL_RESPONSE_NORMALIZATION_GRAD
//@ variants WIDE: p2(places=2, turn=4) p4(places=4, turn=4)
//@ unchecked *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Across channels of FLOAT16, where alpha is not negative and bias is a normal number above 0, so that no power needs
// a case of its own. An invocation goes along the channels at two or four neighbours of a plane, and keeps what the
// windows reach. The elements of the next turn are read before those of this turn are used.
// S = bias + alpha * the sum of the window's squares, and G = dY S^-beta. The term of an element is G X / S. Its
// gradient is G, less 2 alpha beta X times the terms whose windows contain it.
#define PARAMS_BINDING 3
layout(constant_id = 2) const uint BEFORE = 0u;  // the elements of a window before its own, ...
layout(constant_id = 3) const uint AFTER = 0u;   // ... and after it
layout(constant_id = 4) const bool THREE_QUARTERS = false;  // beta is 0.75
const uint PLACES = WIDE_places;  // of an invocation
const uint TURN = WIDE_turn;    // channels read at once
const uint TYPE = 34u;
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

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(dy, 1, TYPE)
OUTPUT_TENSOR(dx, 2, TYPE)
WALK(walk, 3)
layout(binding = 0) readonly buffer XPairs { uvec2 x_pairs[]; };
layout(binding = 1) readonly buffer DyPairs { uvec2 dy_pairs[]; };
layout(binding = 2) writeonly buffer DxPairs { uvec2 dx_pairs[]; };
const uint SIZE = BEFORE + AFTER + 1u, KEPT = SIZE * PLACES;

uvec2 x_taken[TURN], dy_taken[TURN];

// Reads the elements of TURN channels.
void take(uint channel, uint x_at, uint dy_at) {
    [[unroll]] for (uint t = 0u; t < TURN; ++t) {
        bool there = channel + t < channels;
        uint from = there ? x_at + t * (x_step / PLACES) : 0u, dy_from = there ? dy_at + t * (dy_step / PLACES) : 0u;
        uvec2 x, dy;
        if (PLACES == 4u) {
            x = x_pairs[from];
            dy = dy_pairs[dy_from];
        } else {
            x = uvec2(x_words[from], 0u);
            dy = uvec2(dy_words[dy_from], 0u);
        }
        x_taken[t] = x;
        dy_taken[t] = dy;
    }
}

vec4 floats_of(uvec2 words) {
    return PLACES == 4u ? vec4(halves_to_floats(words.x), halves_to_floats(words.y))
                        : vec4(halves_to_floats(words.x), 0.0, 0.0);
}

void main() {
    uint i = invocation_index();
    if (i >= places * spans) return;
    uint next = i / places;
    uint[3] at = walk(0u, i - next * places);
    // Channels are counted from the first that is read, SIZE - 1 before the first that is made.
    uint made = next * span, beyond = min(channels, made + span) + SIZE - 1u;
    float xs[KEPT], squares[KEPT], gradients[KEPT], scaled[KEPT], terms[KEPT];  // the last first
    [[unroll]] for (uint n = 0u; n < KEPT; ++n) xs[n] = squares[n] = gradients[n] = scaled[n] = terms[n] = 0.0;
    // What lies outside of the tensor adds nothing.
    uint c = made < SIZE - 1u ? 0u : made - (SIZE - 1u);
    uint x_at = (x_offset + at[0] + c * x_step) / PLACES, dy_at = (dy_offset + at[1] + c * dy_step) / PLACES;
    uint to = (dx_offset + at[2]) / PLACES + (c - (SIZE - 1u)) * (dx_step / PLACES);
    float factor = 2.0 * alpha * beta;
    take(c, x_at, dy_at);
    [[dont_unroll]] for (; c < beyond; c += TURN) {
        uvec2 x_words_now[TURN], dy_words_now[TURN];
        [[unroll]] for (uint t = 0u; t < TURN; ++t) {
            x_words_now[t] = x_taken[t];
            dy_words_now[t] = dy_taken[t];
        }
        x_at += TURN * (x_step / PLACES);
        dy_at += TURN * (dy_step / PLACES);
        if (c + TURN < beyond) take(c + TURN, x_at, dy_at);
        [[unroll]] for (uint t = 0u; t < TURN; ++t) {
            [[unroll]] for (uint n = KEPT - 1u; n >= PLACES; --n) {
                xs[n] = xs[n - PLACES];
                squares[n] = squares[n - PLACES];
                gradients[n] = gradients[n - PLACES];
                scaled[n] = scaled[n - PLACES];
                terms[n] = terms[n - PLACES];
            }
            bool there = c + t < channels;
            vec4 x = floats_of(there ? x_words_now[t] : uvec2(0u));
            vec4 dy = floats_of(there ? dy_words_now[t] : uvec2(0u)), results = vec4(0.0);
            [[unroll]] for (uint p = 0u; p < PLACES; ++p) {
                xs[p] = x[p];
                squares[p] = x[p] * x[p];
                gradients[p] = dy[p];
                float sum = 0.0;
                [[unroll]] for (uint n = p; n < KEPT; n += PLACES) sum += squares[n];
                float base = bias + alpha * sum, power, inverse;
                if (THREE_QUARTERS) {
                    float root = inversesqrt(base);
                    power = root * sqrt(root);
                    inverse = root * root;
                } else {
                    float logarithm = log2(base);
                    power = exp2(-beta * logarithm);
                    inverse = exp2(-logarithm);
                }
                const uint middle = AFTER * PLACES + p, last = KEPT - PLACES + p;
                scaled[p] = gradients[middle] * power;
                terms[p] = scaled[p] * (xs[middle] * inverse);
                float near = 0.0;
                [[unroll]] for (uint n = p; n < KEPT; n += PLACES) near += terms[n];
                results[p] = scaled[BEFORE * PLACES + p] - factor * xs[last] * near;
            }
            if (c + t >= made + SIZE - 1u && c + t < beyond) {
                if (PLACES == 4u) dx_pairs[to] = floats_to_halves(results);
                else dx_words[to] = floats_to_halves(results.x, results.y);
            }
            to += dx_step / PLACES;
        }
    }
}
