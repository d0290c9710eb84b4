//@ op DML_OPERATOR_TILE
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Where rows are whole vectors of 16 bytes: an invocation reads one of the input and writes all
// copies of it. Units are vectors.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint COPIES = 1u;

layout(push_constant) uniform Push {
    uint x_offset;
    uint y_offset;
    uint params_offset;
    uint count;
    uint copies[16];  // where each begins
};
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"

layout(binding = 0) readonly buffer X { uvec4 x_vectors[]; };
layout(binding = 1) writeonly buffer Y { uvec4 y_vectors[]; };
WALK(walk, 2)

void main() {
    uint index = invocation_index();
    if (index >= count) return;
    uint[2] at = walk(0u, index);
    uvec4 vector = x_vectors[x_offset + at[0]];
    [[unroll]] for (uint c = 0u; c < COPIES; ++c) y_vectors[y_offset + at[1] + copies[c]] = vector;
}
