//@ op DML_OPERATOR_ACTIVATION_RELU_GRAD
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define INPUTS 2
#define ATTRIBUTES
#include "include/elementwise.glsl"

// The gradient if the input is above 0 and not NaN, else 0. Positive floats and integers have the order
// of their bits.
uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    const uint most = A_TYPE == 34u ? 0x7C00u : A_TYPE == 36u ? 0x7F800000u : 0x7FFFFFFFu;
    return a.x != 0u && a.x <= most ? b : uvec2(0u);
}
