//@ op DML_OPERATOR_DEPTH_TO_SPACE DML_OPERATOR_DEPTH_TO_SPACE1 DML_OPERATOR_SPACE_TO_DEPTH DML_OPERATOR_SPACE_TO_DEPTH1
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// BLOCK rows of the deep tensor are interleaved in a row of the wide one. From wide to deep, an
// invocation reads BLOCK vectors of the wide row and writes one vector to each deep row. In the other
// direction it reads one vector of each deep row and interleaves them. The workgroup exchanges the vectors
// that this makes, so that neighbours write neighbours.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint BLOCK = 2u;
layout(constant_id = 2) const bool TO_SPACE = true;
layout(constant_id = 3) const uint PARTS = 1u;  // of an invocation, from wide to deep
layout(constant_id = 4) const uint ROOM = 1u;  // vectors that a workgroup exchanges, with gaps
layout(constant_id = 5) const uint ROOM_PLACES = 1u;  // its invocations that exchange

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

shared uvec4 exchanged[ROOM];
shared uint places[(ROOM_PLACES + 3u) / 4u * 4u];  // where an invocation's vectors go

// With a gap after eight vectors, none of those that are accessed together share a bank.
uint spread(uint i) { return i + i / 8u; }

void interleave(uint index) {
    uint lane = gl_LocalInvocationID.x;
    uint[2] at = walk(0u, min(index, count - 1u));
    uint from = (x_offset + at[0]) / PER_VECTOR;
    places[lane] = (y_offset + at[1]) / PER_VECTOR;
    uvec4 given[BLOCK];
    [[unroll]] for (uint j = 0u; j < BLOCK; ++j) given[j] = x_vectors[from + j * (row_stride / PER_VECTOR)];
    uvec4 made[BLOCK];
    [[unroll]] for (uint j = 0u; j < BLOCK; ++j) made[j] = uvec4(0u);
    [[unroll]] for (uint j = 0u; j < BLOCK; ++j) {
        [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e) {
            uint wide = e * BLOCK + j;
            set_element(made[wide / PER_VECTOR], wide % PER_VECTOR, element_of(given[j], e));
        }
    }
    [[unroll]] for (uint j = 0u; j < BLOCK; ++j) exchanged[spread(lane * BLOCK + j)] = made[j];
    barrier();
    [[unroll]] for (uint j = 0u; j < BLOCK; ++j) {
        uint i = j * gl_WorkGroupSize.x + lane, owner = i / BLOCK;
        if (index - lane + owner < count) y_vectors[places[owner] + i % BLOCK] = exchanged[spread(i)];
    }
}

void separate(uint first) {
    uint to[PARTS];
    uvec4 given[PARTS * BLOCK];
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        uint[2] at = walk(0u, min(first + p * gl_WorkGroupSize.x, count - 1u));
        uint from = (x_offset + at[0]) / PER_VECTOR;
        to[p] = (y_offset + at[1]) / PER_VECTOR;
        [[unroll]] for (uint j = 0u; j < BLOCK; ++j) given[p * BLOCK + j] = x_vectors[from + j];
    }
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        if (first + p * gl_WorkGroupSize.x >= count) return;
        [[unroll]] for (uint j = 0u; j < BLOCK; ++j) {
            uvec4 made = uvec4(0u);
            [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e) {
                uint wide = e * BLOCK + j;
                set_element(made, e, element_of(given[p * BLOCK + wide / PER_VECTOR], wide % PER_VECTOR));
            }
            y_vectors[to[p] + j * (row_stride / PER_VECTOR)] = made;
        }
    }
}

void main() {
    uint first = group_index() * gl_WorkGroupSize.x * PARTS + gl_LocalInvocationID.x;
    if (TO_SPACE) interleave(first);
    else separate(first);
}
