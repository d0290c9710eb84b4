// The sums of ELEMENT_WISE_QUANTIZED_LINEAR_ADD, computed as by ONNX Runtime's CPU provider: both scales
// are divided by the output's scale first, and the zero points become one term.
#include "include/quantization.glsl"

// x * y + z, rounded once. Intermediate sums are rounded to odd, so that the last sum sees no false tie.
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

// With SCALARS_BINDING defined, six bindings hold scales and zero points, at offsets in push fields.
#if defined(SCALARS_BINDING)
layout(constant_id = 6) const bool HAS_A_ZERO = false;
layout(constant_id = 8) const bool HAS_B_ZERO = false;
layout(constant_id = 9) const bool HAS_OUT_ZERO = false;
layout(binding = SCALARS_BINDING) readonly buffer AScale { uint a_scale[]; };
layout(binding = SCALARS_BINDING + 1) readonly buffer AZero { uint a_zero[]; };
layout(binding = SCALARS_BINDING + 2) readonly buffer BScale { uint b_scale[]; };
layout(binding = SCALARS_BINDING + 3) readonly buffer BZero { uint b_zero[]; };
layout(binding = SCALARS_BINDING + 4) readonly buffer OutScale { uint out_scale[]; };
layout(binding = SCALARS_BINDING + 5) readonly buffer OutZero { uint out_zero[]; };

#define ZERO_POINT(words, offset, type) \
    extended((words[offset / 4u] >> (offset % 4u * 8u)) & 0xFFu, type)

// The factors of A and B, and the constant term.
vec3 sum_factors() {
    float scale = uintBitsToFloat(out_scale[out_scale_offset]);
    float a_ratio = divide(uintBitsToFloat(a_scale[a_scale_offset]), scale);
    float b_ratio = divide(uintBitsToFloat(b_scale[b_scale_offset]), scale);
    float a_from = HAS_A_ZERO ? float(ZERO_POINT(a_zero, a_zero_offset, A_TYPE)) : 0.0;
    float b_from = HAS_B_ZERO ? float(ZERO_POINT(b_zero, b_zero_offset, B_TYPE)) : 0.0;
    float from = HAS_OUT_ZERO ? float(ZERO_POINT(out_zero, out_zero_offset, OUT_TYPE)) : 0.0;
    precise float b_part = b_ratio * b_from;
    precise float difference = from - multiply_add(a_ratio, a_from, b_part);
    return vec3(a_ratio, b_ratio, difference);
}
#endif
