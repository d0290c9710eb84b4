// float activate(float x): the fused activation of a finished float32 value. The includer includes
// include/chain_operators.glsl.
layout(constant_id = 32) const uint FUSED_ACTIVATION = 0u;  // none

float activate_as(uint code, float x) {
    float result = x;
    APPLY_ACTIVATION(code, x, 0.0, result)
    return result;
}

float activate(float x) {
    float result = x;
    APPLY_ACTIVATION(FUSED_ACTIVATION, x, 0.0, result)
    return result;
}
