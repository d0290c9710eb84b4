//@ op -
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A chain of up to 8 elementwise operators over up to 3 tensors of one type. Specialization constants
// name the operators, so the code of others is removed.
layout(constant_id = 40) const uint STEP_0 = 0u;  // code, left << 8, right << 12, value << 16
layout(constant_id = 41) const uint STEP_1 = 0u;
layout(constant_id = 42) const uint STEP_2 = 0u;
layout(constant_id = 43) const uint STEP_3 = 0u;
layout(constant_id = 44) const uint STEP_4 = 0u;
layout(constant_id = 45) const uint STEP_5 = 0u;
layout(constant_id = 46) const uint STEP_6 = 0u;
layout(constant_id = 47) const uint STEP_7 = 0u;
layout(constant_id = 48) const uint VALUE_0 = 0u;  // numbers and attributes of the steps
layout(constant_id = 49) const uint VALUE_1 = 0u;
layout(constant_id = 50) const uint VALUE_2 = 0u;
layout(constant_id = 51) const uint VALUE_3 = 0u;
layout(constant_id = 52) const uint VALUE_4 = 0u;
layout(constant_id = 53) const uint VALUE_5 = 0u;
layout(constant_id = 54) const uint VALUE_6 = 0u;
layout(constant_id = 55) const uint VALUE_7 = 0u;
uint values_at;  // the step's first value

float value_of(uint i) {
    return uintBitsToFloat(i == 0u ? VALUE_0 : i == 1u ? VALUE_1 : i == 2u ? VALUE_2 :
                           i == 3u ? VALUE_3 : i == 4u ? VALUE_4 : i == 5u ? VALUE_5 :
                           i == 6u ? VALUE_6 : VALUE_7);
}

#define INPUTS 3
#define ATTRIBUTES
#define PARAMETER(i) value_of(values_at + i)
#define COMPUTES
#include "include/elementwise_float.glsl"

float known[11];  // the tensors' elements, then the result of each step

#define CHAIN_TYPE OUT_TYPE
#include "include/chain_step.glsl"

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    float result = 0.0;
    known[0] = number_of(a, OUT_TYPE);
    known[1] = number_of(b, OUT_TYPE);
    known[2] = number_of(c, OUT_TYPE);
    STEP(0u, STEP_0, STEP_1)
    STEP(1u, STEP_1, STEP_2)
    STEP(2u, STEP_2, STEP_3)
    STEP(3u, STEP_3, STEP_4)
    STEP(4u, STEP_4, STEP_5)
    STEP(5u, STEP_5, STEP_6)
    STEP(6u, STEP_6, STEP_7)
    STEP(7u, STEP_7, 0u)
    return uvec2(OUT_BYTES == 2u ? float_to_half(result) : floatBitsToUint(result), 0u);
}
