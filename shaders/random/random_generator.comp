//@ op DML_OPERATOR_RANDOM_GENERATOR
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Philox 4x32 with 10 rounds. An invocation makes the four words of one block, whose counter is the
// state's plus the block's number. The first one also writes the state that comes after all blocks.
#define PARAMS_BINDING 3
layout(constant_id = 1) const bool CONTIGUOUS = false;
layout(constant_id = 2) const bool NEXT = false;
layout(push_constant) uniform Push {
    uint count;
    uint state_stride;
    uint next_stride;
    uint state_offset;
    uint y_offset;
    uint next_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
layout(binding = 0) readonly buffer State { uint state_words[]; };
layout(binding = 1) writeonly buffer Words { uint y_words[]; };
layout(binding = 1) writeonly buffer Vectors { uvec4 y_vectors[]; };
layout(binding = 2) writeonly buffer Next { uint next_words[]; };
WALK(walk, 1)

uint state(uint i) { return state_words[state_offset + i * state_stride]; }

// The state's counter plus n: 128 bits, the lowest word first.
uvec4 counter_plus(uint n) {
    uint carry;
    uvec4 c;
    c.x = uaddCarry(state(0u), n, carry);
    c.y = uaddCarry(state(1u), carry, carry);
    c.z = uaddCarry(state(2u), carry, carry);
    c.w = state(3u) + carry;
    return c;
}

uvec4 philox(uvec4 c, uvec2 key) {
    [[unroll]] for (uint r = 0u; r < 10u; ++r) {
        uvec2 high, low;
        umulExtended(0xD2511F53u, c.x, high.x, low.x);
        umulExtended(0xCD9E8D57u, c.z, high.y, low.y);
        c = uvec4(high.y ^ c.y ^ key.x, low.y, high.x ^ c.w ^ key.y, low.x);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return c;
}

void main() {
    uint block = invocation_index();
    uint blocks = count / 4u + uint(count % 4u != 0u);
    if (block >= blocks) return;
    uvec2 key = uvec2(state(4u), state(5u));
    if (NEXT && block == 0u) {
        uvec4 next = counter_plus(blocks);
        for (uint i = 0u; i < 4u; ++i) next_words[next_offset + i * next_stride] = next[i];
        for (uint i = 0u; i < 2u; ++i) next_words[next_offset + (4u + i) * next_stride] = key[i];
    }
    uvec4 made = philox(counter_plus(block), key);
    uint first = 4u * block, there = min(4u, count - first);
    if (CONTIGUOUS && y_offset % 4u == 0u && there == 4u) {
        y_vectors[y_offset / 4u + block] = made;
        return;
    }
    for (uint i = 0u; i < there; ++i)
        y_words[y_offset + (CONTIGUOUS ? first + i : walk(0u, first + i)[0])] = made[i];
}
