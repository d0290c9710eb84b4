//@ op -
#version 450
#extension GL_GOOGLE_include_directive : require
// One of the device's own functions, for runtime/exactness.py: an invocation computes one result.
layout(constant_id = 1) const uint FUNCTION = 0u;
#include "include/grid.glsl"
layout(binding = 0) readonly buffer A { uint a_words[]; };
layout(binding = 1) readonly buffer B { uint b_words[]; };
layout(binding = 2) readonly buffer C { uint c_words[]; };
layout(binding = 3) writeonly buffer Results { uint results[]; };
layout(push_constant) uniform Push {
    uint count;
    uint a_offset;
    uint b_offset;
    uint c_offset;
    uint y_offset;
};

void main() {
    uint i = invocation_index();
    if (i >= count) return;
    uint word = a_words[a_offset + i], result;
    float a = uintBitsToFloat(word), b = uintBitsToFloat(b_words[b_offset + i]);
    precise float c = uintBitsToFloat(c_words[c_offset + i]);
    if (FUNCTION == 0u) {
        c = fma(a, b, c);
        result = floatBitsToUint(c);
    } else if (FUNCTION == 1u) {
        result = packHalf2x16(vec2(a, 0.0));
    } else if (FUNCTION == 2u) {
        result = floatBitsToUint(unpackHalf2x16(word).x);
    } else if (FUNCTION == 3u) {
        result = floatBitsToUint(float(int(word)));
    } else if (FUNCTION == 4u) {
        result = floatBitsToUint(exp2(a));
    } else if (FUNCTION == 5u) {
        result = floatBitsToUint(log2(a));
    } else if (FUNCTION == 6u) {
        result = floatBitsToUint(sqrt(a));
    } else if (FUNCTION == 7u) {
        result = floatBitsToUint(inversesqrt(a));
    } else {
        result = floatBitsToUint(a / b);
    }
    results[y_offset + i] = result;
}
