//@ op DML_OPERATOR_BATCH_NORMALIZATION
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Each invocation normalizes PIECES pieces (elements, or vectors of 16 bytes), a workgroup's size apart.
#define PARAMS_BINDING AFTER_TAIL(6)
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint EACH = 1u;    // elements of a piece
layout(constant_id = 3) const uint PIECES = 1u;
layout(constant_id = 4) const bool CONTIGUOUS = false;  // parameters are read as vectors, too
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint pieces;
    uint activation_at;
    uint epsilon;
    uint x_offset;
    uint mean_offset;
    uint variance_offset;
    uint scale_offset;
    uint bias_offset;
    uint y_offset;
    TAIL_FIELD
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#define TAIL_BINDING 6
#define TAIL_TYPE TYPE
#include "include/tail.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(mean, 1, TYPE)
INPUT_TENSOR(variance, 2, TYPE)
INPUT_TENSOR(scale, 3, TYPE)
INPUT_TENSOR(bias, 4, TYPE)
OUTPUT_TENSOR(y, 5, TYPE)
WALK(walk, 6)

float element(uvec4 vector, uint e) {
    if (EACH == 8u) return half_to_float(vector[e / 2u] >> (e % 2u * 16u) & 0xFFFFu);
    return uintBitsToFloat(vector[e]);
}

float factor_of(float variance, float scale) {
    return scale / sqrt_of(variance + uintBitsToFloat(epsilon));
}

float normalized(float x, float mean, float factor, float bias, uint at) {
    return finish((x - mean) * factor + bias, at);
}

#define PARAMETER(name, o) name##_float(name##_offset + at[o])
#define PARAMETERS(name, o) name##_vectors[(name##_offset + at[o]) / EACH]

void main() {
    uint first = group_index() * gl_WorkGroupSize.x * PIECES + gl_LocalInvocationIndex;
    uint places[PIECES][6];
    uvec4 vectors[PIECES];
    // All reads are issued before the first is used.
    [[unroll]] for (uint p = 0u; p < PIECES; ++p) {
        uint[6] at = walk(0u, min(first + p * gl_WorkGroupSize.x, pieces - 1u) * EACH);
        places[p] = at;
        if (EACH == 1u) vectors[p].x = floatBitsToUint(x_float(x_offset + at[0]));
        else vectors[p] = x_vectors[(x_offset + at[0]) / EACH];
    }
    [[unroll]] for (uint p = 0u; p < PIECES; ++p) {
        if (first + p * gl_WorkGroupSize.x >= pieces) return;
        uint[6] at = places[p];
        uvec4 x = vectors[p], made = uvec4(0u);
        float mean = 0.0, factor = 0.0, bias = 0.0;
        if (!CONTIGUOUS) {
            mean = PARAMETER(mean, 2);
            factor = factor_of(PARAMETER(variance, 3), PARAMETER(scale, 4));
            bias = PARAMETER(bias, 5);
        }
        if (EACH == 1u) {
            float value = normalized(uintBitsToFloat(x.x), mean, factor, bias, at[1]);
            y_store_float(y_offset + at[1], value);
            continue;
        }
        uvec4 means = uvec4(0u), variances = uvec4(0u), scales = uvec4(0u), biases = uvec4(0u);
        if (CONTIGUOUS) {
            means = PARAMETERS(mean, 2);
            variances = PARAMETERS(variance, 3);
            scales = PARAMETERS(scale, 4);
            biases = PARAMETERS(bias, 5);
        }
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            if (CONTIGUOUS) {
                mean = element(means, e);
                factor = factor_of(element(variances, e), element(scales, e));
                bias = element(biases, e);
            }
            float value = normalized(element(x, e), mean, factor, bias, at[1] + e);
            if (EACH == 8u) made[e / 2u] |= float_to_half(value) << (e % 2u * 16u);
            else made[e] = floatBitsToUint(value);
        }
        y_vectors[(y_offset + at[1]) / EACH] = made;
    }
}
