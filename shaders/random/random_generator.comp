//@ op DML_OPERATOR_RANDOM_GENERATOR
//@ variants PRODUCTS: words longs
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#if defined(PRODUCTS_longs)
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
// Philox 4x32 with 10 rounds. An invocation computes EACH blocks of four words. A block's counter is the
// state's counter plus the block's number. The first invocation also writes the next state.
#define PARAMS_BINDING 3
layout(constant_id = 1) const bool CONTIGUOUS = false;
layout(constant_id = 2) const bool NEXT = false;
layout(constant_id = 3) const uint EACH = 4u;
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

// The upper and the lower half of a product.
uvec2 product(uint x, uint y) {
#if defined(PRODUCTS_longs)
    return unpack32(uint64_t(x) * y).yx;  // one multiplication, if the device has 64-bit integers
#else
    uvec2 halves;
    umulExtended(x, y, halves.x, halves.y);
    return halves;
#endif
}

// The words of blocks, from their counters.
void make_words(inout uvec4 c[EACH], uvec2 key) {
    [[unroll]] for (uint r = 0u; r < 10u; ++r) {
        [[unroll]] for (uint n = 0u; n < EACH; ++n) {
            uvec2 first = product(0xD2511F53u, c[n].x), second = product(0xCD9E8D57u, c[n].z);
            c[n] = uvec4(second.x ^ c[n].y ^ key.x, second.y, first.x ^ c[n].w ^ key.y, first.y);
        }
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
}

void main() {
    const uint size = gl_WorkGroupSize.x, span = size * EACH;
    uint from = group_index() * span, own = from + gl_LocalInvocationIndex;
    uint blocks = count / 4u + uint(count % 4u != 0u);
    if (own >= blocks) return;
    uvec2 key = uvec2(state(4u), state(5u));
    if (NEXT && own == 0u) {
        uvec4 next = counter_plus(blocks);
        for (uint i = 0u; i < 4u; ++i) next_words[next_offset + i * next_stride] = next[i];
        for (uint i = 0u; i < 2u; ++i) next_words[next_offset + (4u + i) * next_stride] = key[i];
    }
    uvec4 c[EACH], begin = counter_plus(from);
    bool whole = CONTIGUOUS && y_offset % 4u == 0u && from + span <= count / 4u;
    // Where the counter's first word does not wrap within a workgroup, its blocks share the other words. So
    // compilers compute parts of the first two rounds once for all blocks of an invocation.
    if (whole && begin.x <= 0xFFFFFFFFu - span) {
        [[unroll]] for (uint n = 0u; n < EACH; ++n)
            c[n] = uvec4(begin.x + gl_LocalInvocationIndex + n * size, begin.yzw);
        make_words(c, key);
        [[unroll]] for (uint n = 0u; n < EACH; ++n) y_vectors[y_offset / 4u + own + n * size] = c[n];
        return;
    }
    [[unroll]] for (uint n = 0u; n < EACH; ++n) c[n] = counter_plus(own + n * size);
    make_words(c, key);
    [[unroll]] for (uint n = 0u; n < EACH; ++n) {
        uint first = 4u * (own + n * size);
        for (uint i = 0u; i < 4u && first + i < count; ++i)
            y_words[y_offset + (CONTIGUOUS ? first + i : walk(0u, first + i)[0])] = c[n][i];
    }
}
