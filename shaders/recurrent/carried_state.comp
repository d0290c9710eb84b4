//@ op -
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/grid.glsl"

// A state that chunks of tokens change one after the other. For each chunk
//     seen = into state,  update = values + taken state,  state = kept * state + transposed(keys) update
// where the state is HEIGHT x columns. A workgroup keeps some of its columns in shared memory. The output
// of a chunk has SEEN_ROWS rows of seen, then TOKENS rows of the update if there is something taken.
layout(constant_id = 1) const uint HEIGHT = 1u;
layout(constant_id = 2) const uint FOURS = 1u;  // columns of a workgroup, in vectors of four
layout(constant_id = 3) const uint TOKENS = 1u;
layout(constant_id = 4) const uint SEEN_ROWS = 1u;
layout(constant_id = 5) const bool HAS_TAKEN = false;
layout(constant_id = 6) const bool HAS_KEPT = false;
layout(constant_id = 7) const bool CONTINUES = false;  // the state is what the dispatch before left
const uint ROWS = SEEN_ROWS + (HAS_TAKEN ? TOKENS : 0u);
const uint INVOCATIONS = gl_WorkGroupSize.x;

layout(binding = 0) readonly buffer Values { float values[]; };
layout(binding = 1) readonly buffer Keys { float keys[]; };
layout(binding = 2) readonly buffer Taken { float taken[]; };
layout(binding = 3) readonly buffer Into { float into[]; };
layout(binding = 4) readonly buffer Kept { float kept[]; };
layout(binding = 5) readonly buffer State { float state[]; };
layout(binding = 6) writeonly buffer Output { float y[]; };
layout(binding = 7) buffer Last { float last[]; };

layout(push_constant) uniform Push {
    uint matrices;
    uint chunks;
    uint first;
    uint count;
    uint columns;
    uint values_by[4];  // matrix, chunk, token, column
    uint keys_by[4];    // matrix, chunk, token, feature
    uint taken_by[4];
    uint into_by[4];    // matrix, chunk, row, feature
    uint kept_by[3];    // matrix, chunk, feature
    uint values_offset;
    uint keys_offset;
    uint taken_offset;
    uint into_offset;
    uint kept_offset;
    uint state_offset;
    uint y_offset;
    uint last_offset;
};

const uint MOST = 1024u;  // as the host has it
shared vec4 s_state[MOST];  // HEIGHT rows, then the update's TOKENS

vec4 value_at(uint at, uint column) {
    vec4 x = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        if (column + i < columns) x[i] = values[at + (column + i) * values_by[3]];
    return x;
}

void main() {
    uint across = (columns - 1u) / (4u * FOURS) + 1u;
    uint matrix = group_index() / across;
    if (matrix >= matrices) return;
    uint begin = group_index() % across * 4u * FOURS;
    uint own = matrix * HEIGHT * columns;
    const uint UPDATE = HEIGHT * FOURS;

    for (uint item = gl_LocalInvocationIndex; item < UPDATE; item += INVOCATIONS) {
        uint column = begin + item % FOURS * 4u;
        vec4 x = vec4(0.0);
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            uint at = own + item / FOURS * columns + column + i;
            if (column + i < columns) x[i] = CONTINUES ? last[last_offset + at] : state[state_offset + at];
        }
        s_state[item] = x;
    }
    barrier();
    for (uint chunk = first; chunk < first + count; ++chunk) {
        uint value = values_offset + matrix * values_by[0] + chunk * values_by[1];
        for (uint item = gl_LocalInvocationIndex; item < ROWS * FOURS; item += INVOCATIONS) {
            uint row = item / FOURS, four = item % FOURS, column = begin + four * 4u;
            vec4 sum = vec4(0.0);
            if (row < SEEN_ROWS) {
                uint at = into_offset + matrix * into_by[0] + chunk * into_by[1] + row * into_by[2];
                for (uint d = 0u; d < HEIGHT; ++d) sum += into[at + d * into_by[3]] * s_state[d * FOURS + four];
            } else {
                uint token = row - SEEN_ROWS;
                uint at = taken_offset + matrix * taken_by[0] + chunk * taken_by[1] + token * taken_by[2];
                for (uint d = 0u; d < HEIGHT; ++d) sum += taken[at + d * taken_by[3]] * s_state[d * FOURS + four];
                sum += value_at(value + token * values_by[2], column);
                s_state[UPDATE + token * FOURS + four] = sum;
            }
            uint to = y_offset + ((matrix * chunks + chunk) * ROWS + row) * columns + column;
            [[unroll]] for (uint i = 0u; i < 4u; ++i)
                if (column + i < columns) y[to + i] = sum[i];
        }
        if (!HAS_TAKEN)
            for (uint item = gl_LocalInvocationIndex; item < TOKENS * FOURS; item += INVOCATIONS)
                s_state[UPDATE + item] = value_at(value + item / FOURS * values_by[2], begin + item % FOURS * 4u);
        barrier();
        for (uint item = gl_LocalInvocationIndex; item < UPDATE; item += INVOCATIONS) {
            uint d = item / FOURS, four = item % FOURS;
            vec4 x = s_state[item];
            if (HAS_KEPT) x *= kept[kept_offset + matrix * kept_by[0] + chunk * kept_by[1] + d * kept_by[2]];
            uint at = keys_offset + matrix * keys_by[0] + chunk * keys_by[1] + d * keys_by[3];
            for (uint token = 0u; token < TOKENS; ++token)
                x += keys[at + token * keys_by[2]] * s_state[UPDATE + token * FOURS + four];
            s_state[item] = x;
        }
        barrier();
    }
    for (uint item = gl_LocalInvocationIndex; item < UPDATE; item += INVOCATIONS) {
        uint column = begin + item % FOURS * 4u;
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            if (column + i < columns)
                last[last_offset + own + item / FOURS * columns + column + i] = s_state[item][i];
    }
}
