//@ op DML_OPERATOR_GATHER DML_OPERATOR_GATHER_ELEMENTS DML_OPERATOR_GATHER_ND DML_OPERATOR_GATHER_ND1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation copies PARTS blocks to the output, a workgroup's size apart. It reads all of them before
// it writes, so that many reads are in flight. ROWS: slices are rows of row_size blocks, the walk is of
// rows, and a workgroup copies a part of one row: index and divisions are the same for all of it. RUN: slices are rows that are contiguous
// in both tensors. The walk is of rows, and an invocation copies RUN vectors of one.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint UNIT = 4u;
layout(constant_id = 2) const uint INDEX_TYPE = 4u;
layout(constant_id = 3) const uint PARTS = 1u;
layout(constant_id = 4) const uint COORDINATES = 1u;  // that indices give for a block
layout(constant_id = 5) const uint RUN = 0u;
layout(constant_id = 6) const bool ROWS = false;
layout(push_constant) uniform Push {
    uint count;
    uint row_size;
    uint runs;  // of a row, or workgroups
    uint axes_at;  // where the params have size and stride of each coordinate's axis
    uint step;     // from one coordinate to the next, among the indices
    uint x_offset;
    uint indices_offset;
    uint y_offset;
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
WALK(walk, 3)

// Where a row begins in the output, and in the input.
uvec2 row_at(uint row) {
    uint[3] at = walk(0u, row);
    [[unroll]] for (uint c = 0u; c < COORDINATES; ++c) {
        Index index = index_along(indices_bits(indices_offset + at[1] + c * step), param(axes_at + 2u * c));
        at[2] += index.at * param(axes_at + 2u * c + 1u);
    }
    return uvec2(y_offset + at[0], x_offset + at[2]);
}

void copy_part() {
    uint group = group_index(), row = group / runs;
    if (row >= count) return;
    uvec2 begin = row_at(row);
    uint first = (group - row * runs) * gl_WorkGroupSize.x * PARTS + gl_LocalInvocationIndex;
    uvec4 block[PARTS];
    [[unroll]] for (uint p = 0u; p < PARTS; ++p)
        block[p] = load_block(begin.y + min(first + p * gl_WorkGroupSize.x, row_size - 1u));
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        uint at = first + p * gl_WorkGroupSize.x;
        if (at < row_size) store_block(begin.x + at, block[p]);
    }
}

void main() {
    if (ROWS) {
        copy_part();
        return;
    }
    if (RUN != 0u) {
        uint row = invocation_index() / runs;
        if (row >= count) return;
        uvec2 begin = row_at(row);
        copy_row_run(begin.y, begin.x, row_size, invocation_index() - row * runs, RUN);
        return;
    }
    uint first = group_index() * gl_WorkGroupSize.x * PARTS + gl_LocalInvocationIndex;
    if (first >= count) return;
    uint[3] at[PARTS];
    uvec4 block[PARTS];
    [[unroll]] for (uint p = 0u; p < PARTS; ++p)
        at[p] = walk(0u, min(first + p * gl_WorkGroupSize.x, count - 1u));
    [[unroll]] for (uint c = 0u; c < COORDINATES; ++c) {
        uint size = param(axes_at + 2u * c), stride = param(axes_at + 2u * c + 1u);
        [[unroll]] for (uint p = 0u; p < PARTS; ++p)
            at[p][2] += index_along(indices_bits(indices_offset + at[p][1] + c * step), size).at * stride;
    }
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) block[p] = load_block(x_offset + at[p][2]);
    [[unroll]] for (uint p = 0u; p < PARTS; ++p)
        if (first + p * gl_WorkGroupSize.x < count) store_block(y_offset + at[p][0], block[p]);
}
