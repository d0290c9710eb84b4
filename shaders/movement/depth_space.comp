//@ op DML_OPERATOR_DEPTH_TO_SPACE DML_OPERATOR_DEPTH_TO_SPACE1 DML_OPERATOR_SPACE_TO_DEPTH DML_OPERATOR_SPACE_TO_DEPTH1
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// BLOCK lines of the deep tensor are the columns of a line of the wide one, in turns. An invocation
// reads as many vectors in a row and writes one of each line. In the other direction it reads one of
// each line and writes one of the row, so that neighbours write side by side.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint BLOCK = 2u;
layout(constant_id = 2) const bool TO_SPACE = true;

layout(push_constant) uniform Push {
    uint x_offset;
    uint y_offset;
    uint params_offset;
    uint count;
    uint apart;  // elements from a line of the deep tensor to the next
};
#include "include/grid.glsl"
#include "include/vectors.glsl"
#include "include/walk.glsl"

WALK(walk, 2)

void main() {
    uint index = invocation_index(), mine = 0u;
    if (TO_SPACE) {
        mine = index % BLOCK;
        index /= BLOCK;
    }
    if (index >= count) return;
    uint[2] at = walk(0u, index);
    uint from = (x_offset + at[0]) / PER_VECTOR, to = (y_offset + at[1]) / PER_VECTOR;
    uint between = apart / PER_VECTOR;
    uvec4 given[BLOCK];
    uvec4 made[BLOCK];
    [[unroll]] for (uint j = 0u; j < BLOCK; ++j) {
        given[j] = in_vectors[from + j * (TO_SPACE ? between : 1u)];
        made[j] = uvec4(0u);
    }
    [[unroll]] for (uint j = 0u; j < BLOCK; ++j) {
        [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e) {
            uint wide = e * BLOCK + j;
            if (TO_SPACE)
                set_element(made[wide / PER_VECTOR], wide % PER_VECTOR, element_of(given[j], e));
            else
                set_element(made[j], e, element_of(given[wide / PER_VECTOR], wide % PER_VECTOR));
        }
    }
    [[unroll]] for (uint j = 0u; j < BLOCK; ++j)
        if (!TO_SPACE || j == mine) out_vectors[to + j * (TO_SPACE ? 1u : between)] = made[j];
}
