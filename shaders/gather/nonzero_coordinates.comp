//@ op DML_OPERATOR_NONZERO_COORDINATES
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A workgroup lists the marked elements of a block in order and writes their coordinates.
#define PARAMS_BINDING 3
layout(constant_id = 1) const bool PAIRS = false;  // two contiguous coordinates
layout(push_constant) uniform Push {
    uint blocks;
    uint coordinates;
    uint row_stride;
    uint column_stride;
    uint marks_offset;
    uint counts_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/scan.glsl"

layout(binding = 0) readonly buffer Marks { uint marks[]; };
layout(binding = 1) readonly buffer Counts { uint counts[]; };
layout(binding = 2) writeonly buffer Words { uint y_words[]; };
layout(binding = 2) writeonly buffer Doubles { uvec2 y_pairs[]; };
WORKGROUP_SCAN(scan)

const uint BLOCK = 4096u;
shared uint s_list[BLOCK];

void main() {
    uint block = group_index(), i = gl_LocalInvocationIndex;
    if (block >= blocks) return;
    // Each of the 256 invocations takes half a word.
    uint bits = marks[marks_offset + block * (BLOCK / 32u) + i / 2u] >> (i % 2u * 16u) & 0xFFFFu;
    uint found;
    uint at = scan(uint(bitCount(bits)), found);
    while (bits != 0u) {
        uint bit = uint(findLSB(bits));
        s_list[at++] = i * 16u + bit;
        bits &= bits - 1u;
    }
    barrier();
    uint row = counts[counts_offset + block];
    for (uint r = i; r < found; r += gl_WorkGroupSize.x) {
        uint left = block * BLOCK + s_list[r];
        if (PAIRS) {
            uint next = walk_quotient(left, param(1u), param(2u));
            y_pairs[(y_offset >> 1u) + row + r] = uvec2(next, left - next * param(0u));
            continue;
        }
        uint to = y_offset + (row + r) * row_stride;
        for (uint d = 0u; d < coordinates; ++d) {  // from the last one
            uint size = param(3u * d);
            uint next = size == 1u ? left : walk_quotient(left, param(3u * d + 1u), param(3u * d + 2u));
            y_words[to + (coordinates - 1u - d) * column_stride] = left - next * size;
            left = next;
        }
    }
}
