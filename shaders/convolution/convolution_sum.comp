//@ op DML_OPERATOR_CONVOLUTION DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION
//@ variants TO: float quantized
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Adds up what the parts of K gave, and finishes the result: bias and activation, or a requantized
// integer. One invocation makes one element.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool HAS_BIAS = false;
layout(constant_id = 3) const bool HAS_OUTPUT_ZERO = false;
layout(push_constant) uniform Push {
    uint count;
    uint parts;
    uint positions;  // of one channel of one batch
    uint channels;
    uint bias_stride;
    uint w_scale_stride;
    uint activation_at;
    uint sums_offset;
    uint y_offset;
    uint bias_offset;
    uint x_scale_offset;
    uint w_scale_offset;
    uint y_scale_offset;
    uint y_zero_offset;
    uint params_offset;
};
#if defined(TO_quantized)
#define PARAMS_BINDING 7
#else
#define PARAMS_BINDING 3
#endif
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
layout(binding = 0) readonly buffer Sums { uint sums[]; };
OUTPUT_TENSOR(y, 1, TYPE)
WALK(walk, 1)
#if defined(TO_quantized)
INPUT_TENSOR(bias, 2, 20u)
INPUT_TENSOR(x_scale, 3, 36u)
INPUT_TENSOR(w_scale, 4, 36u)
INPUT_TENSOR(y_scale, 5, 36u)
INPUT_TENSOR(y_zero, 6, TYPE)

// The nearest integer, of two the even one, within the type's range.
uint requantized(int sum, float scale, int zero) {
    precise float x = float(sum) * scale;
    int low = IS_SIGNED(TYPE) ? -128 : 0, high = low + 255;
    x = clamp(roundEven(x), float(low - zero), float(high - zero));
    return uint(int(x) + zero);
}
#else
INPUT_TENSOR(bias, 2, TYPE)
#include "include/activation.glsl"
#endif

void main() {
    uint index = invocation_index();
    if (index >= count) return;
    uint channel = index / positions % channels;
    uint to = y_offset + walk(0u, index)[0];
#if defined(TO_quantized)
    int sum = 0;
    for (uint part = 0u; part < parts; ++part)
        sum += int(sums[sums_offset + part * count + index]);
    if (HAS_BIAS) sum += int(bias_bits(bias_offset + channel * bias_stride).x);
    precise float scale = x_scale_float(x_scale_offset) *
                          w_scale_float(w_scale_offset + channel * w_scale_stride);
    scale = scale / y_scale_float(y_scale_offset);
    int zero = HAS_OUTPUT_ZERO ? int(y_zero_bits(y_zero_offset).x) : 0;
    y_store_bits(to, uvec2(requantized(sum, scale, zero), 0u));
#else
    float sum = 0.0;
    for (uint part = 0u; part < parts; ++part)
        sum += uintBitsToFloat(sums[sums_offset + part * count + index]);
    if (HAS_BIAS) sum += bias_float(bias_offset + channel * bias_stride);
    y_store_float(to, activate(sum));
#endif
}
