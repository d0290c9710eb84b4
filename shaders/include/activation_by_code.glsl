// float activate(float x): the fused activation of a finished float32 value. The includer defines
// float parameter(uint i), an attribute of the activation. lowering/activation.py has the codes.
layout(constant_id = 32) const uint FUSED_ACTIVATION = 0u;  // none

#define ACTIVATION(name, expression) \
    float fused_##name(float x) { \
        precise float result = expression; \
        return result; \
    }
#include "include/activation_table.glsl"

// DirectML's operators do not fuse these two. Graphs do.
float fused_hard_swish(float x) {
    precise float result = x * within_one(ALPHA * x + BETA);
    return result;
}

float fused_swish(float x) {
    precise float result = EITHER(swish, (x, ALPHA));
    return result;
}

#define BY_CODE(code) \
    if (code == 1u) return fused_relu(x); \
    if (code == 2u) return fused_leaky_relu(x); \
    if (code == 3u) return fused_thresholded_relu(x); \
    if (code == 4u) return fused_linear(x); \
    if (code == 5u) return fused_hard_sigmoid(x); \
    if (code == 6u) return fused_shrink(x); \
    if (code == 7u) return fused_elu(x); \
    if (code == 8u) return fused_celu(x); \
    if (code == 9u) return fused_scaled_elu(x); \
    if (code == 10u) return fused_sigmoid(x); \
    if (code == 11u) return fused_tanh(x); \
    if (code == 12u) return fused_scaled_tanh(x); \
    if (code == 13u) return fused_softplus(x); \
    if (code == 14u) return fused_parametric_softplus(x); \
    if (code == 15u) return fused_softsign(x); \
    if (code == 16u) return fused_gelu(x); \
    if (code == 17u) return minimum(parameter(1u), maximum(parameter(0u), x)); /* clip */ \
    if (code == 18u) return fused_hard_swish(x); \
    if (code == 19u) return fused_swish(x); \
    return x;

float activate_as(uint code, float x) {
    BY_CODE(code)
}

// FUSED_ACTIVATION is used directly, not as a parameter: it is constant even before inlining.
float activate(float x) {
    BY_CODE(FUSED_ACTIVATION)
}
