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
// A workgroup's pieces lie in one line, along the last dimension. They share mean, variance, scale and bias. The
// walk is over lines.
layout(constant_id = 5) const bool LINES = false;
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
    uint line_pieces;   // of a line
    uint line_parts;    // workgroups of a line
    uint x_step;        // from one piece of a line to the next
    uint y_step;
    TAIL_FIELD
    uint params_offset;
};
#include "include/grid.glsl"
#define WALK_RANKED
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
    if (EACH == 8u) return halves_to_floats(vector[e / 2u])[e % 2u];
    return uintBitsToFloat(vector[e]);
}

float factor_of(float variance, float scale) {
    return scale / sqrt_of(variance + uintBitsToFloat(epsilon));
}

#define PARAMETER(name, o) name##_float(name##_offset + at[o])

float normalized(float x, float mean, float factor, float bias, uint at) {
    return finish((x - mean) * factor + bias, at);
}

#define PARAMETERS(name, o) name##_vectors[(name##_offset + at[o]) / EACH]

// Normalizes a piece whose elements share the parameters.
void store(uint to, uvec4 x, float mean, float factor, float bias) {
    if (EACH == 1u) {
        y_store_float(y_offset + to, normalized(uintBitsToFloat(x.x), mean, factor, bias, to));
        return;
    }
    uvec4 made = uvec4(0u);
    float before = 0.0;
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        float value = normalized(element(x, e), mean, factor, bias, to + e);
        if (EACH == 4u) made[e] = floatBitsToUint(value);
        else if (e % 2u == 1u) made[e / 2u] = floats_to_halves(before, value);
        before = value;
    }
    y_vectors[(y_offset + to) / EACH] = made;
}

// The divisions are by what the workgroup has in common, and no read waits for a parameter.
void normalize_line() {
    uint[6] at = walk(0u, group_index() / line_parts);
    uint first = group_index() % line_parts * gl_WorkGroupSize.x * PIECES + gl_LocalInvocationIndex;
    if (group_index() / line_parts * line_pieces >= pieces) return;
    uvec4 vectors[PIECES];
    [[unroll]] for (uint p = 0u; p < PIECES; ++p) {
        uint from = x_offset + at[0] + min(first + p * gl_WorkGroupSize.x, line_pieces - 1u) * x_step;
        if (EACH == 1u) vectors[p].x = floatBitsToUint(x_float(from));
        else vectors[p] = x_vectors[from / EACH];
    }
    float mean = PARAMETER(mean, 2), bias = PARAMETER(bias, 5);
    float factor = factor_of(PARAMETER(variance, 3), PARAMETER(scale, 4));
    [[unroll]] for (uint p = 0u; p < PIECES; ++p) {
        uint piece = first + p * gl_WorkGroupSize.x;
        if (piece < line_pieces) store(at[1] + piece * y_step, vectors[p], mean, factor, bias);
    }
}

void main() {
    if (LINES) {
        normalize_line();
        return;
    }
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
        if (!CONTIGUOUS) {
            float factor = factor_of(PARAMETER(variance, 3), PARAMETER(scale, 4));
            store(at[1], vectors[p], PARAMETER(mean, 2), factor, PARAMETER(bias, 5));
            continue;
        }
        uvec4 means = PARAMETERS(mean, 2), variances = PARAMETERS(variance, 3);
        uvec4 scales = PARAMETERS(scale, 4), biases = PARAMETERS(bias, 5), made = uvec4(0u);
        float before = 0.0;
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            float factor = factor_of(element(variances, e), element(scales, e));
            float value = normalized(element(vectors[p], e), element(means, e), factor, element(biases, e), at[1] + e);
            if (EACH == 4u) made[e] = floatBitsToUint(value);
            else if (e % 2u == 1u) made[e / 2u] = floats_to_halves(before, value);
            before = value;
        }
        y_vectors[(y_offset + at[1]) / EACH] = made;
    }
}
