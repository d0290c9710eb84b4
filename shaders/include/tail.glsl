// float finish(float x, uint at): the fused activation of a finished float32 value. In variants with TAIL,
// a chain of up to four elementwise operators follows, which graphs fuse. Its operands are that value and
// a tensor with the output's strides; ``at`` is the element's place in both. With FLOAT16 each result is
// rounded, as if it were stored. The includer includes include/params.glsl and include/tailed.glsl, and
// defines TAIL_BINDING, TAIL_TYPE and a push field activation_at.
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

float value_of(uint i) {
    return param_float(activation_at + i);
}

float finish(float x, uint at) {
    float result = activate(x);
    float known[11];
    known[0] = BYTES_OF(TAIL_TYPE) == 2u ? rounded_to_half(result) : result;
    known[1] = HAS_TAIL_TENSOR ? tail_float(tail_offset + at) : 0.0;
    STEP(0u, TAIL_0)
    STEP(1u, TAIL_1)
    STEP(2u, TAIL_2)
    STEP(3u, TAIL_3)
    values_at = 0u;
    return result;
}
#else
#include "include/activation.glsl"

float finish(float x, uint at) {
    return activate(x);
}
#endif
