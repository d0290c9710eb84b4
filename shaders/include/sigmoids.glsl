// The error function and parts of activations, with the rules of exponentials.glsl.
#ifndef INCLUDED_SIGMOIDS
#define INCLUDED_SIGMOIDS

float erf_of(float x) {
    float size = magnitude(x);
    float square = size * size;
    float tail = 1.56526342e-2 - 1.26139203e-3 * size;
    tail = tail * size - 9.13230106e-2;
    tail = tail * size - 0.650453448;
    tail = tail * size - 1.12039804;
    tail = tail * size - 1.82220014e-3;
    float large = size > 4.0 ? 1.0 : 1.0 - exp_below_one(tail, 0.0);
    tail = 5.00433939e-3 - 6.05339184e-4 * square;
    tail = tail * square - 2.67733969e-2;
    tail = tail * square + 0.112819783;
    tail = tail * square - 0.376125067;
    tail = tail * square + 0.128379151;
    return with_sign(size < 0.9 ? tail * size + size : large, sign_bit(x));
}

// Whether x >= 0 or NaN, which passes through.
bool at_least_zero(float x) {
    return floatBitsToUint(x) - 0x80000001u >= 0x7F800000u;
}

float rectified(float x) {
    return at_least_zero(x) ? x : 0.0;
}

// x times the normal distribution below x. The tail beyond t has the share t * share.
float gelu_of(float x) {
    float end = 13.27;  // the power is 0 from here on
    if (HAS_EXACT_UNITS) end = 20.0;
    float t = magnitude(x) > 13.2 ? end : magnitude(x);
    // The tail is exp(-t^2 / 2) times a rational function.
    PAIR z = pair_of_product(t, -0.5 * t);
    float power = exp_below_one(z.x, z.y);
    // Pairs of terms lose less precision than one term after the other.
    float above = 1.62278954e-2 * z.x - (8.04317802e-2 * t + 0.363933324);
    above = above * z.x + (0.436535507 * t + 0.5);
    float below = (4.06767504e-2 * t + 0.403253884) * z.x - (0.932260156 * t + 2.39431786);
    below = below * z.x + (1.67095590 * t + 1.0);
    float share = above / below;
    if (HAS_EXACT_UNITS) share = fma(rest_of(above, share, below), 1.0 / below, share);
    return max(x, 0.0) - t * (power * share);  // t brings NaN
}

float sigmoid_of(float x) {
    return 1.0 / (1.0 + exp_of(-x));
}

// x times the logistic function of scale * x
float swish_of(float x, float scale) {
    PAIR z = pair_of_product(x, scale);
    float result = x / (1.0 + exp_of(-z.x, -z.y));
    return z.x < -100.0 ? uintBitsToFloat(sign_bit(x)) : result;
}

// ln(1 + exp(-|scale * x|))
float softplus_part_of(float x, float scale) {
    PAIR z = pair_of_product(-magnitude(x), magnitude(scale));
    float e = exp_below_one(z.x, z.y);
    if (z.x < -87.0) e = 0.0;
    float tail = 5.36542246e-3 * e - 3.00683007e-2;
    tail = tail * e + 7.92088285e-2;
    tail = tail * e - 0.137541875;
    tail = tail * e + 0.191538483;
    tail = tail * e - 0.248572171;
    tail = tail * e + 0.333213300;
    tail = tail * e - 0.499996483;
    return tail * e * e + e;
}

float softsign_of(float x) {
    float result = x / (1.0 + magnitude(x));
    if (magnitude(x) > 1.0e9) result = with_sign(1.0, sign_bit(x));
    return is_infinite(x) ? NOT_A_NUMBER : result;
}
#endif
