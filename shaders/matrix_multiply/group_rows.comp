//@ op -
#version 450
#extension GL_GOOGLE_include_directive : require
// Sorts rows by their groups into tiles of EACH rows, of one group each. A workgroup serves a group: it counts
// the rows of all groups, and knows by these which tiles are its own. Rows keep their order. One more workgroup
// serves the tiles that have no rows, and the rows that have no group.
layout(constant_id = 1) const uint GROUPS = 1u;
layout(constant_id = 2) const uint EACH = 1u;
layout(push_constant) uniform Push {
    uint count;  // of rows
    uint step;  // words between indices
    uint tiles;
    uint per;  // so many neighbours are one row of the product's A
    uint filler;  // the row at a place that has none
    uint indices_offset;
    uint of_tiles_offset;
    uint rows_offset;
    uint places_offset;
};
#include "include/grid.glsl"
layout(binding = 0) readonly buffer Indices { uint indices[]; };
layout(binding = 1) writeonly buffer OfTiles { uint of_tiles[]; };
layout(binding = 2) writeonly buffer Rows { uint rows[]; };
layout(binding = 3) writeonly buffer Places { uint places[]; };

const uint INVOCATIONS = gl_WorkGroupSize.x;
shared uint s_counts[GROUPS + 1u];
shared uint s_before, s_all;  // tiles
shared uint s_own[INVOCATIONS];

uint group_of(uint row) { return min(indices[indices_offset + row * step], GROUPS); }

uint tiles_of(uint group) { return (s_counts[group] + EACH - 1u) / EACH; }

void main() {
    uint own = group_index(), lane = gl_LocalInvocationIndex;
    if (own > GROUPS) return;
    for (uint g = lane; g <= GROUPS; g += INVOCATIONS) s_counts[g] = 0u;
    if (lane == 0u) s_before = s_all = 0u;
    barrier();
    for (uint row = lane; row < count; row += INVOCATIONS) atomicAdd(s_counts[group_of(row)], 1u);
    barrier();
    for (uint g = lane; g < GROUPS; g += INVOCATIONS) {
        atomicAdd(s_all, tiles_of(g));
        if (g < own) atomicAdd(s_before, tiles_of(g));
    }
    // Each invocation has neighbouring rows.
    uint part = (count + INVOCATIONS - 1u) / INVOCATIONS;
    uint begin = min(lane * part, count), end = min(begin + part, count), found = 0u;
    for (uint row = begin; row < end; ++row) found += uint(group_of(row) == own);
    s_own[lane] = found;
    barrier();
    for (uint d = 1u; d < INVOCATIONS; d *= 2u) {
        uint more = lane >= d ? s_own[lane - d] : 0u;
        barrier();
        s_own[lane] += more;
        barrier();
    }
    bool has_group = own < GROUPS;
    uint first = s_before, last = has_group ? first + tiles_of(own) : tiles;
    uint at = first * EACH + s_own[lane] - found;
    for (uint row = begin; row < end; ++row)
        if (group_of(row) == own) {
            places[places_offset + row] = has_group ? at : 0u;
            if (has_group) rows[rows_offset + at] = row / per;
            ++at;
        }
    uint filled = first * EACH + (has_group ? s_own[INVOCATIONS - 1u] : 0u);
    for (uint at = filled + lane; at < last * EACH; at += INVOCATIONS) rows[rows_offset + at] = filler;
    for (uint tile = first + lane; tile < last; tile += INVOCATIONS)
        of_tiles[of_tiles_offset + tile] = min(own, GROUPS - 1u);
    if (!has_group && lane == 0u) of_tiles[of_tiles_offset + tiles] = s_all;
}
