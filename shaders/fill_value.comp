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
#include "include/float16.glsl"
#include "include/float_pairs.glsl"

// start + number * delta: integers of all widths in 64 bits, wrapped; floating point as a pair that is
// rounded once, so that numbers beyond 2^24 count too.
uvec2 constant(uint number) {
    return uvec2(start[0], start[1]);
}

uvec2 integer_sequence(uint number) {
    uvec2 steps = multiply64(uvec2(number, 0u), uvec2(delta[0], delta[1]));
    return add64(uvec2(start[0], start[1]), steps);
}

uvec2 float_sequence(uint number) {
    // By their digits: conversions take longer.
    precise float high = uintBitsToFloat(0x53000000u | number >> 16u) - 549755813888.0;
    precise float low = uintBitsToFloat(0x4B000000u | number & 0xFFFFu) - 8388608.0;
    PAIR exact = pair_of_ordered_sum(high, low);
    float by = uintBitsToFloat(delta[0]);
    PAIR steps = pair_of_product(exact.x, by);
    PAIR sum = pair_of_sum(uintBitsToFloat(start[0]), steps.x);
    precise float rest = sum.y + scaled_sum(exact.y, by, steps.y);
    float x = sum_of(PAIR(sum.x, rest));
    if (is_nan(x)) x = scaled_sum(exact.x, by, uintBitsToFloat(start[0]));  // also of infinities
    return uvec2(BYTES_OF(OUT_TYPE) == 2u ? float_to_half(x) : floatBitsToUint(x), 0u);
}

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    return OP(a.x);
}
