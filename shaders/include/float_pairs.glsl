// Numbers as unevaluated sums of two float32, x the larger: about 46 bits. Built on additions and
// multiplications alone, which Vulkan wants correctly rounded; its division may be off by 2.5 ulp,
// and neither a true fma nor float64 is promised. ``precise`` keeps compilers from rearranging. A
// device that HAS_EXACT_UNITS is known to have a true fma, which gives the same pairs in fewer steps.
// With SHORT_PAIRS y stays 0, and some ulp are lost: what results that go into a float16 can bear.
#include "include/float_bits.glsl"
#ifndef HAS_EXACT_UNITS
#define HAS_EXACT_UNITS false
#endif
#ifndef SHORT_PAIRS
#define SHORT_PAIRS false
#endif

#define PAIR vec2

PAIR long_pair_of_sum(float x, float y) {
    precise float sum = x + y;
    precise float part = sum - x;
    precise float rest = (x - (sum - part)) + (y - part);
    return PAIR(sum, rest);
}

PAIR pair_of_sum(float x, float y) {
    precise float sum = x + y;
    return SHORT_PAIRS ? PAIR(sum, 0.0) : long_pair_of_sum(x, y);
}

// The same for |x| >= |y|.
PAIR pair_of_ordered_sum(float x, float y) {
    precise float sum = x + y;
    if (SHORT_PAIRS) return PAIR(sum, 0.0);
    precise float rest = y - (sum - x);
    return PAIR(sum, rest);
}

PAIR long_pair_of_product(float x, float y) {
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

PAIR pair_of_product(float x, float y) {
    precise float product = x * y;
    return SHORT_PAIRS ? PAIR(product, 0.0) : long_pair_of_product(x, y);
}

PAIR add(PAIR x, PAIR y) {
    PAIR sum = pair_of_sum(x.x, y.x);
    if (SHORT_PAIRS) return sum;
    precise float rest = sum.y + (x.y + y.y);
    return pair_of_ordered_sum(sum.x, rest);
}

PAIR multiply(PAIR x, PAIR y) {
    PAIR product = pair_of_product(x.x, y.x);
    if (SHORT_PAIRS) return product;
    precise float rest = product.y + (x.x * y.y + x.y * y.x);
    return pair_of_ordered_sum(product.x, rest);
}

PAIR divide(PAIR x, PAIR y) {
    precise float quotient = x.x / y.x;
    if (SHORT_PAIRS) return PAIR(quotient, 0.0);
    PAIR product = multiply(PAIR(quotient, 0.0), y);
    PAIR rest = add(x, -product);
    precise float correction = rest.x / y.x;
    return pair_of_ordered_sum(quotient, correction);
}

PAIR square_root(PAIR x) {
    if (x.x <= 0.0) return PAIR(0.0);
    precise float root = sqrt(x.x);
    if (SHORT_PAIRS) return PAIR(root, 0.0);
    PAIR rest = add(x, -pair_of_product(root, root));
    precise float correction = rest.x / (2.0 * root);
    return pair_of_ordered_sum(root, correction);
}

float sum_of(PAIR x) {
    precise float sum = x.x + x.y;
    return sum;
}

// x - y z: exact where y z is off by some ulp only.
float rest_of(float x, float y, float z) {
    PAIR product = long_pair_of_product(y, z);
    precise float rest = (x - product.x) - product.y;
    return rest;
}

// Far from where anything overflows or becomes a denormal.
bool is_moderate(float x) {
    return magnitude_bits(x) - (80u << 23) < (96u << 23);
}

// Correctly rounded for moderate numbers, where fma is true.
float moderate_quotient(float x, float y) {
    precise float inverse = 1.0 / y;
    precise float guess = x * inverse;
    precise float rest = fma(-guess, y, x);
    precise float quotient = fma(rest, inverse, guess);
    rest = fma(-quotient, y, x);
    // Half an ulp of the quotient, times y.
    uint field = magnitude_bits(quotient) & 0x7F800000u;
    precise float half_unit = uintBitsToFloat(field - (24u << 23)) * y;
    uint bits = floatBitsToUint(quotient);
    if (magnitude(rest) > magnitude(half_unit))
        bits += (sign_bit(rest) ^ sign_bit(y)) == (bits & 0x80000000u) ? 1u : 0xFFFFFFFFu;
    return uintBitsToFloat(bits);
}

// Correctly rounded from a guess that is off by some ulp: error(q) = sign(exact - q) decides.
float divide(float x, float y) {
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
    float rest = rest_of(a, q, b);
    precise float half_unit = b * 5.9604644775390625e-8;
    if (rest > half_unit) q += 1.1920928955078125e-7;
    if (-rest > half_unit) q -= 1.1920928955078125e-7;
    return with_sign(scaled(q, x_exponent - y_exponent), sign);
}

// Off by hardly more than half an ulp.
float corrected_root(float x) {
    precise float root = sqrt(x);
    root = root + rest_of(x, root, root) / (2.0 * root);
    return root;
}

// Correctly rounded, in a float16 where that is what it goes into.
float square_root(float x) {
    if (is_zero(x)) return x;
    if (is_nan(x) || sign_bit(x) != 0u) return NOT_A_NUMBER;
    if (is_infinite(x)) return x;
    if (SHORT_PAIRS && is_moderate(x)) return corrected_root(x);
    if (HAS_EXACT_UNITS && is_moderate(x)) return corrected_root(x);
    int exponent;
    float a = split(x, exponent);
    if ((exponent & 1) != 0) {
        a *= 2.0;
        --exponent;
    }
    float root = corrected_root(a);
    // The root is in [1, 2], and (root + unit / 2)^2 is root^2 + root * unit and next to nothing.
    float rest = rest_of(a, root, root);
    precise float step = root * 1.1920928955078125e-7;
    if (rest > step) root += 1.1920928955078125e-7;
    if (-rest >= step) root -= 1.1920928955078125e-7;
    return scaled(root, exponent / 2);
}
