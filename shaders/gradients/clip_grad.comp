//@ op DML_OPERATOR_ELEMENT_WISE_CLIP_GRAD DML_OPERATOR_ELEMENT_WISE_CLIP_GRAD1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define INPUTS 2
#define ATTRIBUTES uint attributes[4];
#include "include/elementwise.glsl"
#include "include/typed.glsl"
#include "include/integers64.glsl"

// The gradient passes if the input lies strictly between the limits or is NaN. A NaN limit has no effect.
bool is_inside(uvec2 x) {
    if (IS_FLOAT(A_TYPE)) {
        float number = number_of(x, A_TYPE);
        float low = uintBitsToFloat(attributes[0]), high = uintBitsToFloat(attributes[1]);
        // The ranks that pass, which are the same for all elements.
        int first = is_nan(low) ? -0x7F800000 : rank_of(low) + 1;
        int last = is_nan(high) ? 0x7F800000 : rank_of(high) - 1;
        uint count = last < first ? 0u : uint(last - first) + 1u;
        return is_nan(number) || uint(rank_of(number) - first) < count;
    }
    if (BYTES_OF(A_TYPE) == 8u)
        return less64(uvec2(attributes[0], attributes[1]), x, IS_SIGNED(A_TYPE))
            && less64(x, uvec2(attributes[2], attributes[3]), IS_SIGNED(A_TYPE));
    if (IS_SIGNED(A_TYPE)) return int(attributes[0]) < int(x.x) && int(x.x) < int(attributes[1]);
    return attributes[0] < x.x && x.x < attributes[1];
}

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    return is_inside(a) ? b : uvec2(0u);
}
