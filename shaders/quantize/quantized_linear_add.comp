//@ op DML_OPERATOR_ELEMENT_WISE_QUANTIZED_LINEAR_ADD
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define INPUTS 2
#define PREPARES
#define GUESSES
#define ATTRIBUTES \
    uint a_scale_offset; uint a_zero_offset; uint b_scale_offset; uint b_zero_offset; \
    uint out_scale_offset; uint out_zero_offset;
#include "include/elementwise.glsl"
#include "include/quantization.glsl"

layout(constant_id = 6) const bool HAS_A_ZERO = false;
layout(constant_id = 8) const bool HAS_B_ZERO = false;
layout(constant_id = 9) const bool HAS_OUT_ZERO = false;

layout(binding = 3) readonly buffer AScale { uint a_scale[]; };
layout(binding = 4) readonly buffer AZero { uint a_zero[]; };
layout(binding = 5) readonly buffer BScale { uint b_scale[]; };
layout(binding = 6) readonly buffer BZero { uint b_zero[]; };
layout(binding = 7) readonly buffer OutScale { uint out_scale[]; };
layout(binding = 8) readonly buffer OutZero { uint out_zero[]; };

#define ZERO_POINT(words, offset, type) \
    extended((words[offset / 4u] >> (offset % 4u * 8u)) & 0xFFu, type)

// x * y + z rounded once. The parts that a float32 sum drops decide its last bit (round to odd), so
// that the last sum meets no false tie.
float multiply_add(float x, float y, float z) {
    if (HAS_EXACT_UNITS) return fma(x, y, z);
    PAIR product = pair_of_product(x, y);
    PAIR sum = pair_of_sum(product.x, z);
    PAIR rest = pair_of_sum(sum.y, product.y);
    uint bits = floatBitsToUint(rest.x);
    if (rest.y != 0.0 && (bits & 1u) == 0u)
        bits += (rest.y > 0.0) == (rest.x > 0.0) ? 1u : 0xFFFFFFFFu;
    precise float result = sum.x + uintBitsToFloat(bits);
    return result;
}

// As ONNX Runtime's CPU does it: the scales are brought to the output's first, and the zero points
// into one constant.
float a_ratio;
float b_ratio;
float fixed_part;
bool is_tame;  // no sum is NaN, or of more than 22 digits

void prepare(uvec2 b, uvec2 c) {
    float scale = uintBitsToFloat(out_scale[out_scale_offset]);
    a_ratio = divide(uintBitsToFloat(a_scale[a_scale_offset]), scale);
    b_ratio = divide(uintBitsToFloat(b_scale[b_scale_offset]), scale);
    float a_from = HAS_A_ZERO ? float(ZERO_POINT(a_zero, a_zero_offset, A_TYPE)) : 0.0;
    float b_from = HAS_B_ZERO ? float(ZERO_POINT(b_zero, b_zero_offset, B_TYPE)) : 0.0;
    float from = HAS_OUT_ZERO ? float(ZERO_POINT(out_zero, out_zero_offset, OUT_TYPE)) : 0.0;
    precise float b_part = b_ratio * b_from;
    precise float difference = from - multiply_add(a_ratio, a_from, b_part);
    fixed_part = difference;
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
    precise float shifted = sum_of_elements(a, b) + 12582912.0;  // whose last digit is 1
    return uvec2(quantized(floatBitsToInt(shifted) - 0x4B400000, 0, OUT_TYPE), 0u);
}

uvec2 compute_exactly(uvec2 a, uvec2 b, uvec2 c) {
    return uvec2(quantized(whole_number(sum_of_elements(a, b)), 0, OUT_TYPE), 0u);
}
