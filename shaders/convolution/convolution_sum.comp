//@ op DML_OPERATOR_CONVOLUTION DML_OPERATOR_CONVOLUTION_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION DML_OPERATOR_GEMM
//@ variants TO: float scaled quantized
//@ tail float scaled
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Adds up the sums of all splits of K and finishes the result: bias and activation, of INT32 sums after
// scales, or a quantized integer. An invocation computes one element. DENSE: sums have the layout of the contiguous output, and
// an invocation computes eight neighbours.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool HAS_BIAS = false;
layout(constant_id = 3) const bool HAS_OUTPUT_ZERO = false;
layout(constant_id = 4) const bool DENSE = false;
layout(constant_id = 5) const bool HAS_INPUT_SCALE = true;
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint count;
    uint splits;
    uint split_stride;
    uint positions;  // in a channel; DENSE: the stride of channels
    uint channels;
    uint bias_stride;
    uint w_scale_stride;
    uint activation_at;
    uint sums_offset;
    uint y_offset;
    uint bias_offset;
    TAIL_FIELD
    uint x_scale_offset;
    uint w_scale_offset;
    uint y_scale_offset;
    uint y_zero_offset;
    uint params_offset;
};
#if defined(TO_quantized)
#define PARAMS_BINDING 7
#elif defined(TO_scaled)
#define PARAMS_BINDING AFTER_TAIL(5)
#else
#define PARAMS_BINDING AFTER_TAIL(3)
#endif
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
OUTPUT_TENSOR(y, 1, TYPE)
layout(binding = 1) writeonly buffer OutputPairs { uvec2 y_pairs[]; };
WALK(walk, 1)
#if defined(TO_quantized)
#define NUMBER int
#define FOUR ivec4
INPUT_TENSOR(bias, 2, 20u)
INPUT_TENSOR(x_scale, 3, 36u)
INPUT_TENSOR(w_scale, 4, 36u)
INPUT_TENSOR(y_scale, 5, 36u)
INPUT_TENSOR(y_zero, 6, TYPE)

// A sum as a quantized number: rounded half to even and clamped.
uint finished(int sum, uint channel, uint at) {
    if (HAS_BIAS) sum += int(bias_bits(bias_offset + channel * bias_stride).x);
    precise float scale = x_scale_float(x_scale_offset) *
                          w_scale_float(w_scale_offset + channel * w_scale_stride);
    scale = scale / y_scale_float(y_scale_offset);
    int zero = HAS_OUTPUT_ZERO ? int(y_zero_bits(y_zero_offset).x) : 0;
    precise float x = float(sum) * scale;
    int low = IS_SIGNED(TYPE) ? -128 : 0, high = low + 255;
    x = clamp(roundEven(x), float(low - zero), float(high - zero));
    return uint(int(x) + zero);
}
#elif defined(TO_scaled)
#define NUMBER int
#define FOUR ivec4
INPUT_TENSOR(bias, 2, 36u)
INPUT_TENSOR(x_scale, 3, 36u)
INPUT_TENSOR(w_scale, 4, 36u)
#define TAIL_BINDING 5
#define TAIL_TYPE TYPE
#include "include/tail.glsl"
#include "include/scaled.glsl"

uint finished(int sum, uint channel, uint at) {
    precise float scale = w_scale_float(w_scale_offset + channel * w_scale_stride);
    if (HAS_INPUT_SCALE) scale = x_scale_float(x_scale_offset) * scale;
    float added = HAS_BIAS ? bias_float(bias_offset + channel * bias_stride) : 0.0;
    return bits_of(finish(scaled(sum, scale, HAS_BIAS, added), at), TYPE);
}
#else
#define NUMBER float
#define FOUR vec4
INPUT_TENSOR(bias, 2, TYPE)
#define TAIL_BINDING 3
#define TAIL_TYPE TYPE
#include "include/tail.glsl"

uint finished(float sum, uint channel, uint at) {
    if (HAS_BIAS) sum += bias_float(bias_offset + channel * bias_stride);
    return bits_of(finish(sum, at), TYPE);
}
#endif
layout(binding = 0) readonly buffer Sums { NUMBER sums[]; };
layout(binding = 0) readonly buffer SumVectors { FOUR sum_vectors[]; };

void store_eight(uint index) {
    const uint TOGETHER = 4u;
    FOUR x[2];
    x[0] = x[1] = FOUR(0);
    for (uint part = 0u; part < splits; part += TOGETHER) {
        FOUR more[TOGETHER][2];
        [[unroll]] for (uint p = 0u; p < TOGETHER; ++p)
            [[unroll]] for (uint v = 0u; v < 2u; ++v)
                more[p][v] = sum_vectors[(sums_offset + min(part + p, splits - 1u) * split_stride +
                                          index) / 4u + v];
        [[unroll]] for (uint p = 0u; p < TOGETHER; ++p)
            if (part + p < splits)
                [[unroll]] for (uint v = 0u; v < 2u; ++v) x[v] += more[p][v];
    }
    uint channel = index / positions % channels, position = index % positions;
    uint bits[8];
    [[unroll]] for (uint e = 0u; e < 8u; ++e) {
        bits[e] = finished(x[e / 4u][e % 4u], channel, min(index + e, count - 1u));
        if (++position == positions) {
            position = 0u;
            if (++channel == channels) channel = 0u;
        }
    }
    const uint bytes = BYTES_OF(TYPE);
    uint to = y_offset + index;
    if (index + 8u > count || to * bytes % min(8u * bytes, 16u) != 0u) {
        [[unroll]] for (uint e = 0u; e < 8u; ++e)
            if (index + e < count) y_store_bits(to + e, uvec2(bits[e], 0u));
        return;
    }
    uint words[8];
    [[unroll]] for (uint w = 0u; w < 2u * bytes; ++w) {
        words[w] = bits[w * 4u / bytes];
        [[unroll]] for (uint e = 1u; e < 4u / bytes; ++e)
            words[w] = bitfieldInsert(words[w], bits[w * 4u / bytes + e], int(8u * bytes * e),
                                      int(8u * bytes));
    }
    if (bytes == 1u) {
        y_pairs[to / 8u] = uvec2(words[0], words[1]);
        return;
    }
    [[unroll]] for (uint v = 0u; v < bytes / 2u; ++v)
        y_vectors[to * bytes / 16u + v] =
            uvec4(words[4u * v], words[4u * v + 1u], words[4u * v + 2u], words[4u * v + 3u]);
}

void main() {
    uint index = invocation_index() * (DENSE ? 8u : 1u);
    if (index >= count) return;
    if (DENSE) {
        store_eight(index);
        return;
    }
    NUMBER sum = NUMBER(0);
    for (uint part = 0u; part < splits; ++part) sum += sums[sums_offset + part * split_stride + index];
    uint at = walk(0u, index)[0];
    y_store_bits(y_offset + at, uvec2(finished(sum, index / positions % channels, at), 0u));
}
