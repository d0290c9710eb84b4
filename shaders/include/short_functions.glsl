// Functions with float16 results, for devices with HAS_EXACT_UNITS: exp2, log2, sqrt and quotients are
// accurate to a few ulp of float32, and treat infinities and NaN as C does. For arguments in the range of
// float16, no step leaves the range of float32.
#ifndef INCLUDED_SHORT_FUNCTIONS
#define INCLUDED_SHORT_FUNCTIONS

float short_exp(float x) {
    return exp2(x * LOG2_E);
}

float short_expm1(float x) {
    float small = (0.166697115 * x + 0.500310898) * x * x + x;
    return abs(x) < 0.1 ? small : short_exp(x) - 1.0;
}

float short_log(float x) {
    float f = x - 1.0;
    float small = (0.333750725 * f - 0.500468433) * f * f + f;
    return abs(f) < 0.05 ? small : log2(x) * LN2;
}

float short_sqrt(float x) {
    float inverse = inversesqrt(x + 1.0e-30);  // also for 0
    precise float root = x * inverse;
    precise float rest = fma(-root, root, x);
    root = fma(rest, 0.5 * inverse, root);
    return x > 65504.0 ? x : root;
}

// The square root to a few ulp.
float short_root(float x) {
    return 1.0 / inversesqrt(x);
}

float short_quotient(float x, float y) {
    float inverse = 1.0 / y;
    float guess = x * inverse;
    float rest = fma(-guess, y, x);  // NaN if one of them is infinite
    return abs(rest) > 0.0 ? fma(rest, inverse, guess) : guess;
}

float short_sinh(float x) {
    float power = short_exp(x);
    float large = 0.5 * power - 0.5 / power;
    return abs(x) < 0.25 ? (0.167098358 * x * x + 1.0) * x : large;
}

float short_cosh(float x) {
    float power = short_exp(x);
    return 0.5 * power + 0.5 / power;
}

float short_tanh(float x) {
    float small = (1.0 - 0.332232505 * x * x) * x;
    return abs(x) < 0.1 ? small : 1.0 - 2.0 / (1.0 + short_exp(2.0 * x));
}

float short_asinh(float x) {
    float small = (1.0 - 0.166048601 * x * x) * x;
    float large = log2(abs(x) + short_root(x * x + 1.0)) * LN2;
    return abs(x) < 0.1 ? small : with_sign(large, sign_bit(x));
}

float short_acosh(float x) {
    float result = log2(x + short_root(x * x - 1.0)) * LN2;
    return x < 1.0 ? NOT_A_NUMBER : result;
}

float short_atanh(float x) {
    float small = (0.335000664 * x * x + 1.0) * x;
    return abs(x) < 0.1 ? small : log2((1.0 + x) / (1.0 - x)) * (0.5 * LN2);
}

// x = k * pi / 2 + result
float short_angle(float x, float k) {
    return fma(k, -7.54979013e-8, fma(k, -1.57079625, x));
}

// sin(x + turns * pi), |x| <= pi / 2. Only the last bit of turns counts.
float short_sine(float x, uint turns) {
    float square = x * x;
    float tail = (8.31423420e-3 - 1.85408760e-4 * square) * square - 0.166658506;
    float result = (tail * square + 1.0) * x;
    return uintBitsToFloat(floatBitsToUint(result) ^ turns << 31);
}

float short_sin(float x) {
    precise float shifted = fma(x, 0.318309873, 12582912.0);  // rounded to a whole number
    precise float turns = shifted - 12582912.0;
    return short_sine(short_angle(x, 2.0 * turns), floatBitsToUint(shifted));
}

float short_cos(float x) {
    precise float shifted = fma(x, 0.318309873, 0.5) + 12582912.0;
    precise float turns = shifted - 12582912.0;
    precise float odd = 2.0 * turns - 1.0;  // one constant for both terms would be rounded
    return short_sine(short_angle(x, odd), floatBitsToUint(shifted));
}

float short_tan(float x) {
    precise float shifted = fma(x, 0.636619747, 12582912.0);
    precise float turns = shifted - 12582912.0;
    float r = short_angle(x, turns);
    float square = r * r;
    float tail = (4.32229750e-2 * square + 4.12601382e-2) * square + 0.136107177;
    float result = ((tail * square + 0.333150804) * square + 1.0) * r;
    return (floatBitsToUint(shifted) & 1u) != 0u ? -1.0 / result : result;
}

// asin x for |x| < 0.5, else asin sqrt((1 - |x|) / 2)
float short_asin_part(float x) {
    float square = abs(x) < 0.5 ? x * x : 0.5 - 0.5 * abs(x);
    float t = abs(x) < 0.5 ? x : short_root(square);
    float tail = (6.41074255e-2 * square + 7.18997791e-2) * square + 0.166801259;
    return (tail * square + 1.0) * t;
}

float short_asin(float x) {
    float part = short_asin_part(x);
    return abs(x) < 0.5 ? part : with_sign(1.57079637 - 2.0 * part, sign_bit(x));
}

float short_acos(float x) {
    float part = short_asin_part(x);
    float large = x < 0.0 ? 3.14159274 - 2.0 * part : 2.0 * part;
    return abs(x) < 0.5 ? 1.57079637 - part : large;
}

// atan x for |x| <= 1
float short_atan_part(float x) {
    float square = x * x;
    float tail = (5.87698556e-2 - 1.39549188e-2 * square) * square - 0.122514717;
    tail = (tail * square + 0.196183011) * square - 0.333088994;
    return (tail * square + 1.0) * x;
}

float short_atan(float x) {
    bool steep = abs(x) > 1.0;
    float part = short_atan_part(steep ? 1.0 / x : x);
    return steep ? with_sign(1.57079637, sign_bit(x)) - part : part;
}

float short_atan(float y, float x) {
    bool steep = magnitude_bits(y) > magnitude_bits(x);
    float smaller = abs(steep ? x : y), larger = abs(steep ? y : x);
    float t = smaller / (larger + 1.0e-30);  // also for 0
    if (smaller > 65504.0 && larger > 65504.0) t = 1.0;
    float part = short_atan_part(t);
    float angle = steep ? 1.57079637 - part : part;
    return with_sign(sign_bit(x) != 0u ? 3.14159274 - angle : angle, sign_bit(y));
}

// log2, with an error of 2^-21 of the result or of 1 / 4.
float short_log2(float x) {
    float f = x - 1.0;
    float small = (0.203200132 * f - 0.253280520) * f + 0.333317310;
    small = ((small * f - 0.499987274) * f * f + f) * LOG2_E;
    return abs(f) < 0.125 ? small : log2(x);
}

float short_erf(float x) {
    float size = abs(x);
    // log2(1 - erf) is approximated by a polynomial without a constant term.
    float tail = (2.97995973e-2 - 2.99712084e-3 * size) * size - 0.148938686;
    tail = (tail * size - 0.918375969) * size - 1.62790823;
    float large = 1.0 - exp2(tail * size);
    float small = (1.12837917 - 0.376126389 * x * x) * x;
    return size < 0.0078125 ? small : with_sign(large, sign_bit(x));
}

// log2 of the normal distribution's tail beyond t is approximated by a polynomial, too.
float short_gelu(float x) {
    float t = min(abs(x), 14.0);
    float tail = (3.24488392e-5 * t - 7.48467632e-4) * t + 7.94246234e-3;
    tail = (tail * t - 5.30521311e-2) * t - 0.459170341;
    tail = (tail * t - 1.15103650) * t - 1.00000763;
    return rectified(x) - t * exp2(tail);
}

float short_sigmoid(float x) {
    return 1.0 / (1.0 + exp2(-LOG2_E * x));
}

float short_swish(float x, float scale) {
    float result = x * short_sigmoid(scale * x);
    return scale * x < -100.0 ? uintBitsToFloat(sign_bit(x)) : result;
}

// ln(1 + exp(-|scale * x|))
float short_softplus_part(float x, float scale) {
    float e = exp2(-abs(scale * LOG2_E) * abs(x));
    float tail = (0.103592046 - 2.47342680e-2 * e) * e - 0.212403774;
    tail = (tail * e + 0.326225966) * e - 0.499539465;
    return (tail * e + 1.0) * e;
}
#endif
