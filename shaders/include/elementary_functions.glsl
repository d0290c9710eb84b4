// exp, log, sin and their kin in float32, to about half an ulp and the same on every driver: Vulkan
// allows sin an absolute error of 2^-11. Each reduces its argument and adds up a series as a pair.
#include "include/float_pairs.glsl"

const PAIR ONE = PAIR(1.0, 0.0);
const PAIR LN2 = PAIR(0.6931471824645996, -1.9046542121259336e-09);
const PAIR PI = PAIR(3.1415927410125732, -8.742277657347586e-08);
const PAIR TWO_OVER_ROOT_PI = PAIR(1.128379225730896, -5.8635382771399236e-08);

PAIR exact(float x) {
    return PAIR(x, 0.0);
}

// (exp(x) - 2^exponent) / 2^exponent / r to a few ulp, |x| < 200.
float short_exp_series(float x, out int exponent, out float r) {
    precise float shifted = x * 1.44269502 + 12582912.0;  // whose last digit is 1
    precise float k = shifted - 12582912.0;
    exponent = floatBitsToInt(shifted) - 0x4B400000;
    r = (x - k * 0.693359375) + k * 2.12194442e-4;
    float tail = 1.38888892e-3;
    tail = tail * r + 8.33333377e-3;
    tail = tail * r + 4.16666679e-2;
    tail = tail * r + 1.66666672e-1;
    tail = tail * r + 0.5;
    return tail * r + 1.0;
}

// exp(x) * 2^shift to a few ulp; what a float16 cannot hold is huge or tiny.
float short_exp(float x, int shift) {
    int exponent;
    float r;
    float series = short_exp_series(clamp(x, -60.0, 60.0), exponent, r);
    // The exponent field takes the power of two.
    float power = intBitsToFloat(floatBitsToInt(series * r + 1.0) + ((exponent + shift) << 23));
    return is_nan(x) ? NOT_A_NUMBER : power;
}

// exp(x) = (1 + result) * 2^exponent for |x| < 200.
PAIR exp_parts(PAIR x, out int exponent) {
    if (SHORT_PAIRS) {
        float r;
        float series = short_exp_series(x.x, exponent, r);
        return exact(series * r);
    }
    precise float k = floor(x.x * 1.44269502 + 0.5);
    exponent = int(k);
    // ln 2 in three parts; the first two times k are exact.
    precise float high = x.x - k * 0.693359375;
    PAIR r = pair_of_sum(high, k * 2.1219253540039062e-4);
    precise float low = r.y + (x.y + k * 1.9046542121259336e-9);
    r = pair_of_ordered_sum(r.x, low);
    precise float tail = 2.48015876e-5;
    tail = tail * r.x + 1.98412701e-4;
    tail = tail * r.x + 1.38888892e-3;
    tail = tail * r.x + 8.33333377e-3;
    tail = tail * r.x + 4.16666679e-2;
    tail = tail * r.x + 1.66666672e-1;
    PAIR square = multiply(r, r);
    tail = tail * (square.x * r.x);
    return add(r, pair_of_ordered_sum(0.5 * square.x, 0.5 * square.y + tail));
}

// exp(x) as a pair for |x| < 80.
PAIR exp_pair(PAIR x) {
    int exponent;
    PAIR fraction = exp_parts(x, exponent);
    return add(ONE, fraction) * power_of_two(exponent);
}

// exp(x) - 1 as a pair for |x| < 80.
PAIR expm1_pair(PAIR x) {
    int exponent;
    PAIR fraction = exp_parts(x, exponent);
    if (exponent == 0) return fraction;
    float power = power_of_two(exponent);
    return add(pair_of_sum(power, -1.0), fraction * power);
}

float exp_of(PAIR x, int shift) {
    if (SHORT_PAIRS) return short_exp(x.x, shift);
    if (is_nan(x.x)) return NOT_A_NUMBER;
    int exponent;
    if (x.x > 100.0) return infinity(0u);
    if (x.x < -110.0) return 0.0;
    PAIR fraction = exp_parts(x, exponent);
    return scaled(sum_of(add(ONE, fraction)), exponent + shift);
}

float exp_of(float x) {
    return exp_of(exact(x), 0);
}

float expm1_of(PAIR x) {
    if (is_nan(x.x)) return NOT_A_NUMBER;
    if (x.x < -20.0) return -1.0;
    if (x.x > 70.0) return exp_of(x, 0);
    if (magnitude(x.x) < 2.98e-8) return x.x;
    return sum_of(expm1_pair(x));
}

// ln x for x > 0.
PAIR log_pair(PAIR x) {
    int exponent;
    float mantissa = split(x.x, exponent);
    float low = x.y == 0.0 ? 0.0 : x.y * power_of_two(clamp(-exponent, -126, 127));
    if (mantissa > 1.41421354) {
        mantissa *= 0.5;
        low *= 0.5;
        ++exponent;
    }
    precise float high = mantissa - 1.0;
    PAIR f = pair_of_sum(high, low);
    // ln(1 + f) = 2 artanh(f / (2 + f))
    PAIR s = divide(f, add(PAIR(2.0, 0.0), f));
    PAIR square = multiply(s, s);
    precise float tail = 0.0666666701;
    tail = tail * square.x + 0.0769230798;
    tail = tail * square.x + 0.0909090936;
    tail = tail * square.x + 0.111111112;
    tail = tail * square.x + 0.142857149;
    tail = tail * square.x + 0.200000003;
    tail = tail * square.x * square.x;
    PAIR series = multiply(square, PAIR(0.3333333432674408, -9.934107758624577e-09));
    series = add(series, exact(tail));
    PAIR result = 2.0 * add(s, multiply(s, series));
    return add(multiply(LN2, exact(float(exponent))), result);
}

PAIR log1p_pair(PAIR x) {
    if (magnitude(x.x) < 9.765625e-4) {
        PAIR square = multiply(x, x);
        precise float cube = square.x * x.x * (0.333333343 - 0.25 * x.x);
        return add(x, add(-0.5 * square, exact(cube)));
    }
    PAIR sum = long_pair_of_sum(1.0, x.x);
    sum.y += x.y;
    return log_pair(SHORT_PAIRS ? sum : pair_of_ordered_sum(sum.x, sum.y));
}

// ln x to a few ulp for a normal x > 0.
float short_log(float x) {
    // x = (1 + f) * 2^exponent, 1 + f from 0.7071 to 1.4142
    int exponent = (floatBitsToInt(x) - 0x3F3504F3) >> 23;
    float f = intBitsToFloat(floatBitsToInt(x) - (exponent << 23)) - 1.0;
    float square = f * f;
    float tail = 7.0376836292e-2;
    tail = tail * f - 1.1514610310e-1;
    tail = tail * f + 1.1676998740e-1;
    tail = tail * f - 1.2420140846e-1;
    tail = tail * f + 1.4249322787e-1;
    tail = tail * f - 1.6668057665e-1;
    tail = tail * f + 2.0000714765e-1;
    tail = tail * f - 2.4999993993e-1;
    tail = tail * f + 3.3333331174e-1;
    float k = float(exponent);
    float rest = tail * f * square - k * 2.12194440e-4 - 0.5 * square;
    return (f + rest) + k * 0.693359375;
}

float log_of(float x) {
    if (is_zero(x)) return infinity(0x80000000u);
    if (is_nan(x) || sign_bit(x) != 0u) return NOT_A_NUMBER;
    if (is_infinite(x)) return x;
    if (SHORT_PAIRS) return short_log(x);
    return sum_of(log_pair(exact(x)));
}

float pow_of(float x, float y) {
    if (is_zero(y) || equal(x, 1.0)) return 1.0;
    if (is_nan(x) || is_nan(y)) return NOT_A_NUMBER;
    float base = magnitude(x);
    bool is_whole = equal(truncated(y), y);
    bool is_odd = is_whole && magnitude(y) < 16777216.0 && mod(magnitude(y), 2.0) == 1.0;
    uint sign = is_odd ? sign_bit(x) : 0u;
    bool grows = less(1.0, base) == (sign_bit(y) == 0u);
    if (is_zero(x) || is_infinite(x)) return grows ? infinity(sign) : uintBitsToFloat(sign);
    if (is_infinite(y)) {
        if (equal(base, 1.0)) return 1.0;
        return grows ? infinity(0u) : 0.0;
    }
    if (sign_bit(x) != 0u && !is_whole) return NOT_A_NUMBER;
    if (equal(base, 1.0)) return with_sign(1.0, sign);
    PAIR logarithm = log_pair(exact(base));
    float size = magnitude(logarithm.x * y);
    if (!(size < 120.0)) return grows ? infinity(sign) : uintBitsToFloat(sign);
    return with_sign(exp_of(multiply(logarithm, exact(y)), 0), sign);
}

// sinh x and cosh x as a pair, for 0 <= x < 20
PAIR sinh_pair(float x) {
    PAIR e = expm1_pair(exact(x));
    return 0.5 * add(e, divide(e, add(ONE, e)));
}

float sinh_of(float x) {
    float size = magnitude(x);
    if (is_nan(x) || size < 2.44140625e-4) return x;
    float result = size < 20.0 ? sum_of(sinh_pair(size)) : exp_of(exact(size), -1);
    return with_sign(result, sign_bit(x));
}

float cosh_of(float x) {
    float size = magnitude(x);
    if (is_nan(x)) return x;
    if (size >= 20.0) return exp_of(exact(size), -1);
    PAIR e = exp_pair(exact(size));
    return sum_of(0.5 * add(e, divide(ONE, e)));
}

float tanh_of(PAIR x) {
    float size = magnitude(x.x);
    if (is_nan(x.x) || size < 2.44140625e-4) return x.x;
    if (size > 12.0) return with_sign(1.0, sign_bit(x.x));
    PAIR e = expm1_pair(2.0 * (sign_bit(x.x) != 0u ? -x : x));
    return with_sign(sum_of(divide(e, add(PAIR(2.0, 0.0), e))), sign_bit(x.x));
}

float asinh_of(float x) {
    float size = magnitude(x);
    if (is_nan(x) || is_infinite(x) || size < 2.44140625e-4) return x;
    PAIR result;
    if (size > 16384.0) {
        result = add(log_pair(exact(size)), LN2);
    } else {
        PAIR square = pair_of_product(size, size);
        PAIR root = square_root(add(ONE, square));
        result = log1p_pair(add(exact(size), divide(square, add(ONE, root))));
    }
    return with_sign(sum_of(result), sign_bit(x));
}

float acosh_of(float x) {
    if (is_nan(x) || less(x, 1.0)) return NOT_A_NUMBER;
    if (is_infinite(x)) return x;
    if (x > 16384.0) return sum_of(add(log_pair(exact(x)), LN2));
    PAIR t = pair_of_sum(x, -1.0);
    if (t.x == 0.0) return 0.0;
    PAIR root = square_root(add(multiply(t, t), 2.0 * t));
    return sum_of(log1p_pair(add(t, root)));
}

float atanh_of(float x) {
    float size = magnitude(x);
    if (is_nan(x) || size > 1.0) return NOT_A_NUMBER;
    if (size == 1.0) return infinity(sign_bit(x));
    if (size < 2.44140625e-4) return x;
    PAIR t = divide(exact(2.0 * size), pair_of_sum(1.0, -size));
    return with_sign(sum_of(0.5 * log1p_pair(t)), sign_bit(x));
}

// 2 / pi, after a word of zeros.
const uint TWO_OVER_PI[9] = uint[](0u, 0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u, 0xF534DDC0u,
                                   0xDB629599u, 0x3C439041u, 0xFE5163ABu, 0xDEBBC561u);

uint two_over_pi(uint bit) {
    uint word = bit / 32u;
    uint shift = bit % 32u;
    uint bits = TWO_OVER_PI[word] << shift;
    if (shift > 0u) bits |= TWO_OVER_PI[word + 1u] >> (32u - shift);
    return bits;
}

// |x| = quadrant * pi / 2 + result, |result| <= pi / 4; the quadrant modulo 4.
PAIR reduce_angle(float x, out uint quadrant) {
    quadrant = 0u;
    float size = magnitude(x);
    if (size < 0.785398) return exact(size);
    uint bits = floatBitsToUint(size);
    uint significand = (bits & 0x7FFFFFu) | 0x800000u;
    // Of the digits of 2 / pi, those before bit ``from`` make multiples of 4.
    uint from = (bits >> 23) - 120u;
    uint high, low, middle_high, middle, carry;
    umulExtended(significand, two_over_pi(from + 64u), high, low);
    umulExtended(significand, two_over_pi(from + 32u), middle_high, middle);
    uint top = significand * two_over_pi(from) + middle_high;
    middle = uaddCarry(middle, high, carry);
    top += carry;
    quadrant = top >> 30;
    uvec2 turn = uvec2((middle << 2) | (low >> 30), (top << 2) | (middle >> 30));
    bool negative = (turn.y & 0x80000000u) != 0u;
    if (negative) {
        quadrant = (quadrant + 1u) & 3u;
        turn = uvec2(0u - turn.x, ~turn.y + uint(turn.x == 0u));
    }
    PAIR fraction = pair_of_ordered_sum(
        float(turn.y >> 8) * 5.9604644775390625e-8,
        float(((turn.y & 0xFFu) << 16) | (turn.x >> 16)) * 3.5527136788005009e-15);
    fraction.y += float(turn.x & 0xFFFFu) * 5.421010862427522e-20;
    fraction = multiply(fraction, 0.5 * PI);
    return negative ? -fraction : fraction;
}

PAIR sine_series(PAIR r) {
    precise float square = r.x * r.x;
    precise float tail = -2.50521079e-8;
    tail = tail * square + 2.75573188e-6;
    tail = tail * square - 1.98412701e-4;
    tail = tail * square + 8.33333377e-3;
    tail = tail * square - 1.66666672e-1;
    tail = tail * square * r.x + r.y * (1.0 - 0.5 * square);
    return pair_of_ordered_sum(r.x, tail);
}

PAIR cosine_series(PAIR r) {
    PAIR square = multiply(r, r);
    precise float tail = 2.08767559e-9;
    tail = tail * square.x - 2.755732e-7;
    tail = tail * square.x + 2.48015876e-5;
    tail = tail * square.x - 1.38888892e-3;
    tail = tail * square.x + 4.16666679e-2;
    tail = tail * square.x * square.x;
    return add(add(ONE, -0.5 * square), exact(tail));
}

float sin_of(float x, uint turns) {
    if (is_nan(x) || is_infinite(x)) return NOT_A_NUMBER;
    if (turns == 0u && magnitude(x) < 2.44140625e-4) return x;
    uint quadrant;
    PAIR r = reduce_angle(x, quadrant);
    uint sign = turns == 0u ? sign_bit(x) : 0u;
    quadrant += turns;
    PAIR result;
    if ((quadrant & 1u) != 0u) result = cosine_series(r);
    else result = sine_series(r);
    float value = sum_of(result);
    return (quadrant & 2u) != 0u != (sign != 0u) ? negated(value) : value;
}

float tan_of(float x) {
    if (is_nan(x) || is_infinite(x)) return NOT_A_NUMBER;
    if (magnitude(x) < 2.44140625e-4) return x;
    uint quadrant;
    PAIR r = reduce_angle(x, quadrant);
    PAIR sine = sine_series(r);
    PAIR cosine = cosine_series(r);
    bool swapped = (quadrant & 1u) != 0u;
    float value = sum_of(swapped ? divide(-cosine, sine) : divide(sine, cosine));
    return sign_bit(x) != 0u ? negated(value) : value;
}

// The angle of (x, y), both >= 0 and not both 0, neither huge nor tiny beside the other.
PAIR angle_of(PAIR y, PAIR x) {
    bool steep = y.x > x.x;
    if (steep) {
        PAIR kept = y;
        y = x;
        x = kept;
    }
    bool wide = y.x > 0.41421357 * x.x;
    PAIR t = wide ? divide(add(y, -x), add(y, x)) : divide(y, x);
    precise float square = t.x * t.x;
    precise float tail = 0.0476190485;
    tail = tail * square - 0.0526315793;
    tail = tail * square + 0.0588235296;
    tail = tail * square - 0.0666666701;
    tail = tail * square + 0.0769230798;
    tail = tail * square - 0.0909090936;
    tail = tail * square + 0.111111112;
    tail = tail * square - 0.142857149;
    tail = tail * square + 0.200000003;
    tail = tail * square - 0.333333343;
    PAIR result = add(t, exact(tail * square * t.x));
    if (wide) result = add(0.25 * PI, result);
    return steep ? add(0.5 * PI, -result) : result;
}

float atan_of(float x) {
    float size = magnitude(x);
    if (is_nan(x) || size < 2.44140625e-4) return x;
    return with_sign(sum_of(angle_of(exact(min(size, 1.0e12)), ONE)), sign_bit(x));
}

float asin_of(float x) {
    float size = magnitude(x);
    if (is_nan(x) || size > 1.0) return NOT_A_NUMBER;
    if (size < 2.44140625e-4) return x;
    PAIR other = square_root(multiply(pair_of_sum(1.0, -size), pair_of_sum(1.0, size)));
    return with_sign(sum_of(angle_of(exact(size), other)), sign_bit(x));
}

float acos_of(float x) {
    float size = magnitude(x);
    if (is_nan(x) || size > 1.0) return NOT_A_NUMBER;
    if (size == 1.0) return sign_bit(x) != 0u ? PI.x : 0.0;
    PAIR other = square_root(multiply(pair_of_sum(1.0, -size), pair_of_sum(1.0, size)));
    PAIR angle = angle_of(other, exact(size));
    return sum_of(sign_bit(x) != 0u ? add(PI, -angle) : angle);
}

// As C's atan2, signs of zeros and infinities included.
float atan_of(float y, float x) {
    if (is_nan(x) || is_nan(y)) return NOT_A_NUMBER;
    bool back = sign_bit(x) != 0u;
    float result;
    int x_exponent, y_exponent;
    float a = split(y, y_exponent);
    float b = split(x, x_exponent);
    int apart = y_exponent - x_exponent;
    if (is_infinite(x) && is_infinite(y)) {
        result = (back ? 0.75 : 0.25) * PI.x;
    } else if (is_zero(y) || is_infinite(x) || (apart < -30 && !is_infinite(y) && !is_zero(x))) {
        if (back) result = PI.x;
        else result = is_zero(y) || is_infinite(x) ? 0.0 : divide(magnitude(y), magnitude(x));
    } else if (is_zero(x) || is_infinite(y) || apart > 30) {
        result = 0.5 * PI.x;
    } else {
        PAIR angle = angle_of(exact(a), exact(b * power_of_two(-apart)));
        result = sum_of(back ? add(PI, -angle) : angle);
    }
    return with_sign(result, sign_bit(y));
}

// The product with a factor keeps its digits where the other one alone is a denormal.
float scaled_product(PAIR x, int exponent, float factor) {
    int factor_exponent;
    PAIR product = multiply(x, exact(split(factor, factor_exponent)));
    float result = scaled(sum_of(product), exponent + factor_exponent);
    return with_sign(result, sign_bit(factor));
}

// (1 - erf(x)) * by, for x >= 0.4.
float erfc_of(PAIR x, float by) {
    if (x.x > 14.0) return uintBitsToFloat(sign_bit(by));
    PAIR t = divide(PAIR(2.0, 0.0), add(PAIR(2.0, 0.0), x));
    precise float series = 0.05853798985481262;
    series = series * t.x - 0.30883264541625977;
    series = series * t.x + 0.6483548879623413;
    series = series * t.x - 0.6377036571502686;
    series = series * t.x + 0.2666832506656647;
    series = series * t.x - 0.12321817874908447;
    series = series * t.x + 0.11325307935476303;
    series = series * t.x + 0.17141978442668915;
    series = series * t.x + 0.2473490685224533;
    series = series * t.x + 0.2820635437965393;
    series = series * t.x;
    PAIR factor = multiply(t, pair_of_ordered_sum(0.28209561109542847, series));
    int exponent;
    PAIR power = add(ONE, exp_parts(-multiply(x, x), exponent));
    PAIR product = multiply(power, factor);
    return scaled_product(multiply(power, factor), exponent, by);
}

// erf(x) for |x| < 1.
PAIR erf_series(PAIR x) {
    precise float square = x.x * x.x;
    precise float tail = 9.42275906e-11;
    tail = tail * square - 1.22905553e-9;
    tail = tail * square + 1.48071928e-8;
    tail = tail * square - 1.63658447e-7;
    tail = tail * square + 1.64621144e-6;
    tail = tail * square - 1.49256504e-5;
    tail = tail * square + 1.20553330e-4;
    tail = tail * square - 8.54832702e-4;
    tail = tail * square + 5.22397763e-3;
    tail = tail * square - 2.68661706e-2;
    tail = tail * square + 1.12837917e-1;
    tail = tail * square - 3.76126389e-1;
    PAIR product = multiply(x, TWO_OVER_ROOT_PI);
    return add(product, exact(tail * square * x.x));
}

float erf_of(float x) {
    float size = magnitude(x);
    if (is_nan(x) || is_zero(x)) return x;
    if (size < 2.44140625e-4) {  // 2 / sqrt(pi) times x
        int exponent;
        PAIR factor = multiply(TWO_OVER_ROOT_PI, exact(split(x, exponent)));
        return with_sign(scaled(sum_of(factor), exponent), sign_bit(x));
    }
    float result = size < 1.0 ? sum_of(erf_series(exact(size)))
                 : size < 4.0 ? 1.0 - erfc_of(exact(size), 1.0) : 1.0;
    return with_sign(result, sign_bit(x));
}

// x times the normal distribution's share below x.
float gelu_of(float x) {
    if (is_nan(x) || is_zero(x)) return x;
    if (is_infinite(x)) return sign_bit(x) != 0u ? 0.0 : x;
    PAIR z = multiply(exact(x), PAIR(0.7071067690849304, 1.2101617485882343e-08));
    precise float result;
    if (z.x <= -0.5) result = erfc_of(-z, 0.5 * x);
    else if (z.x >= 4.0) result = x;
    else if (z.x >= 1.0) result = x - erfc_of(z, 0.5 * x);
    else if (magnitude(x) < 1.0e-9) result = 0.5 * x;
    else result = sum_of(multiply(add(ONE, erf_series(z)), exact(0.5 * x)));
    return result;
}

float sigmoid_of(PAIR x) {
    if (SHORT_PAIRS) return 1.0 / (1.0 + short_exp(negated(x.x), 0));
    if (is_nan(x.x)) return x.x;
    if (x.x < -20.0) return exp_of(x, 0);
    if (x.x > 20.0) return 1.0;
    PAIR e = exp_pair(x);
    return sum_of(divide(e, add(ONE, e)));
}

// ln(1 + exp(x))
PAIR softplus_pair(PAIR x) {
    if (is_nan(x.x) || x.x > 20.0) return x;
    if (x.x < -20.0) return exact(exp_of(x, 0));
    return log1p_pair(exp_pair(x));
}

// x times the logistic function of z.
float swish_of(float x, PAIR z) {
    if (is_nan(x) || is_nan(z.x)) return NOT_A_NUMBER;
    precise float product = x * sigmoid_of(z);
    if (z.x >= -20.0) return product;
    if (z.x < -200.0 || is_infinite(x)) return uintBitsToFloat(sign_bit(x));
    int exponent;
    PAIR power = add(ONE, exp_parts(z, exponent));
    return scaled_product(power, exponent, x);
}
