//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require
const uint INVOCATIONS = 256u;
layout(local_size_x = INVOCATIONS) in;
#include "include/grid.glsl"
#include "include/dot_product.glsl"

// Sums of the lines of A and of B that need no preparation: whole vectors of 16 elements along the
// depth. As the preparing shader, it gives them in parts of `chunk` elements: a team of invocations
// to each. A comes first; without lines, a side takes no workgroups.

layout(binding = 0) readonly buffer A { uvec4 a_vectors[]; };
layout(binding = 1) readonly buffer B { uvec4 b_vectors[]; };
layout(binding = 2) writeonly buffer ASums { int a_sums[]; };
layout(binding = 3) writeonly buffer BSums { int b_sums[]; };

layout(push_constant) uniform Push {
    uint depth;
    uint chunk;
    uint a_batches;
    uint a_lines;
    uint a_strides[2];  // batch, line
    uint a_signed;
    uint a_offset;
    uint a_sums_offset;
    uint b_batches;
    uint b_lines;
    uint b_strides[2];
    uint b_signed;
    uint b_offset;
    uint b_sums_offset;
};

const uint TEAM = 32u;
const uint TEAMS = INVOCATIONS / TEAM;
const uint TOGETHER = 4u;  // vectors on their way
shared int s_sums[TEAMS];

void sum_lines(bool of_a, uint task) {
    uint lines = of_a ? a_lines : b_lines;
    uint all_lines = lines * (of_a ? a_batches : b_batches);
    uint mine = min(task, ((depth - 1u) / chunk + 1u) * all_lines - 1u);  // (chunk, batch, line)
    uint begin = mine / all_lines * chunk;
    uint count = min(chunk, depth - begin) / 16u;
    uint batch = mine % all_lines / lines, line = mine % lines;
    uint from = (of_a ? a_offset + batch * a_strides[0] + line * a_strides[1]
                      : b_offset + batch * b_strides[0] + line * b_strides[1]) + begin;
    from /= 16u;
    uint flips = (of_a ? a_signed : b_signed) != 0u ? 0u : 0x80808080u;
    uint team = gl_LocalInvocationIndex / TEAM, member = gl_LocalInvocationIndex % TEAM;
    int sum = 0;
    for (uint i = member; i < count; i += TEAM * TOGETHER) {
        uvec4 x[TOGETHER];
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            uint at = from + min(i + n * TEAM, count - 1u);
            x[n] = of_a ? a_vectors[at] : b_vectors[at];
        }
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n)
            sum += dot_product(x[n] ^ flips, uvec4(i + n * TEAM < count ? ONES : 0u));
    }
    atomicAdd(s_sums[team], sum);
    barrier();
    if (member != 0u || task != mine) return;
    if (of_a) a_sums[a_sums_offset + task] = s_sums[team];
    else b_sums[b_sums_offset + task] = s_sums[team];
}

void main() {
    uint team = gl_LocalInvocationIndex / TEAM;
    if (gl_LocalInvocationIndex % TEAM == 0u) s_sums[team] = 0;
    barrier();
    uint a_groups = (((depth - 1u) / chunk + 1u) * a_batches * a_lines + TEAMS - 1u) / TEAMS;
    uint group = group_index();
    if (group < a_groups) sum_lines(true, group * TEAMS + team);
    else sum_lines(false, (group - a_groups) * TEAMS + team);
}
