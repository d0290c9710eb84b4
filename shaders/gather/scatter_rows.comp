//@ op DML_OPERATOR_SCATTER
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A workgroup writes one row along the axis. It notes the last update of each element in shared memory,
// then writes the row in order. All tensors are contiguous along the axis. EVEN: their rows also consist
// of whole vectors.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 4u;
layout(constant_id = 2) const uint INDEX_TYPE = 4u;
layout(constant_id = 3) const uint ROOM = 1u;  // for a row
layout(constant_id = 4) const bool EVEN = false;
layout(push_constant) uniform Push {
    uint rows;
    uint size;     // of a row: the axis
    uint updates;  // in a row
    uint updates_offset;
    uint indices_offset;
    uint x_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/indices.glsl"

INPUT_TENSOR(updates, 0, TYPE)
INPUT_TENSOR(indices, 1, INDEX_TYPE)
INPUT_TENSOR(x, 2, TYPE)
OUTPUT_TENSOR(y, 3, TYPE)
WALK(walk, 4)

shared uint s_last[ROOM];  // the update's number + 1

void note(uvec2 bits, uint number) {
    Index index = index_along(bits, size);
    if (index.inside) atomicMax(s_last[index.at], number + 1u);
}

void note_vector(uvec4 v, uint number) {
    if (BYTES_OF(INDEX_TYPE) == 8u) {
        note(v.xy, number);
        note(v.zw, number + 1u);
    } else {
        [[unroll]] for (uint e = 0u; e < 4u; ++e) note(uvec2(v[e], 0u), number + e);
    }
}

void main() {
    uint row = group_index();
    if (row >= rows) return;
    uint[4] at = walk(0u, row);
    uint first = gl_LocalInvocationIndex, step = gl_WorkGroupSize.x;
    uint update = updates_offset + at[0], index = indices_offset + at[1];
    uint from = x_offset + at[2], to = y_offset + at[3];
    for (uint e = first; e < size; e += step) s_last[e] = 0u;
    barrier();
    if (EVEN) {
        const uint each = 16u / BYTES_OF(INDEX_TYPE);
        [[unroll]] for (uint i = first; i < updates / each; i += step)
            note_vector(indices_vectors[index / each + i], i * each);
    } else {
        for (uint i = first; i < updates; i += step) note(indices_bits(index + i), i);
    }
    barrier();
    if (EVEN) {  // by words, or halves of words
        const uint each = 16u / BYTES_OF(TYPE), bits = 8u * BYTES_OF(TYPE);
        for (uint i = first; i < size / each; i += step) {
            uvec4 v = x_vectors[from / each + i];
            [[unroll]] for (uint e = 0u; e < each; ++e) {
                uint last = s_last[i * each + e];
                if (last == 0u) continue;
                uint x = updates_bits(update + last - 1u).x;
                if (bits == 32u) v[e] = x;
                else v[e / 2u] = bitfieldInsert(v[e / 2u], x, int(e % 2u * 16u), 16);
            }
            y_vectors[to / each + i] = v;
        }
    } else {
        for (uint e = first; e < size; e += step) {
            uint last = s_last[e];
            y_store_bits(to + e, last == 0u ? x_bits(from + e) : updates_bits(update + last - 1u));
        }
    }
}
