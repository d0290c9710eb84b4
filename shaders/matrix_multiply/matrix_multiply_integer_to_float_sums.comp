//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT DML_OPERATOR_MATRIX_MULTIPLY_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require
const uint INVOCATIONS = 256u;
layout(local_size_x = INVOCATIONS) in;
#include "include/grid.glsl"
#include "include/dot_product.glsl"

// Sums rows that need no repacking: whole vectors of 16 elements along K. As in the repacking shader, a
// sum has a part for each `chunk` elements. A team of invocations computes a part.

layout(binding = 0) readonly buffer Matrix { uvec4 matrix[]; };
layout(binding = 1) writeonly buffer Sums { int sums[]; };

layout(push_constant) uniform Push {
    uint batches;
    uint rows;
    uint K;
    uint chunk;
    uint strides[2];  // batch, row
    uint is_signed;
    uint matrix_offset;
    uint sums_offset;
};

const uint TEAM = 32u;
const uint TEAMS = INVOCATIONS / TEAM;
const uint TOGETHER = 4u;  // vectors read at once
shared int s_sums[TEAMS];

void main() {
    uint chunks = (K - 1u) / chunk + 1u;
    uint team = gl_LocalInvocationIndex / TEAM, member = gl_LocalInvocationIndex % TEAM;
    uint all_rows = batches * rows;
    uint task = group_index() * TEAMS + team;  // (chunk, batch, row), in the order of the sums
    uint mine = min(task, chunks * all_rows - 1u);
    uint begin = mine / all_rows * chunk;
    uint count = min(chunk, K - begin) / 16u;
    uint from = (matrix_offset + mine % all_rows / rows * strides[0] +
                 mine % rows * strides[1] + begin) / 16u;
    if (member == 0u) s_sums[team] = 0;
    barrier();
    int sum = 0;
    for (uint i = member; i < count; i += TEAM * TOGETHER) {
        uvec4 x[TOGETHER];
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n)
            x[n] = matrix[from + min(i + n * TEAM, count - 1u)];
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            if (is_signed == 0u) x[n] ^= 0x80808080u;
            sum += dot_product(x[n], uvec4(i + n * TEAM < count ? ONES : 0u));
        }
    }
    atomicAdd(s_sums[team], sum);
    barrier();
    if (member == 0u && task == mine) sums[sums_offset + task] = s_sums[team];
}
