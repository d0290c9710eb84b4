// Numbers as unevaluated sums of two float32, x the larger one: about 46 bits. They use only additions
// and multiplications, which Vulkan requires to be correctly rounded. (Division may be off by 2.5 ulp.
// A true fma and float64 are optional.) ``precise`` keeps compilers from reordering. A device with
// HAS_EXACT_UNITS has a true fma, which gives the same pairs in fewer steps.
#ifndef INCLUDED_FLOAT_PAIRS
#define INCLUDED_FLOAT_PAIRS
#include "include/float_bits.glsl"

#define PAIR vec2

PAIR pair_of_sum(float x, float y) {
    precise float sum = x + y;
    precise float part = sum - x;
    precise float rest = (x - (sum - part)) + (y - part);
    return PAIR(sum, rest);
}

// The same for |x| >= |y|.
PAIR pair_of_ordered_sum(float x, float y) {
    precise float sum = x + y;
    precise float rest = y - (sum - x);
    return PAIR(sum, rest);
}

PAIR pair_of_product(float x, float y) {
    precise float product = x * y;
    if (HAS_EXACT_UNITS) {
        precise float exact_rest = fma(x, y, -product);
        return PAIR(product, exact_rest);
    }
    float x_high = uintBitsToFloat(floatBitsToUint(x) & 0xFFFFF000u);
    float y_high = uintBitsToFloat(floatBitsToUint(y) & 0xFFFFF000u);
    precise float x_low = x - x_high;
    precise float y_low = y - y_high;
    precise float rest =
        ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low;
    return PAIR(product, rest);
}

PAIR add(PAIR x, PAIR y) {
    PAIR sum = pair_of_sum(x.x, y.x);
    precise float rest = sum.y + (x.y + y.y);
    return pair_of_ordered_sum(sum.x, rest);
}

PAIR multiply(PAIR x, PAIR y) {
    PAIR product = pair_of_product(x.x, y.x);
    precise float rest = product.y + (x.x * y.y + x.y * y.x);
    return pair_of_ordered_sum(product.x, rest);
}

float sum_of(PAIR x) {
    precise float sum = x.x + x.y;
    return sum;
}

// x y + z in one expression that compilers do not reorder.
float scaled_sum(float x, float y, float z) {
    if (HAS_EXACT_UNITS) return fma(x, y, z);
    precise float sum = x * y + z;
    return sum;
}

// x - y z, exact if y z is within a few ulp of x.
float rest_of(float x, float y, float z) {
    if (HAS_EXACT_UNITS) return fma(-y, z, x);
    PAIR product = pair_of_product(y, z);
    precise float rest = (x - product.x) - product.y;
    return rest;
}

// Whether x is far from overflow and from denormals.
bool is_moderate(float x) {
    return magnitude_bits(x) - (80u << 23) < (96u << 23);
}

// The correctly rounded quotient of moderate numbers, with a true fma.
float moderate_quotient(float x, float y) {
    precise float inverse = 1.0 / y;
    precise float guess = x * inverse;
    precise float rest = fma(-guess, y, x);
    precise float quotient = fma(rest, inverse, guess);
    rest = fma(-quotient, y, x);
    // Half an ulp of the quotient times y.
    uint field = magnitude_bits(quotient) & 0x7F800000u;
    precise float half_unit = uintBitsToFloat(field - (24u << 23)) * y;
    uint bits = floatBitsToUint(quotient);
    if (magnitude(rest) > magnitude(half_unit))
        bits += (sign_bit(rest) ^ sign_bit(y)) == (bits & 0x80000000u) ? 1u : 0xFFFFFFFFu;
    return uintBitsToFloat(bits);
}

// The correctly rounded quotient. The guess is off by a few ulp; error(q) = sign(exact - q) decides.
float divide(float x, float y) {
    if (HAS_IEEE_UNITS) return x / y;
    if (HAS_EXACT_UNITS && is_moderate(x) && is_moderate(y))
        return moderate_quotient(x, y);
    uint sign = sign_bit(x) ^ sign_bit(y);
    if (is_nan(x) || is_nan(y)) return NOT_A_NUMBER;
    if (is_infinite(x) || is_zero(y))
        return is_infinite(y) || is_zero(x) ? NOT_A_NUMBER : infinity(sign);
    if (is_infinite(y) || is_zero(x)) return uintBitsToFloat(sign);
    int x_exponent, y_exponent;
    float a = split(x, x_exponent);
    float b = split(y, y_exponent);
    if (a < b) {
        a *= 2.0;
        --x_exponent;
    }
    // The quotient is in [1, 2), with units of 2^-23.
    precise float q = a / b;
    q = q + rest_of(a, q, b) / b;
    precise float rest = rest_of(a, q, b);
    float unit = 1.1920928955078125e-7;
    float change = rest > 0.5 * unit * b ? unit : -rest > 0.5 * unit * b ? -unit : 0.0;
    rest -= change * b;
    return with_sign(scaled(q + change, x_exponent - y_exponent, rest), sign);
}
#endif
