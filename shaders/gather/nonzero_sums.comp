//@ op DML_OPERATOR_NONZERO_COORDINATES
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// One workgroup replaces each count by the sum of the counts before it, and writes the sum of all.
layout(push_constant) uniform Push {
    uint count;
    uint counts_offset;
    uint total_offset;
};
#include "include/grid.glsl"
#include "include/scan.glsl"

layout(binding = 0) buffer Counts { uint counts[]; };
layout(binding = 1) writeonly buffer Total { uint total[]; };
WORKGROUP_SCAN(scan)

void main() {
    if (group_index() != 0u) return;
    uint before = 0u, i = gl_LocalInvocationIndex;
    for (uint first = 0u; first < count; first += 4u * gl_WorkGroupSize.x) {
        uint own[4], sum = 0u, all;
        uint at = first + 4u * i;
        [[unroll]] for (uint k = 0u; k < 4u; ++k) {
            own[k] = at + k < count ? counts[counts_offset + at + k] : 0u;
            sum += own[k];
        }
        uint from = before + scan(sum, all);
        [[unroll]] for (uint k = 0u; k < 4u; ++k) {
            if (at + k < count) counts[counts_offset + at + k] = from;
            from += own[k];
        }
        before += all;
    }
    if (i == 0u) total[total_offset] = before;
}
