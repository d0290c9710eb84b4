//@ op DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR DML_OPERATOR_DYNAMIC_QUANTIZE_LINEAR
//@ variants OP: quantize dequantize
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define INPUTS 3
#define PREPARES
#if defined(OP_quantize)
#define GUESSES
#endif
#define ATTRIBUTES
#include "include/elementwise.glsl"
#include "include/integers.glsl"
#include "include/typed.glsl"
#include "include/quantization.glsl"

// a is the element, b the scale, c the zero point (or 0).
const int LOWEST = IS_SIGNED(OUT_TYPE) ? -128 : 0;

// Whether all elements of a part have one scale and one zero point.
bool is_uniform() {
    if (!b_repeats) return false;
    return C_TYPE == 0u ? true : c_repeats;
}

uvec2 wide(uint bits, uint type) {
    return IS_SIGNED(type) ? widen(int(bits)) : uvec2(bits, 0u);
}

#if defined(OP_quantize)
float scale;
float inverse;
float inverse_rest;  // the exact reciprocal minus inverse
float least;  // x from which the result is the lowest number; ``most``: the highest
float most;
bool is_tame;

void prepare(uvec2 b, uvec2 c) {
    scale = number_of(b, B_TYPE);
    precise float rest = 0.0;
    if (HAS_EXACT_UNITS) {
        inverse = moderate_quotient(1.0, scale);
        rest = fma(-inverse, scale, 1.0) * inverse;
    } else {
        inverse = 1.0 / scale;
    }
    inverse_rest = rest;
    precise float low = float(LOWEST - int(c.x)) * scale;
    precise float high = float(LOWEST + 255 - int(c.x)) * scale;
    least = low;
    most = high;
    is_tame = is_moderate(scale) && sign_bit(scale) == 0u;
}

bool are_halves() {
    if (BYTES_OF(A_TYPE) == 2u) return BYTES_OF(B_TYPE) == 2u;
    return false;
}

// With a true fma. The first quotient is rarely wrong in its last bit, and never at a half if both
// numbers are FLOAT16. The reciprocal is correctly rounded, so the second quotient is, too (Markstein).
// The number is clamped first, so the result needs no clamping. NaN becomes the lowest number.
uint quantized_by_fma(float x, int zero_point) {
    float inside = min(max(x, least), most);
    precise float quotient = fma(inside, inverse, inside * inverse_rest);
    if (!are_halves()) quotient = fma(fma(-quotient, scale, inside), inverse, quotient);
    precise float shifted = quotient + 12582912.0;  // rounded to a whole number
    return floatBitsToUint(shifted) + uint(zero_point);
}

// A guess that is wrong only near halves. Beyond 512 the result is the type's lowest or highest number.
uint guessed(float x, int zero_point) {
    precise float guess = x * inverse;
    precise float near = clamp(guess, -1024.0, 1024.0);
    precise float shifted = near + 12582912.0;
    precise float rest = near - (shifted - 12582912.0);
    if (is_nan(guess) || !(magnitude(rest) < 0.499755859375)) unsure = true;
    return quantized(floatBitsToInt(shifted) - 0x4B400000, zero_point, OUT_TYPE);
}

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    if (!is_uniform()) prepare(b, c);
    float x = number_of(a, A_TYPE);
    if (!is_tame) unsure = true;
    return uvec2(HAS_EXACT_UNITS ? quantized_by_fma(x, int(c.x)) : guessed(x, int(c.x)), 0u);
}

uvec2 compute_exactly(uvec2 a, uvec2 b, uvec2 c) {
    int whole = whole_number(divide(number_of(a, A_TYPE), number_of(b, B_TYPE)));
    return uvec2(quantized(whole, int(c.x), OUT_TYPE), 0u);
}
#else
float scale;
float zero;

void prepare(uvec2 b, uvec2 c) {
    scale = number_of(b, B_TYPE);
    zero = float(int(c.x));
}

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    if (!is_uniform()) prepare(b, c);
    float difference;
    if (BYTES_OF(A_TYPE) < 4u) difference = float(int(a.x)) - zero;
    else difference = round_to_float(subtract64(wide(a.x, A_TYPE), wide(c.x, A_TYPE)), true);
    precise float x = difference * scale;
    return uvec2(bits_of(x, OUT_TYPE), 0u);
}
#endif
