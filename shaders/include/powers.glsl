// Powers: 2^(y log2 x). The logarithm needs extra digits, because y multiplies its error.
#ifndef INCLUDED_POWERS
#define INCLUDED_POWERS

const float TWO_OVER_LN2 = 2.88539004;
const float TWO_OVER_LN2_LOW = 3.85192607e-8;
const float LAST_BIT = 1.1920928955078125e-7;

// log2 x = k 2^-23 + 2 / ln 2 (result + low) for a normal x > 0, with a relative error of 2^-29.
// result + low = atanh s = s + s^3 / 3 ..., s = (m - 1) / (m + 1), m from 0.7071 to 1.4142
float log2_parts(float x, out float k, out float low) {
    int field = floatBitsToInt(x) - 0x3F3504F3 & 0xFF800000;
    k = float(field);
    float mantissa = intBitsToFloat(floatBitsToInt(x) - field);
    float inverse = 1.0 / (mantissa + 1.0);
    precise float f = mantissa - 1.0;
    precise float s = f * inverse;
    precise float rest = f - 2.0 * s;  // exact
    float s_low = rest_of(rest, s, f) * inverse;
    float square = s * s;
    float tail = (0.149367288 * square + 0.199887618) * square + 0.333333880;
    low = tail * square * s + (s_low * square + s_low);
    return s;
}

// 2^(r + 1) for |r| <= 0.5
float exp2_series(float r) {
    float tail = 3.06557166e-4 * r + 2.67819990e-3;
    tail = tail * r + 1.92370061e-2;
    tail = tail * r + 0.111007191;
    tail = tail * r + 0.480452954;
    if (HAS_EXACT_UNITS) return fma(r, fma(tail, r, 1.38629436), 2.0);
    // r is split off at seven digits, so that nothing is rounded before the last sum.
    precise float high = r + 49152.0;
    high = high - 49152.0;
    float low = (tail * r + 3.48186112e-3) * r + (r - high) * 1.3828125;
    return sum_of(PAIR(high * 1.3828125 + 2.0, low));
}

// 2^(x + low) for x from -125.5 to 128.5
float exp2_of(float x, float low) {
    // The last bits of the sum are the exponent field of half the power.
    const float magic = 12582912.0 + 126.0;
    precise float shifted = x + magic;
    precise float r = x - (shifted - magic);
    return exp2_series(r + low) * intBitsToFloat(floatBitsToInt(shifted) << 23);
}

// The power if x is not a normal number above 0, or ``power`` = y log2 |x| is not near 0. ``result`` is
// 2^power if that is in the range of float32.
float unusual_power(float x, float y, float power, float result) {
    float base = magnitude(x);
    if (base < 1.17549435e-38) power = y * infinity(0x80000000u);
    if (!(base < infinity(0u))) power = y * base;
    if (power < -125.5) result = 0.0;
    if (!(power < 128.5)) result = power > 128.0 ? infinity(0u) : NOT_A_NUMBER;
    if (sign_bit(x) != 0u) {
        bool is_whole = truncated(y) == y;
        if (is_whole && truncated(0.5 * y) != 0.5 * y) result = negated(result);
        if (!is_whole && base > 0.0 && base < infinity(0u)) result = NOT_A_NUMBER;
    }
    bool is_one = x == 1.0 || abs(y) < 1.17549435e-38;
    if (base == 1.0 && is_infinite(y)) is_one = true;
    return is_one ? 1.0 : result;
}

float pow_of(float x, float y) {
    if (SHORT) {
        float power = short_log2(x) * y;
        if (abs(power) < 125.0) return exp2(power);
        power = short_log2(magnitude(x)) * y;
        return unusual_power(x, y, power, exp2(power));
    }
    float k, low;
    float s = log2_parts(magnitude(x), k, low);
    PAIR head = pair_of_product(s, TWO_OVER_LN2);
    float sum = scaled_sum(k, LAST_BIT, low * TWO_OVER_LN2 + head.x);
    precise float lost = head.x - scaled_sum(k, -LAST_BIT, sum);  // exact
    lost = scaled_sum(low, TWO_OVER_LN2, lost) + (s * TWO_OVER_LN2_LOW + head.y);
    PAIR power = pair_of_product(sum, y);
    float result = exp2_of(power.x, power.y + lost * y);
    bool is_usual = floatBitsToUint(x) - 0x00800000u < 0x7F000000u && abs(power.x) < 125.0;
    return is_usual ? result : unusual_power(x, y, power.x, result);
}

// The same for one fractional y for all elements, in fewer steps, to 3 ulp. ``factor`` is y 2 / ln 2. If
// |k| is below ``limit``, x is normal and above 0, and the power is near 0.
float fractional_pow_of(float x, float y, PAIR factor, float limit) {
    if (SHORT || !HAS_EXACT_UNITS) return pow_of(x, y);
    float k, low;
    float s = log2_parts(x, k, low);
    // The whole part of y times the logarithm goes into the exponent field.
    const float magic = 12582912.0 + 127.0;
    precise float first = fma(k, y * LAST_BIT, magic);
    precise float both = fma(s, factor.x, first);
    float r = fma(s, factor.x, first - both);
    r = fma(s, factor.y, fma(low, factor.x, r)) + fma(k, y * LAST_BIT, magic - first);
    float result = exp2(r) * intBitsToFloat(floatBitsToInt(both) << 23);
    // At the end: at the beginning, this branch would separate the steps of different elements.
    if (!(abs(k) < limit)) result = pow_of(x, y);
    return result;
}
#endif
