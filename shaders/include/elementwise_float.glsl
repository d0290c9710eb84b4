// FLOAT32 and FLOAT16 operators, computed in float32 and rounded once. Outputs of integer types are
// truth values or whole numbers.
// With COMPUTES defined, the includer defines compute() and the other needs of include/elementwise.glsl.
#ifndef COMPUTES
#define INPUTS 2
#define ATTRIBUTES uint scale; uint bias; uint attributes[5];
#define PARAMETER(i) uintBitsToFloat(attributes[i])
#endif
#include "include/elementwise.glsl"
#include "include/typed.glsl"
// A FLOAT16 result needs fewer digits.
const uint KNOWN_TYPE = EXACT_UNITS ? OUT_TYPE : 0u;
const bool SHORT = KNOWN_TYPE == 34u;
#include "include/exponentials.glsl"
#include "include/angles.glsl"
#include "include/sigmoids.glsl"
#include "include/short_functions.glsl"
#include "include/powers.glsl"

layout(constant_id = 6) const bool HAS_SCALE_BIAS = false;

float parameter(uint i) {
    return PARAMETER(i);
}

float number(bool x) {
    return x ? 1.0 : 0.0;
}

// Whether ``rest`` = x - y * round(x / y) is surely exact: fma is true and the quotient is small.
bool nearest_rest(float x, float y, out float rest) {
    float quotient = roundEven(x * (1.0 / y));
    rest = quotient == 0.0 ? x : fma(-quotient, y, x);  // keeps denormals
    return is_moderate(y) && abs(quotient) < 1048576.0;
}

// x - y * trunc(x / y), exactly: long division, eight bits of the quotient at a time.
float long_modulus(float x, float y) {
    if (is_nan(x) || is_nan(y) || is_infinite(x) || is_zero(y)) return NOT_A_NUMBER;
    if (is_infinite(y) || is_zero(x)) return x;
    int x_exponent, y_exponent;
    uint rest = (floatBitsToUint(split(x, x_exponent)) & 0x7FFFFFu) | 0x800000u;
    uint divisor = (floatBitsToUint(split(y, y_exponent)) & 0x7FFFFFu) | 0x800000u;
    int places = x_exponent - y_exponent;
    if (places < 0) return x;
    rest %= divisor;
    while (places > 0 && rest != 0u) {
        int step = min(places, 8);
        rest = (rest << step) % divisor;
        places -= step;
    }
    return with_sign(scaled(float(rest), y_exponent - 23, 0.0), sign_bit(x));
}

float modulus(float x, float y) {
    float rest;
    if (HAS_EXACT_UNITS) if (nearest_rest(x, y, rest)) {
        if (rest * x < 0.0) rest += with_sign(y, sign_bit(x));
        return with_sign(rest, sign_bit(x));
    }
    return long_modulus(x, y);
}

float floor_modulus(float x, float y) {
    float rest;
    bool is_exact = false;
    if (HAS_EXACT_UNITS) is_exact = nearest_rest(x, y, rest);
    if (!is_exact) rest = long_modulus(x, y);
    if (is_nan(rest)) return rest;
    if (is_zero(rest)) return with_sign(rest, sign_bit(y));
    if (sign_bit(rest) == sign_bit(y)) return rest;
    precise float sum = rest + y;
    return sum;
}

#include "include/chain_operators.glsl"

OPERATOR(identity, x)
OPERATOR(round_half_even, rounded(x, true))
OPERATOR(round_half_away, rounded(x, false))
OPERATOR(truncate, truncated(x))
OPERATOR(threshold, maximum(x, parameter(0u)))
OPERATOR(is_nan, number(is_nan(x)))
OPERATOR(is_infinity, number(is_infinite(x)))
OPERATOR(is_positive_infinity, number(is_infinite(x) && sign_bit(x) == 0u))
OPERATOR(is_negative_infinity, number(is_infinite(x) && sign_bit(x) != 0u))

OPERATOR(sin, EITHER(sin, (x)))
OPERATOR(cos, EITHER(cos, (x)))
OPERATOR(tan, EITHER(tan, (x)))
OPERATOR(asin, EITHER(asin, (x)))
OPERATOR(acos, EITHER(acos, (x)))
OPERATOR(atan, EITHER(atan, (x)))
OPERATOR(sinh, EITHER(sinh, (x)))
OPERATOR(cosh, EITHER(cosh, (x)))
OPERATOR(asinh, EITHER(asinh, (x)))
OPERATOR(acosh, EITHER(acosh, (x)))
OPERATOR(atanh, EITHER(atanh, (x)))
OPERATOR(pow, pow_of(x, y))
OPERATOR(constant_pow, pow_of(x, parameter(0u)))
OPERATOR(fractional_pow, fractional_pow_of(x, parameter(0u), PAIR(parameter(1u), parameter(2u)),
                                           parameter(3u)))
OPERATOR(cube, x * x * x)

OPERATOR(mean, x * 0.5 + y * 0.5)
OPERATOR(difference_square, (x - y) * (x - y))
OPERATOR(modulus_truncate, modulus(x, y))
OPERATOR(modulus_floor, floor_modulus(x, y))
OPERATOR(atan_yx, EITHER(atan, (x, y)))
OPERATOR(parameterized_relu, at_least_zero(x) ? x : x * y)

#ifndef COMPUTES
float compute(float x, float y);

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    precise float x = number_of(a, A_TYPE);
    if (HAS_SCALE_BIAS) x = x * uintBitsToFloat(scale) + uintBitsToFloat(bias);
    x = compute(x, B_TYPE == 0u ? 0.0 : number_of(b, B_TYPE));
    if (!IS_FLOAT(OUT_TYPE) && IS_FLOAT(A_TYPE)) return uvec2(uint(x), 0u);  // a truth value
    return uvec2(bits_of(x, OUT_TYPE), 0u);
}
#endif
