//@ op DML_OPERATOR_ONE_HOT
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation writes PARTS groups of EACH neighbouring elements (one element, or a vector), a
// workgroup's size apart. ROWS: groups are vectors of contiguous rows along the axis, and indices are
// contiguous, so no walk is needed.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint TYPE = 4u;
layout(constant_id = 2) const uint INDEX_TYPE = 4u;
layout(constant_id = 3) const uint EACH = 1u;
layout(constant_id = 4) const uint PARTS = 1u;
layout(constant_id = 5) const bool ROWS = false;
layout(push_constant) uniform Push {
    uint count;  // groups
    uint depth;
    uint on_at;          // the distance from the off value to the on value
    uint position_step;  // from one element of a group to the next: along the axis
    uint index_step;     // and in the indices
    uint indices_offset;
    uint values_offset;
    uint y_offset;
    uint params_offset;
    uint per_row[3];  // groups; then multiplier and shift to divide by them
};
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/indices.glsl"

INPUT_TENSOR(indices, 0, INDEX_TYPE)
INPUT_TENSOR(values, 1, TYPE)
OUTPUT_TENSOR(y, 2, TYPE)
WALK(walk, 3)

void make_group(uint i, uvec2 off, uvec2 on) {
    uint[3] at = walk(0u, i);
    uvec4 vector = uvec4(0u);
    Index index;
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        if (e == 0u || index_step != 0u)
            index = index_along(indices_bits(indices_offset + at[1] + e * index_step), depth);
        bool hot = index.inside && index.at == at[2] + e * position_step;
        uvec2 bits = hot ? on : off;
        if (EACH == 1u) {
            y_store_bits(y_offset + at[0], bits);
        } else if (EACH == 2u) {
            if (e == 0u) vector.xy = bits;
            else vector.zw = bits;
        } else {
            const uint width = 128u / EACH;
            uint begin = e * width;
            vector[begin / 32u] = bitfieldInsert(vector[begin / 32u], bits.x, int(begin % 32u), int(width));
        }
    }
    if (EACH != 1u) y_vectors[(y_offset + at[0]) / EACH] = vector;
}

void make_rows(uint first, uvec2 off, uvec2 on) {
    uint at[PARTS];
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        uint i = min(first + p * gl_WorkGroupSize.x, count - 1u);
        uint row = per_row[0] == 1u ? i : walk_quotient(i, per_row[1], per_row[2]);
        Index index = index_along(indices_bits(indices_offset + row), depth);
        // The distance from the vector's first element to the hot one; EACH or more if none is hot.
        at[p] = index.inside ? index.at - (i - row * per_row[0]) * EACH : EACH;
    }
    const uint width = 128u / EACH;
    uvec4 cold = EACH == 2u ? off.xyxy : uvec4(off.x);
    if (width < 32u) cold *= width == 16u ? 0x00010001u : 0x01010101u;
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        uint i = first + p * gl_WorkGroupSize.x;
        if (i >= count) return;
        uvec4 vector = cold;
        if (at[p] < EACH) {
            [[unroll]] for (uint w = 0u; w < 4u; ++w) {
                if (EACH == 2u) {
                    if (w / 2u == at[p]) vector[w] = on[w % 2u];
                } else if (at[p] * width / 32u == w) {
                    vector[w] = bitfieldInsert(vector[w], on.x, int(at[p] * width % 32u), int(min(width, 32u)));
                }
            }
        }
        y_vectors[y_offset / EACH + i] = vector;
    }
}

void main() {
    uint first = group_index() * gl_WorkGroupSize.x * PARTS + gl_LocalInvocationIndex;
    uvec2 off = values_bits(values_offset), on = values_bits(values_offset + on_at);
    if (ROWS) {
        make_rows(first, off, on);
        return;
    }
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        uint i = first + p * gl_WorkGroupSize.x;
        if (i < count) make_group(i, off, on);
    }
}
