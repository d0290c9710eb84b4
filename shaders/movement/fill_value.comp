//@ op DML_OPERATOR_FILL_VALUE_CONSTANT DML_OPERATOR_FILL_VALUE_SEQUENCE
//@ variants OP: constant float_sequence integer_sequence
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define INPUTS 1
#define NUMBERED
#define ATTRIBUTES uint start[2]; uint delta[2];
#include "include/elementwise.glsl"
#include "include/integers64.glsl"
#include "include/typed.glsl"

// start + number * delta. Integers of all widths are computed in 64 bits and wrap. Floats are computed in
// float32, and each step is rounded.
uvec2 constant(uint number) {
    return uvec2(start[0], start[1]);
}

uvec2 integer_sequence(uint number) {
    uvec2 steps = multiply64(uvec2(number, 0u), uvec2(delta[0], delta[1]));
    return add64(uvec2(start[0], start[1]), steps);
}

uvec2 float_sequence(uint number) {
    // The number in two halves, by their bits: conversions take longer.
    precise float high = uintBitsToFloat(0x53000000u | number >> 16u) - 549755813888.0;
    precise float low = uintBitsToFloat(0x4B000000u | number & 0xFFFFu) - 8388608.0;
    precise float x = uintBitsToFloat(start[0]) + (high + low) * uintBitsToFloat(delta[0]);
    return uvec2(bits_of(x, OUT_TYPE), 0u);
}

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    return OP(a.x);
}
