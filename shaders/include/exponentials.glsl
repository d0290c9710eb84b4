// exp, log and related functions in float32, accurate to a few ulp on every driver. They use only the
// driver's quotients and inversesqrt, and exp2 and sqrt if these are known to be accurate. Without
// ``precise``, products and sums may become one fma. Both sides of a choice are computed, because a
// branch costs more. NaN passes through sums and products, and fails comparisons.
#ifndef INCLUDED_EXPONENTIALS
#define INCLUDED_EXPONENTIALS
#include "include/roots.glsl"

const float LOG2_E = 1.44269502;
const float LN2 = 0.693147182;

// exp(x + low) * 2^shift = (1 + result) * power
float exp_parts(float x, float low, int shift, out float power) {
    // The last bits of the sum are the exponent field of the power.
    const float magic = 12582912.0 + float(127 + shift);
    float shifted = scaled_sum(x, LOG2_E, magic);
    precise float k = shifted - magic;
    power = intBitsToFloat(floatBitsToInt(shifted) << 23);
    // The first part of ln 2 times k is exact.
    float high = scaled_sum(k, -0.693359375, x);
    float r = high + (k * 2.12194440e-4 + low);
    float tail = 1.38204859e-3 * r + 8.36925209e-3;
    tail = tail * r + 4.16682847e-2;
    tail = tail * r + 1.66665167e-1;
    tail = tail * r + 0.49999994;
    return tail * (r * r) + r;
}

// exp(x + low) * 2^shift, if all of it is far from the ends of the range.
float exp_within(float x, float low, int shift) {
    float power;
    float fraction = exp_parts(x, low, shift, power);
    if (HAS_EXACT_UNITS) return fma(fraction, power, power);
    precise float sum = 1.0 + fraction;  // precise: compilers would reorder the sum
    return sum * power;  // product with the fraction could be denormal
}

float exp_of(float x, float low) {
    // The exponent field covers only half of the largest result.
    float power;
    float fraction = exp_parts(x, low, -1, power);
    precise float sum = fma(fraction, 2.0, 2.0);
    float result = sum * power;
    if (x < -87.4) result = 0.0;
    return x > 88.8 ? infinity(0u) : result;
}

float exp_of(float x) {
    return exp_of(x, 0.0);
}

// exp(x + low) for x from -88 to 0. Devices with EXACT_UNITS use exp2, accurate to 2 ulp.
float exp_below_one(float x, float low) {
    if (!HAS_EXACT_UNITS) return exp_within(x, low, 0);
    precise float high = x * LOG2_E;
    float rest = fma(high, -LN2, x) + fma(high, 1.90465421e-9, low);  // the error of LN2
    float power = exp2(high);
    return fma(power, rest, power);
}

float expm1_of(float x) {
    float power;
    float fraction = exp_parts(x, 0.0, -1, power);
    float result = 2.0 * (fraction * power + (power - 0.5));
    if (x < -20.0) result = -1.0;
    if (x > 88.8) result = infinity(0u);
    return result;
}

float sinh_of(float x) {
    float size = magnitude(x);
    float quarter = exp_within(size, 0.0, -2);
    float large = 2.0 * (quarter - 0.0625 / quarter);
    if (size > 89.42) large = infinity(0u);
    float square = size * size;
    float tail = 2.03730408e-4 * square + 8.33027251e-3;
    tail = tail * square + 0.166667163;
    float small = tail * square * size + size;
    return with_sign(size < 1.0 ? small : large, sign_bit(x));
}

float cosh_of(float x) {
    float size = magnitude(x);
    float quarter = exp_within(size, 0.0, -2);
    float result = 2.0 * (quarter + 0.0625 / quarter);
    if (size > 89.42) result = infinity(0u);
    return result;
}

float tanh_of(float x) {
    float size = magnitude(x);
    float power = exp_below_one(-2.0 * size, 0.0);
    float large = 1.0 - 2.0 * power / (1.0 + power);
    if (size > 10.0) large = 1.0;
    float square = size * size;
    float tail = 2.07986254e-2 - 5.89796621e-3 * square;
    tail = tail * square - 5.37847169e-2;
    tail = tail * square + 0.133319363;
    tail = tail * square - 0.333332986;
    float small = tail * square * size + size;
    return with_sign(size < 0.6 ? small : large, sign_bit(x));
}

// ln(1 + f) + k ln 2 for 1 + f from 2/3 to 4/3. k is shifted to the exponent field.
float log_series(float f, int k) {
    float tail = 0.140480965 * f - 0.154087365;
    tail = tail * f + 0.139916465;
    tail = tail * f - 0.164126113;
    tail = tail * f + 0.200114071;
    tail = tail * f - 0.250079721;
    tail = tail * f + 0.333331943;
    tail = tail * f - 0.499999344;
    return float(k) * (LN2 * 1.1920928955078125e-7) + (tail * (f * f) + f);
}

// The k for log_series, for a normal x > 0.
int log_exponent(float x) {
    return floatBitsToInt(x) - 0x3F2AAAAB & 0xFF800000;
}

float log_of(float x) {
    int k = log_exponent(x);
    float result = log_series(intBitsToFloat(floatBitsToInt(x) - k) - 1.0, k);
    if (floatBitsToUint(x) - 0x00800000u >= 0x7F000000u) {
        result = magnitude_bits(x) < 0x00800000u ? infinity(0x80000000u) : NOT_A_NUMBER;
        if (floatBitsToUint(x) == 0x7F800000u) result = x;
    }
    return result;
}

// ln(1 + x) for 0 <= x < 2^127
float log1p_of(float x) {
    int k = log_exponent(1.0 + x);
    float power = intBitsToFloat(0x3F800000 - k);
    return log_series(x * power + (power - 1.0), k);
}

// ln(1 + t), where t is 2 x if x is large.
float log1p_or_log(float t, float x) {
    bool large = x > 1.0e9;
    float result = log1p_of(large ? 0.25 * x : t) + (large ? 3.0 * LN2 : 0.0);
    return x < infinity(0u) ? result : x;
}

float asinh_of(float x) {
    float size = magnitude(x);
    float square = size * size;
    float root = (1.0 + square) * inversesqrt(1.0 + square);
    float result = log1p_or_log(size + square / (1.0 + root), size);
    return with_sign(result, sign_bit(x));
}

float acosh_of(float x) {
    float t = x - 1.0;
    float square = t * (t + 2.0);
    float inverse = inversesqrt(square + 1.0e-37);  // also for 0
    precise float root = square * inverse;
    // The root's correction is added to t first, so that the sum with the root is rounded once.
    precise float rest = HAS_EXACT_UNITS ? fma(fma(-root, root, square), 0.5 * inverse, t)
                                         : t + (square - root * root) * (0.5 * inverse);
    bool large = x > 1.0e9;  // the root is as good as x
    // An eighth of the sum does not overflow. precise: 0.125 is not factored out.
    float eighth = 0.125 * (large ? x : root);
    precise float h = HAS_EXACT_UNITS ? fma(large ? x : rest, 0.125, eighth)
                                      : 0.125 * (large ? x : rest) + eighth;
    int k = log_exponent(h + 0.125);
    float power = intBitsToFloat(0x3F800000 - k);
    float result = log_series(h * power + (0.125 * power - 1.0), k + 0x01800000);
    if (x >= infinity(0u)) result = x;
    return t < 0.0 ? NOT_A_NUMBER : result;  // below -1 the root is a number
}

float atanh_of(float x) {
    float size = magnitude(x);
    float result = 0.5 * log1p_of(2.0 * size / (1.0 - size));
    if (size == 1.0) result = infinity(0u);
    if (size > 1.0) result = NOT_A_NUMBER;
    return with_sign(result, sign_bit(x));
}
#endif
