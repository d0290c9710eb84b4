//@ op DML_OPERATOR_SCATTER_REDUCE DML_OPERATOR_SCATTER_ND_REDUCE
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// The place that each update aims at, as one number: its key. Where an index is outside, it is ``places``.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint INDEX_TYPE = 4u;
layout(constant_id = 2) const uint COORDINATES = 1u;  // that the indices give
layout(push_constant) uniform Push {
    uint count;    // of updates
    uint places;
    uint axes_at;  // where the params have size and the places' stride of each coordinate
    uint step;     // from one coordinate to the next, among the indices
    uint indices_offset;
    uint keys_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/indices.glsl"

INPUT_TENSOR(indices, 0, INDEX_TYPE)
layout(binding = 1) writeonly buffer Keys { uint keys[]; };
// indices, places
WALK(walk, 2)

void main() {
    uint i = invocation_index();
    if (i >= count) return;
    uint[2] at = walk(0u, i);
    uint key = at[1];
    bool inside = true;
    [[unroll]] for (uint c = 0u; c < COORDINATES; ++c) {
        uint axis = axes_at + 2u * c;
        Index index = index_along(indices_bits(indices_offset + at[0] + c * step), param(axis));
        inside = inside && index.inside;
        key += index.at * param(axis + 1u);
    }
    keys[keys_offset + i] = inside ? key : places;
}
