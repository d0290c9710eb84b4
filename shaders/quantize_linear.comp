//@ op DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR DML_OPERATOR_DYNAMIC_QUANTIZE_LINEAR
//@ variants OP: quantize dequantize
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define INPUTS 3
#define ATTRIBUTES
#include "include/elementwise.glsl"
#include "include/integers.glsl"
#include "include/float16.glsl"
#include "include/quantization.glsl"

// a is what is converted, b its scale, c its zero point (or 0).
float float_of(uvec2 bits, uint type) {
    if (!IS_FLOAT(type)) return round_to_float(widen(int(bits.x)), true);
    return BYTES_OF(type) == 2u ? half_to_float(bits.x) : uintBitsToFloat(bits.x);
}

uvec2 wide(uint bits, uint type) {
    return IS_SIGNED(type) ? widen(extended(bits, type)) : uvec2(bits, 0u);
}

uvec2 quantize(uvec2 a, uvec2 b, uvec2 c) {
    float x = divide(float_of(a, A_TYPE), float_of(b, B_TYPE));
    return uvec2(quantized(rounded(x, true), extended(c.x, OUT_TYPE), OUT_TYPE), 0u);
}

uvec2 dequantize(uvec2 a, uvec2 b, uvec2 c) {
    uvec2 apart = subtract64(wide(a.x, A_TYPE), wide(c.x, A_TYPE));
    precise float x = round_to_float(apart, true) * float_of(b, B_TYPE);
    return uvec2(BYTES_OF(OUT_TYPE) == 2u ? float_to_half(x) : floatBitsToUint(x), 0u);
}

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    return OP(a, b, c);
}
