//@ op DML_OPERATOR_RNN DML_OPERATOR_GRU DML_OPERATOR_LSTM
//@ variants KIND: rnn lstm gru gru_gates gru_new
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// One step of one direction. A workgroup of 16 x 16 invocations computes 16 units of 16 sequences. An
// invocation computes all gates of one unit of one sequence, from the projected input and the product of
// the previous state with R. A GRU that applies its reset gate before the product takes two dispatches:
// gru_gates, then gru_new.
#define PARAMS_BINDING 5
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool VECTORS = false;  // rows of r are whole vectors
layout(constant_id = 3) const bool LENGTHS = false;
layout(constant_id = 4) const bool SEQUENCE = false;  // whether y is wanted
layout(constant_id = 5) const uint F = 0u;
layout(constant_id = 6) const uint G = 0u;
layout(constant_id = 7) const uint H = 0u;
layout(constant_id = 8) const bool CLIP = false;
layout(constant_id = 9) const bool COUPLE = false;
layout(push_constant) uniform Push {
    uint time;
    uint direction;
    uint steps;
    uint batches;
    uint units;
    uint pitch;    // from one sequence's state to the next
    uint before;   // in the state: h of the previous step
    uint after;    // and of this one
    uint cell;     // LSTM: the cells. GRU: the update gates
    uint reset;    // GRU: the state times the reset gates
    uint extra;    // LSTM: peepholes. GRU: the recurrence's bias of the new state
    float threshold;
    uint projected_offset;
    uint r_offset;
    uint state_offset;
    uint lengths_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/params.glsl"
#include "include/typed.glsl"
#include "include/recurrent.glsl"

INPUT_TENSOR(projected, 0, 36u)
INPUT_TENSOR(r, 1, TYPE)
layout(binding = 2) buffer State { uint state_words[]; };
INPUT_TENSOR(lengths, 3, 4u)
OUTPUT_TENSOR(y, 4, TYPE)

#if defined(KIND_lstm)
const uint GATES = 4u, FIRST = 0u, ALL = 4u;
#elif defined(KIND_gru)
const uint GATES = 3u, FIRST = 0u, ALL = 3u;
#elif defined(KIND_gru_gates)
const uint GATES = 2u, FIRST = 0u, ALL = 3u;
#elif defined(KIND_gru_new)
const uint GATES = 1u, FIRST = 2u, ALL = 3u;
#else
const uint GATES = 1u, FIRST = 0u, ALL = 1u;
#endif
const uint QUADS = 8u, PITCH = 9u;  // vectors of 32 elements, and one of padding
shared vec4 s_h[16u * PITCH];
shared vec4 s_r[16u * GATES * PITCH];

float state(uint at) { return uintBitsToFloat(state_words[state_offset + at]); }
void store(uint at, float value) { state_words[state_offset + at] = floatBitsToUint(value); }

void main() {
    const uint i = gl_LocalInvocationIndex, tx = i % 16u, ty = i / 16u;
    uint across = (units + 15u) / 16u;
    uint unit_base = group_index() % across * 16u, sequence_base = group_index() / across * 16u;
    if (sequence_base >= batches) return;
    uint unit = unit_base + tx, sequence = sequence_base + ty;
    bool mine = unit < units && sequence < batches;
#if defined(KIND_gru_new)
    uint source = reset;
#else
    uint source = before;
#endif

    float gate[GATES];
    [[unroll]] for (uint n = 0u; n < GATES; ++n) {
        uint row = (direction * steps + time) * batches + sequence;
        gate[n] = mine ? uintBitsToFloat(projected_words[
            projected_offset + row * ALL * units + (FIRST + n) * units + unit]) : 0.0;
    }
    float product[GATES];
    [[unroll]] for (uint n = 0u; n < GATES; ++n) product[n] = 0.0;
    for (uint first = 0u; first < units; first += 4u * QUADS) {
        barrier();
        uint row = i / QUADS, quad = i % QUADS, k = first + 4u * quad;
        if (i < 16u * QUADS) {
            vec4 x = vec4(0.0);
            if (sequence_base + row < batches)
                [[unroll]] for (uint e = 0u; e < 4u; ++e)
                    if (k + e < units) x[e] = state(source + (sequence_base + row) * pitch + k + e);
            s_h[row * PITCH + quad] = x;
        }
        [[unroll]] for (uint n = 0u; n < (GATES + 1u) / 2u; ++n) {
            uint place = row + 32u * n, gate_of = place / 16u, u = unit_base + place % 16u;
            if (gate_of >= GATES) continue;
            vec4 x = vec4(0.0);
            uint at = r_offset + ((FIRST + gate_of) * units + u) * param(0u) + k * param(1u);
            if (u < units && k < units) {
                if (VECTORS && r_offset % 4u == 0u) x = uintBitsToFloat(r_vectors[at / 4u]);
                else [[unroll]] for (uint e = 0u; e < 4u; ++e)
                    if (k + e < units) x[e] = r_float(at + e * param(1u));
            }
            s_r[place * PITCH + quad] = x;
        }
        barrier();
        [[unroll]] for (uint q = 0u; q < QUADS; ++q) {
            vec4 x = s_h[ty * PITCH + q];
            [[unroll]] for (uint n = 0u; n < GATES; ++n)
                product[n] += dot(x, s_r[(16u * n + tx) * PITCH + q]);
        }
    }
    if (!mine) return;

    uint own = sequence * pitch + unit;
    bool live = !LENGTHS || time < lengths_words[lengths_offset + sequence * param(2u)];
    float old = state(before + own);
#if defined(KIND_gru_gates)
    store(cell + own, f(gate[0] + product[0]));
    store(reset + own, f(gate[1] + product[1]) * old);
#else
#if defined(KIND_lstm)
    vec3 peepholes = vec3(state(extra + unit), state(extra + units + unit),
                          state(extra + 2u * units + unit));
    vec2 made = lstm_unit(vec4(gate[0] + product[0], gate[1] + product[1], gate[2] + product[2],
                               gate[3] + product[3]), state(cell + own), peepholes);
    float fresh = made[0];
    if (live) store(cell + own, made[1]);
#elif defined(KIND_gru)
    float fresh = gru_unit(vec3(gate[0] + product[0], gate[1] + product[1], gate[2]),
                           product[2] + state(extra + unit), old);
#elif defined(KIND_gru_new)
    float update = state(cell + own);
    float fresh = (1.0 - update) * g(gate[0] + product[0]) + update * old;
#else
    float fresh = f(gate[0] + product[0]);
#endif
    store(after + own, live ? fresh : old);
    if (SEQUENCE)
        y_store_float(y_offset + time * param(3u) + direction * param(4u) + sequence * param(5u)
                      + unit * param(6u), live ? fresh : 0.0);
#endif
}
