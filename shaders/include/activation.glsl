// The activation that an operator fuses: float activate(float x), of the finished float32 value.
// The includer has include/params.glsl and a push field activation_at, where the activation's
// attributes begin in the params buffer. lowering/activation.py has the codes.
layout(constant_id = 32) const uint FUSED_ACTIVATION = 0u;  // none
#include "include/units.glsl"
const bool SHORT = false;
#include "include/float16.glsl"
#include "include/exponentials.glsl"
#include "include/sigmoids.glsl"
#include "include/short_functions.glsl"

float parameter(uint i) {
    return param_float(activation_at + i);
}

#include "include/activation_parts.glsl"

#define ACTIVATION(name, expression) \
    float fused_##name(float x) { \
        precise float result = expression; \
        return result; \
    }
#include "include/activation_table.glsl"

// By code; a constant one leaves a single function.
float activate_as(uint code, float x) {
    if (code == 1u) return fused_relu(x);
    if (code == 2u) return fused_leaky_relu(x);
    if (code == 3u) return fused_thresholded_relu(x);
    if (code == 4u) return fused_linear(x);
    if (code == 5u) return fused_hard_sigmoid(x);
    if (code == 6u) return fused_shrink(x);
    if (code == 7u) return fused_elu(x);
    if (code == 8u) return fused_celu(x);
    if (code == 9u) return fused_scaled_elu(x);
    if (code == 10u) return fused_sigmoid(x);
    if (code == 11u) return fused_tanh(x);
    if (code == 12u) return fused_scaled_tanh(x);
    if (code == 13u) return fused_softplus(x);
    if (code == 14u) return fused_parametric_softplus(x);
    if (code == 15u) return fused_softsign(x);
    if (code == 16u) return fused_gelu(x);
    if (code == 17u) return minimum(parameter(1u), maximum(parameter(0u), x));  // clip
    return x;
}

float activate(float x) {
    return activate_as(FUSED_ACTIVATION, x);
}
