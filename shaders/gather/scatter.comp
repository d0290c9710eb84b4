//@ op DML_OPERATOR_SCATTER DML_OPERATOR_SCATTER_ND
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// The last of several updates of a place wins. There are three dispatches. CLAIM: each update writes its
// number + 1 to the place's slot, where the largest number stays. WRITE: the winners write their blocks.
// RELEASE: slots become 0 again. RUN: the blocks that are written are rows that
// are contiguous in both tensors. The walk is of rows, and an invocation copies RUN vectors of one.
#define PARAMS_BINDING 4
const uint CLAIM = 0u;
const uint WRITE = 1u;
const uint RELEASE = 2u;
layout(constant_id = 1) const uint UNIT = 4u;
layout(constant_id = 2) const uint INDEX_TYPE = 4u;
layout(constant_id = 3) const uint STEP = CLAIM;
layout(constant_id = 4) const uint COORDINATES = 1u;  // that indices give for a block
layout(constant_id = 5) const uint RUN = 0u;
layout(push_constant) uniform Push {
    uint count;
    uint row_size;
    uint runs;  // of a row
    uint axes_at;  // where the params have size, stride and slots' stride of each axis
    uint step;     // from one coordinate to the next, among the indices
    uint x_offset;
    uint indices_offset;
    uint y_offset;
    uint slots_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/indices.glsl"
#include "include/blocks.glsl"
#define RUN_BYTES UNIT
#include "include/runs.glsl"

INPUT_TENSOR(indices, 1, INDEX_TYPE)
layout(binding = 3) buffer Slots { uint slots[]; };
WALK(walk, 5)

void main() {
    uint i = invocation_index(), part = 0u;
    if (RUN != 0u) {
        part = i;
        i /= runs;
        part -= i * runs;
    }
    if (i >= count) return;
    uint[5] at = walk(0u, i);
    uint to = y_offset + at[2], number = at[3] + 1u, slot = slots_offset + at[4];
    [[unroll]] for (uint c = 0u; c < COORDINATES; ++c) {
        uint axis = axes_at + 3u * c;
        Index index = index_along(indices_bits(indices_offset + at[1] + c * step), param(axis));
        if (!index.inside) return;
        to += index.at * param(axis + 1u);
        slot += index.at * param(axis + 2u);
    }
    if (STEP == CLAIM) atomicMax(slots[slot], number);
    else if (STEP == RELEASE) slots[slot] = 0u;
    else if (slots[slot] != number) return;
    else if (RUN != 0u) copy_row_run(x_offset + at[0], to, row_size, part, RUN);
    else store_block(to, load_block(x_offset + at[0]));
}
