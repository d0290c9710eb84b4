//@ op DML_OPERATOR_ELEMENT_WISE_IF
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define INPUTS 3
#define ATTRIBUTES
#include "include/elementwise.glsl"

// The bits of b if the condition a is not 0, else of c.
uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    return a.x != 0u ? b : c;
}
