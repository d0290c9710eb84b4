//@ op -
//@ variants OP: @OPERATOR @ACTIVATION
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/elementwise_float.glsl"

#define NAMED(op) op_##op
#define CALL(op) NAMED(op)

float compute(float x, float y) {
    return CALL(OP)(x, y);
}
