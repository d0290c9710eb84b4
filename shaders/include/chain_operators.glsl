// The operators of chains: float op_<name>(float x, float y), all activations among them. The includer
// defines SHORT (results need only the digits of a FLOAT16) and parameter(i), an attribute.
#define EITHER(name, arguments) (SHORT ? short_##name arguments : name##_of arguments)
#define ALPHA parameter(0u)
#define BETA parameter(1u)
#define LOWER parameter(0u)
#define UPPER parameter(1u)

// x limited to [0, 1], or NaN.
float within_one(float x) {
    float limit = x < 1.0 ? 0.0 : 1.0;
    return is_nan(x) || (x > 0.0 && x < 1.0) ? x : limit;
}

// ``result`` where neither x nor a bound is NaN.
float short_bounded(float x, float result) {
    return is_nan(LOWER) || is_nan(UPPER) || isnan(x) ? NOT_A_NUMBER : result;
}

float quotient(float x, float y) {
    return SHORT ? short_quotient(x, y) : divide(x, y);
}

#define OPERATOR(name, expression) \
    float op_##name(float x, float y) { \
        precise float result = expression; \
        return result; \
    }

OPERATOR(add, x + y)
OPERATOR(subtract, x - y)
OPERATOR(multiply, x * y)
OPERATOR(divide, quotient(x, y))
OPERATOR(abs, magnitude(x))
OPERATOR(negate, negated(x))
OPERATOR(recip, quotient(1.0, x))
OPERATOR(sqrt, EITHER(sqrt, (x)))
OPERATOR(exp, EITHER(exp, (x)))
OPERATOR(log, EITHER(log, (x)))
OPERATOR(erf, EITHER(erf, (x)))
OPERATOR(square, x * x)
OPERATOR(floor, floored(x))
OPERATOR(ceil, ceiled(x))
OPERATOR(sign, is_nan(x) ? x : is_zero(x) ? 0.0 : with_sign(1.0, sign_bit(x)))
OPERATOR(clip, SHORT ? short_bounded(x, min(max(x, LOWER), UPPER)) : minimum(UPPER, maximum(LOWER, x)))
OPERATOR(clip1, SHORT ? short_bounded(x, max(min(x, UPPER), LOWER)) : maximum(LOWER, minimum(x, UPPER)))

#define ACTIVATION(name, expression) OPERATOR(name, expression)
#include "include/activation_table.glsl"

// DirectML's operators do not fuse these two. Graphs do.
OPERATOR(swish, EITHER(swish, (x, ALPHA)))
OPERATOR(hard_swish, x * within_one(ALPHA * x + BETA))

// toolchain/codes.py gives the codes to Python. ``code`` should be constant even before inlining.
#define APPLY_ACTIVATION(code, x, y, result) \
    if (code == 1u) result = op_relu(x, y); \
    if (code == 2u) result = op_leaky_relu(x, y); \
    if (code == 3u) result = op_thresholded_relu(x, y); \
    if (code == 4u) result = op_linear(x, y); \
    if (code == 5u) result = op_hard_sigmoid(x, y); \
    if (code == 6u) result = op_shrink(x, y); \
    if (code == 7u) result = op_elu(x, y); \
    if (code == 8u) result = op_celu(x, y); \
    if (code == 9u) result = op_scaled_elu(x, y); \
    if (code == 10u) result = op_sigmoid(x, y); \
    if (code == 11u) result = op_tanh(x, y); \
    if (code == 12u) result = op_scaled_tanh(x, y); \
    if (code == 13u) result = op_softplus(x, y); \
    if (code == 14u) result = op_parametric_softplus(x, y); \
    if (code == 15u) result = op_softsign(x, y); \
    if (code == 16u) result = op_gelu(x, y); \
    if (code == 17u) result = op_clip(x, y); \
    if (code == 18u) result = op_hard_swish(x, y); \
    if (code == 19u) result = op_swish(x, y);

#define APPLY(code, x, y, result) \
    APPLY_ACTIVATION(code, x, y, result) \
    if (code == 20u) result = op_add(x, y); \
    if (code == 21u) result = op_subtract(x, y); \
    if (code == 22u) result = op_multiply(x, y); \
    if (code == 23u) result = op_divide(x, y); \
    if (code == 24u) result = maximum(x, y); \
    if (code == 25u) result = minimum(x, y); \
    if (code == 26u) result = op_abs(x, y); \
    if (code == 27u) result = op_negate(x, y); \
    if (code == 28u) result = op_recip(x, y); \
    if (code == 29u) result = op_sqrt(x, y); \
    if (code == 30u) result = op_exp(x, y); \
    if (code == 31u) result = op_log(x, y); \
    if (code == 32u) result = op_erf(x, y); \
    if (code == 33u) result = op_square(x, y); \
    if (code == 34u) result = op_floor(x, y); \
    if (code == 35u) result = op_ceil(x, y); \
    if (code == 36u) result = op_sign(x, y); \
    if (code == 37u) result = op_clip1(x, y);
