//@ op DML_OPERATOR_DEPTH_TO_SPACE DML_OPERATOR_DEPTH_TO_SPACE1 DML_OPERATOR_SPACE_TO_DEPTH DML_OPERATOR_SPACE_TO_DEPTH1
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// BLOCK rows of the deep tensor are interleaved in a row of the wide one. From wide to deep, an
// invocation reads BLOCK vectors of the wide row and writes one vector to each deep row. In the other
// direction BLOCK neighbours read one vector of each deep row, exchange them, and write side by side.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint BLOCK = 2u;
layout(constant_id = 2) const bool TO_SPACE = true;
layout(constant_id = 3) const uint HOW = 0u;
layout(constant_id = 4) const uint PARTS = 1u;
layout(constant_id = 5) const uint ROOM = 1u;

layout(push_constant) uniform Push {
    uint x_offset;
    uint y_offset;
    uint params_offset;
    uint count;
    uint row_stride;  // of the deep tensor
};
#include "include/grid.glsl"
#include "include/vectors.glsl"
#define WALK_RANKED
#include "include/walk.glsl"

WALK(walk, 2)

shared uvec4 given_vectors[ROOM];

void exchanged() {
    uint lane = gl_LocalInvocationID.x, mine = lane % BLOCK;
    uint to[PARTS];
    bool inside[PARTS];
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        uint index = (group_index() * PARTS + p) * (gl_WorkGroupSize.x / BLOCK) + lane / BLOCK;
        inside[p] = index < count;
        uint[2] at = walk(0u, min(index, count - 1u));
        to[p] = (y_offset + at[1]) / PER_VECTOR + mine;
        given_vectors[p * gl_WorkGroupSize.x + lane] =
            x_vectors[(x_offset + at[0] + mine * row_stride) / PER_VECTOR];
    }
    barrier();
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        uvec4 made = uvec4(0u);
        uint begin = p * gl_WorkGroupSize.x + lane - mine;
        [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e) {
            uint wide = mine * PER_VECTOR + e;
            uint word = wide / BLOCK * BYTES / 4u;
            uvec2 bits;
            if (BYTES == 8u) {
                uvec4 v = given_vectors[begin + wide % BLOCK];
                bits = wide / BLOCK == 0u ? v.xy : v.zw;
            } else {
                bits = extended(given_vectors[begin + wide % BLOCK][word], wide / BLOCK * BYTES, BYTES);
            }
            set_element(made, e, bits);
        }
        if (inside[p]) y_vectors[to[p]] = made;
    }
}

void main() {
    if (TO_SPACE && HOW == 1u) {
        exchanged();
        return;
    }
    uint first = group_index() * gl_WorkGroupSize.x * PARTS + gl_LocalInvocationID.x, mine = 0u;
    uint index[PARTS];
    uint to[PARTS];
    uvec4 given[PARTS * BLOCK];
    uint between = row_stride / PER_VECTOR;
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        index[p] = first + p * gl_WorkGroupSize.x;
        if (TO_SPACE && HOW == 0u) {
            mine = index[p] % BLOCK;
            index[p] /= BLOCK;
        }
        uint[2] at = walk(0u, min(index[p], count - 1u));
        uint from = (x_offset + at[0]) / PER_VECTOR;
        to[p] = (y_offset + at[1]) / PER_VECTOR;
        [[unroll]] for (uint j = 0u; j < BLOCK; ++j)
            given[p * BLOCK + j] = x_vectors[from + j * (TO_SPACE ? between : 1u)];
    }
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        uvec4 made[BLOCK];
        [[unroll]] for (uint j = 0u; j < BLOCK; ++j) made[j] = uvec4(0u);
        [[unroll]] for (uint j = 0u; j < BLOCK; ++j) {
            [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e) {
                uint wide = e * BLOCK + j;
                if (TO_SPACE)
                    set_element(made[wide / PER_VECTOR], wide % PER_VECTOR,
                                element_of(given[p * BLOCK + j], e));
                else
                    set_element(made[j], e,
                                element_of(given[p * BLOCK + wide / PER_VECTOR], wide % PER_VECTOR));
            }
        }
        if (index[p] >= count) return;
        [[unroll]] for (uint j = 0u; j < BLOCK; ++j)
            if (!TO_SPACE || HOW != 0u || j == mine)
                y_vectors[to[p] + j * (TO_SPACE ? 1u : between)] = made[j];
    }
}
