//@ op -
//@ glslang >= 14
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require
// Which elements of 16 x 16 matrices an invocation of a subgroup of 32 holds, for runtime/fragments.py: of a left
// operand, of a right operand and of a sum, in this order. An element's number is 16 * row + column. A result is
// the number of an element, or NOTHING, by matrix, place in the invocation, and invocation.
layout(binding = 0) writeonly buffer Results { uint results[]; };
layout(push_constant) uniform Push { uint y_offset; };
#include "include/grid.glsl"

const uint NOTHING = 256u;
const int MOST = 8;
shared uint s_halves[128];
shared float s_floats[256];

#define TELL(matrix, number) \
    [[unroll]] for (int i = 0; i < MOST; ++i) \
        results[y_offset + (number * uint(MOST) + uint(i)) * 32u + lane] = \
            matrix.length() == MOST ? uint(float(matrix[i])) : NOTHING;

void main() {
    const uint lane = gl_LocalInvocationIndex;
    for (uint n = lane; n < 128u; n += 32u) s_halves[n] = packHalf2x16(vec2(2u * n, 2u * n + 1u));
    for (uint n = lane; n < 256u; n += 32u) s_floats[n] = float(n);
    barrier();
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> left;
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> right;
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sum;
    coopMatLoad(left, s_halves, 0u, 8u, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(right, s_halves, 0u, 8u, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(sum, s_floats, 0u, 16u, gl_CooperativeMatrixLayoutRowMajor);
    TELL(left, 0u)
    TELL(right, 1u)
    TELL(sum, 2u)
}
