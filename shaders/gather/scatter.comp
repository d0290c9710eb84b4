//@ op DML_OPERATOR_SCATTER DML_OPERATOR_SCATTER_ND
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Where several updates have the same place, the last one wins. There are three steps, each a dispatch.
// CLAIM: each update writes its number + 1 to the place's slot, where the largest stays. WRITE: the
// winners write their blocks. RELEASE: slots become 0 again.
#define PARAMS_BINDING 4
const uint CLAIM = 0u;
const uint WRITE = 1u;
const uint RELEASE = 2u;
layout(constant_id = 1) const uint UNIT = 4u;
layout(constant_id = 2) const uint INDEX_TYPE = 4u;
layout(constant_id = 3) const uint STEP = CLAIM;
layout(push_constant) uniform Push {
    uint count;
    uint coordinates;  // of a block that the indices give
    uint axes_at;      // where the params say size, stride and the slots' stride of each one's axis
    uint step;         // from one coordinate to the next, among the indices
    uint x_offset;
    uint indices_offset;
    uint y_offset;
    uint slots_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/indices.glsl"
#include "include/blocks.glsl"

INPUT_TENSOR(indices, 1, INDEX_TYPE)
layout(binding = 3) buffer Slots { uint slots[]; };
WALK(walk, 5)

void main() {
    uint i = invocation_index();
    if (i >= count) return;
    uint[5] at = walk(0u, i);
    uint to = y_offset + at[2], number = at[3] + 1u, slot = slots_offset + at[4];
    for (uint c = 0u; c < coordinates; ++c) {
        uint axis = axes_at + 3u * c;
        Index index = index_along(indices_bits(indices_offset + at[1] + c * step), param(axis));
        if (!index.inside) return;
        to += index.at * param(axis + 1u);
        slot += index.at * param(axis + 2u);
    }
    if (STEP == CLAIM) atomicMax(slots[slot], number);
    else if (STEP == RELEASE) slots[slot] = 0u;
    else if (slots[slot] == number) store_block(to, load_block(x_offset + at[0]));
}
