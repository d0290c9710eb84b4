//@ op DML_OPERATOR_TILE
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Where rows are whole vectors of 16 bytes: an invocation reads PARTS vectors of the input once and
// writes all copies of each. Where the copies begin follows the words of the walk. Units are vectors.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint PARTS = 1u;
layout(constant_id = 2) const uint COPIES = 1u;

layout(push_constant) uniform Push {
    uint x_offset;
    uint y_offset;
    uint params_offset;
    uint count;
    uint copies_at;
};
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"

layout(binding = 0) readonly buffer X { uvec4 x_vectors[]; };
layout(binding = 1) writeonly buffer Y { uvec4 y_vectors[]; };
WALK(walk, 2)

void main() {
    uint first = group_index() * gl_WorkGroupSize.x * PARTS + gl_LocalInvocationID.x;
    uint to[PARTS];
    uvec4 vector[PARTS];
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        uint[2] at = walk(0u, min(first + p * gl_WorkGroupSize.x, count - 1u));
        vector[p] = x_vectors[x_offset + at[0]];
        to[p] = y_offset + at[1];
    }
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        if (first + p * gl_WorkGroupSize.x >= count) return;
        for (uint c = 0u; c < COPIES; ++c) y_vectors[to[p] + param(copies_at + c)] = vector[p];
    }
}
