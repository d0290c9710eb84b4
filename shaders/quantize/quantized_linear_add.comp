//@ op DML_OPERATOR_ELEMENT_WISE_QUANTIZED_LINEAR_ADD
//@ variants FROM: scalars factors
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// FROM scalars: the factors are computed here from six scalars, which takes 9 bindings. FROM factors:
// quantized_linear_add_factors has computed them.
#define INPUTS 2
#define PREPARES
#define GUESSES
#if defined(FROM_scalars)
#define ATTRIBUTES \
    uint a_scale_offset; uint a_zero_offset; uint b_scale_offset; uint b_zero_offset; \
    uint out_scale_offset; uint out_zero_offset;
#define SCALARS_BINDING 3
#else
#define ATTRIBUTES uint factors_offset;
#endif
#include "include/elementwise.glsl"
#include "include/quantized_linear_add.glsl"
#if !defined(FROM_scalars)
layout(binding = 3) readonly buffer Factors { float factors[]; };

vec3 sum_factors() {
    return vec3(factors[factors_offset], factors[factors_offset + 1u], factors[factors_offset + 2u]);
}
#endif

float a_ratio;
float b_ratio;
float fixed_part;
bool is_tame;  // no sum is NaN or has more than 22 digits

void prepare(uvec2 b, uvec2 c) {
    vec3 known = sum_factors();
    a_ratio = known.x;
    b_ratio = known.y;
    fixed_part = known.z;
    is_tame = magnitude(a_ratio) < 4096.0 && magnitude(b_ratio) < 4096.0
        && magnitude(fixed_part) < 1048576.0 && !is_nan(a_ratio + b_ratio + fixed_part);
}

float float_of(uint bits, uint type) {
    return IS_SIGNED(type) ? float(int(bits)) : float(bits);
}

float sum_of_elements(uvec2 a, uvec2 b) {
    return multiply_add(float_of(a.x, A_TYPE), a_ratio,
                        multiply_add(float_of(b.x, B_TYPE), b_ratio, fixed_part));
}

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    unsure = !is_tame;
    precise float shifted = sum_of_elements(a, b) + 12582912.0;  // rounded to a whole number
    return uvec2(quantized(floatBitsToInt(shifted) - 0x4B400000, 0, OUT_TYPE), 0u);
}

uvec2 compute_exactly(uvec2 a, uvec2 b, uvec2 c) {
    return uvec2(quantized(whole_number(sum_of_elements(a, b)), 0, OUT_TYPE), 0u);
}
