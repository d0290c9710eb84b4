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

// The quotient as a whole number. Its exact digits matter near halves only, where a guess that is some
// ulp off may be on the wrong side.
int whole_quotient(float x, float y) {
    precise float inverse = 1.0 / y;
    precise float guess = x * inverse;
    if (is_moderate(y) && magnitude(guess) < 512.0) {
        precise float shifted = guess + 12582912.0;  // whose last digit is 1
        precise float whole = shifted - 12582912.0;
        if (magnitude(magnitude(guess - whole) - 0.5) > 0.000244140625)
            return floatBitsToInt(shifted) - 0x4B400000;
    }
    return whole_number(divide(x, y));
}

uvec2 quantize(uvec2 a, uvec2 b, uvec2 c) {
    int x = whole_quotient(float_of(a, A_TYPE), float_of(b, B_TYPE));
    return uvec2(quantized(x, extended(c.x, OUT_TYPE), OUT_TYPE), 0u);
}

uvec2 dequantize(uvec2 a, uvec2 b, uvec2 c) {
    float apart;
    if (BYTES_OF(A_TYPE) < 4u) apart = float(extended(a.x, A_TYPE) - extended(c.x, A_TYPE));
    else apart = round_to_float(subtract64(wide(a.x, A_TYPE), wide(c.x, A_TYPE)), true);
    precise float x = apart * float_of(b, B_TYPE);
    return uvec2(BYTES_OF(OUT_TYPE) == 2u ? float_to_half(x) : floatBitsToUint(x), 0u);
}

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    return OP(a, b, c);
}
