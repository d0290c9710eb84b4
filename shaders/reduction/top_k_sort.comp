//@ op DML_OPERATOR_TOP_K DML_OPERATOR_TOP_K1
//@ variants STEP: load local global store
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Sorts whole rows in memory, for a large K, by a bitonic network. The number of entries in a row is a
// power of two. Step local does all stages within the block of a workgroup, step global one stage.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint INDEX_TYPE = 4u;
layout(constant_id = 3) const bool LEAST = false;
layout(push_constant) uniform Push {
    uint rows;
    uint columns;
    uint padded;  // entries of a row: a power of two
    uint k;
    uint first_run;  // step local makes sorted runs of this length, ...
    uint last_run;  // ... and then longer ones, up to this
    uint distance;  // of the entries that the first stage compares
    uint x_stride;
    uint y_stride;
    uint z_stride;
    uint x_offset;
    uint y_offset;
    uint z_offset;
    uint entries_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/entries.glsl"

OUTPUT_TENSOR(y, 1, TYPE)
OUTPUT_TENSOR(z, 2, INDEX_TYPE)
layout(binding = 3) buffer Entries { uint entries[]; };
WALK(walk, 3)

uvec3 load_entry(uint i) {
    uint at = entries_offset + 3u * i;
    return uvec3(entries[at], entries[at + 1u], entries[at + 2u]);
}

void store_entry(uint i, uvec3 e) {
    for (uint w = 0u; w < 3u; ++w) entries[entries_offset + 3u * i + w] = e[w];
}

#if defined(STEP_load)
void main() {
    uint i = invocation_index();
    if (i >= rows * padded) return;
    uint row = i / padded, c = i % padded;
    // The row is filled up with entries that come last.
    store_entry(i, c < columns ? entry_of(x_bits(x_offset + walk(0u, row)[0] + c * x_stride), c)
                               : uvec3(0u));
}
#elif defined(STEP_store)
void main() {
    uint i = invocation_index();
    if (i >= rows * k) return;
    uint row = i / k, rank = i % k;
    uint[3] at = walk(0u, row);
    uint c = ~load_entry(row * padded + rank).z;
    y_store_bits(y_offset + at[1] + rank * y_stride, x_bits(x_offset + at[0] + c * x_stride));
    z_store_bits(z_offset + at[2] + rank * z_stride, uvec2(c, 0u));
}
#elif defined(STEP_global)
void main() {
    uint i = invocation_index();
    if (i >= rows * padded / 2u) return;
    uint a = i / distance * 2u * distance + i % distance, b = a + distance;
    uvec3 x = load_entry(a), y = load_entry(b);
    bool ascending = (a & padded - 1u & last_run) != 0u;
    if (comes_before(y, x) != ascending) {
        store_entry(a, y);
        store_entry(b, x);
    }
}
#else
shared uvec3 s_entries[2u * gl_WorkGroupSize.x];

void main() {
    uint i = gl_LocalInvocationIndex, size = gl_WorkGroupSize.x;
    uint block = group_index() * 2u * size;
    if (block >= rows * padded) return;
    s_entries[i] = load_entry(block + i);
    s_entries[i + size] = load_entry(block + size + i);
    for (uint run = first_run; run <= last_run; run *= 2u) {
        for (uint distance = min(run / 2u, size); distance > 0u; distance /= 2u) {
            barrier();
            uint a = i / distance * 2u * distance + i % distance, b = a + distance;
            bool ascending = (block + a & padded - 1u & run) != 0u;
            uvec3 x = s_entries[a], y = s_entries[b];
            if (comes_before(y, x) != ascending) {
                s_entries[a] = y;
                s_entries[b] = x;
            }
        }
        if (run == 0x80000000u) break;
    }
    barrier();
    store_entry(block + i, s_entries[i]);
    store_entry(block + size + i, s_entries[i + size]);
}
#endif
