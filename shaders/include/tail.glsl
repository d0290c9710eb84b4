// float finish(float x, uint at): the fused activation of a finished float32 value. In variants with TAIL,
// a chain of up to four elementwise operators follows, which graphs fuse. Its operands are that value and
// a tensor with the output's strides; ``at`` is the element's place in both. With FLOAT16 each result is
// rounded, as if it were stored. ``finish_beside`` takes the tensor's element instead of the place;
// ``tail_four`` reads four elements that are an aligned vector. The includer includes
// include/params.glsl and include/tailed.glsl, and defines TAIL_BINDING, TAIL_TYPE and a push field
// activation_at.
#if defined(TAIL)
layout(constant_id = 40) const uint TAIL_0 = 0u;
layout(constant_id = 41) const uint TAIL_1 = 0u;
layout(constant_id = 42) const uint TAIL_2 = 0u;
layout(constant_id = 43) const uint TAIL_3 = 0u;
layout(constant_id = 44) const bool HAS_TAIL_TENSOR = false;
uint values_at = 0u;  // of the activation, then of the step
#define ATTRIBUTES_AT (activation_at + values_at)
#include "include/activation.glsl"
#define CHAIN_TYPE TAIL_TYPE
#include "include/chain_step.glsl"
INPUT_TENSOR(tail, TAIL_BINDING, TAIL_TYPE)
layout(binding = TAIL_BINDING) readonly buffer TailPairs { uvec2 tail_pairs[]; };

float value_of(uint i) {
    return param_float(activation_at + i);
}

float tail_one(uint at) {
    return HAS_TAIL_TENSOR ? tail_float(tail_offset + at) : 0.0;
}

vec4 tail_four(uint at) {
    if (!HAS_TAIL_TENSOR) return vec4(0.0);
    at = (tail_offset + at) / 4u;
    if (BYTES_OF(TAIL_TYPE) == 4u) return uintBitsToFloat(tail_vectors[at]);
    uvec2 pair = tail_pairs[at];
    return vec4(half_to_float(pair.x & 0xFFFFu), half_to_float(pair.x >> 16),
                half_to_float(pair.y & 0xFFFFu), half_to_float(pair.y >> 16));
}

float finish_beside(float x, float other) {
    float result = activate(x);
    float known[11];
    known[0] = BYTES_OF(TAIL_TYPE) == 2u ? rounded_to_half(result) : result;
    known[1] = other;
    STEP(0u, TAIL_0, TAIL_1)
    STEP(1u, TAIL_1, TAIL_2)
    STEP(2u, TAIL_2, TAIL_3)
    STEP(3u, TAIL_3, 0u)
    values_at = 0u;
    return result;
}
#else
#include "include/activation.glsl"

float tail_one(uint at) {
    return 0.0;
}

vec4 tail_four(uint at) {
    return vec4(0.0);
}

float finish_beside(float x, float other) {
    return activate(x);
}
#endif

float finish(float x, uint at) {
    return finish_beside(x, tail_one(at));
}
