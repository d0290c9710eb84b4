//@ op DML_OPERATOR_ELEMENT_WISE_ADD1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/elementwise_float.glsl"
#include "include/activation_by_code.glsl"

float compute(float x, float y) {
    precise float sum = x + y;
    return activate(sum);
}
