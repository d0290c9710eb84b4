//@ op DML_OPERATOR_RNN DML_OPERATOR_GRU DML_OPERATOR_LSTM
//@ variants KIND: rnn lstm gru
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A workgroup computes all steps of one direction of one sequence, with the state in shared memory. Teams
// of eight invocations multiply it by lines of R. Registers keep as many lines as fit, the others are read
// in each step.
#define PARAMS_BINDING 5
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 3) const bool LENGTHS = false;
layout(constant_id = 4) const bool SEQUENCE = false;  // whether y is wanted
layout(constant_id = 5) const uint F = 0u;
layout(constant_id = 6) const uint G = 0u;
layout(constant_id = 7) const uint H = 0u;
layout(constant_id = 8) const bool CLIP = false;
layout(constant_id = 9) const bool COUPLE = false;
layout(constant_id = 10) const uint TEAMS = 32u;
layout(constant_id = 11) const uint UNITS = 32u;  // a multiple of 32
layout(constant_id = 12) const bool BACKWARD = false;
layout(constant_id = 13) const uint KEPT = 0u;  // lines of a team that stay in registers
layout(push_constant) uniform Push {
    uint direction;
    uint steps;
    uint batches;
    uint before;  // in the state: h, before and after all steps
    uint cell;    // LSTM: the cells
    uint extra;   // LSTM: peepholes. GRU: the recurrence's bias of the new state
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
const uint GATES = 4u;
#elif defined(KIND_gru)
const uint GATES = 3u;
#else
const uint GATES = 1u;
#endif
const uint LANES = 8u, INVOCATIONS = TEAMS * LANES;
const int LINES = int((GATES * UNITS + TEAMS - 1u) / TEAMS);  // lines of R for each team
const int QUADS = int(UNITS / (4u * LANES));                  // vectors of a line for each invocation
shared vec4 s_h[UNITS / 4u];
shared float s_parts[LINES * TEAMS * (LANES + 1u)];  // by line, with padding against bank conflicts

float state(uint at) { return uintBitsToFloat(state_words[state_offset + at]); }
void store(uint at, float value) { state_words[state_offset + at] = floatBitsToUint(value); }

float product(uint line) {
    float sum = 0.0;
    [[unroll]] for (uint n = 0u; n < LANES; ++n) sum += s_parts[line * (LANES + 1u) + n];
    return sum;
}

// Vector ``q`` of an invocation's part of a line. A team whose lines end sooner reads the last one again.
vec4 line_of_r(uint line, uint lane, int q) {
    uint first = r_offset / 4u + min(line, GATES * UNITS - 1u) * (param(0u) / 4u);
    return uintBitsToFloat(r_vectors[first + uint(q) * LANES + lane]);
}

void main() {
    const uint i = gl_LocalInvocationIndex, lane = i % LANES, team = i / LANES;
    uint sequence = group_index();
    if (sequence >= batches) return;
    for (uint unit = i; unit < UNITS; unit += INVOCATIONS)
        s_h[unit / 4u][unit % 4u] = state(before + sequence * UNITS + unit);
    vec4 kept[KEPT * uint(QUADS) + 1u];
    [[unroll]] for (int n = 0; n < int(KEPT); ++n)
        [[unroll]] for (int q = 0; q < QUADS; ++q)
            kept[n * QUADS + q] = line_of_r(team + uint(n) * TEAMS, lane, q);
    uint length = LENGTHS ? lengths_words[lengths_offset + sequence * param(2u)] : steps;

    for (uint step = 0u; step < steps; ++step) {
        uint time = BACKWARD ? steps - 1u - step : step;
        uint row = projected_offset + ((direction * steps + time) * batches + sequence) * GATES * UNITS;
        barrier();
        [[unroll]] for (int n = 0; n < LINES; ++n) {
            uint line = team + uint(n) * TEAMS;
            float sum = 0.0;
            [[unroll]] for (int q = 0; q < QUADS; ++q)
                sum += dot(n < int(KEPT) ? kept[n * QUADS + q] : line_of_r(line, lane, q),
                           s_h[uint(q) * LANES + lane]);
            s_parts[line * (LANES + 1u) + lane] = sum;
        }
        barrier();
        for (uint unit = i; unit < UNITS; unit += INVOCATIONS) {
            float gate[GATES];
            [[unroll]] for (uint n = 0u; n < GATES; ++n)
                gate[n] = uintBitsToFloat(projected_words[row + n * UNITS + unit]);
            uint own = sequence * UNITS + unit;
            bool live = time < length;
            float old = s_h[unit / 4u][unit % 4u];
#if defined(KIND_lstm)
            vec3 peepholes = vec3(state(extra + unit), state(extra + UNITS + unit),
                                  state(extra + 2u * UNITS + unit));
            vec2 made = lstm_unit(
                vec4(gate[0] + product(unit), gate[1] + product(UNITS + unit),
                     gate[2] + product(2u * UNITS + unit), gate[3] + product(3u * UNITS + unit)),
                state(cell + own), peepholes);
            float fresh = made[0];
            if (live) store(cell + own, made[1]);
#elif defined(KIND_gru)
            float fresh = gru_unit(
                vec3(gate[0] + product(unit), gate[1] + product(UNITS + unit), gate[2]),
                product(2u * UNITS + unit) + state(extra + unit), old);
#else
            float fresh = f(gate[0] + product(unit));
#endif
            if (live) s_h[unit / 4u][unit % 4u] = fresh;
            if (SEQUENCE)
                y_store_float(y_offset + time * param(3u) + direction * param(4u)
                              + sequence * param(5u) + unit * param(6u), live ? fresh : 0.0);
        }
    }
    barrier();
    for (uint unit = i; unit < UNITS; unit += INVOCATIONS)
        store(before + sequence * UNITS + unit, s_h[unit / 4u][unit % 4u]);
}
