//@ op -
//@ variants OP: @OPERATOR
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define INPUTS 2
#define ATTRIBUTES uint scale; uint bias; uint attributes[5];
#include "include/elementwise.glsl"

// Operators on FLOAT64, for devices with shaderFloat64.
layout(constant_id = 6) const bool HAS_SCALE_BIAS = false;

#define OPERATOR(name, expression) \
    double op_##name(double x, double y) { \
        return expression; \
    }

OPERATOR(identity, x)

#define NAMED(op) op_##op
#define CALL(op) NAMED(op)

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    precise double x = packDouble2x32(a);
    if (HAS_SCALE_BIAS)
        x = x * double(uintBitsToFloat(scale)) + double(uintBitsToFloat(bias));
    return unpackDouble2x32(CALL(OP)(x, packDouble2x32(b)));
}
