//@ op DML_OPERATOR_BATCH_NORMALIZATION_TRAINING
//@ variants STEP: means squares outputs
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// ``means`` sums elements. ``squares`` sums squared distances from the mean, and writes the mean.
// ``outputs`` writes the variance and the outputs. All is computed in float32.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool ADDS = false;
layout(push_constant) uniform Push {
    uint rows;
    uint columns;
    uint parts;
    uint span;
    uint columns_at;
    uint activation_at;
    float epsilon;
    uint x_offset;
    uint scale_offset;
    uint bias_offset;
    uint added_offset;
    uint sums_offset;  // sums of elements by row and part; then those of squares
    uint y_offset;
    uint statistics_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/batch_normalization.glsl"
#include "include/activation.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(scale, 1, TYPE)
INPUT_TENSOR(bias, 2, TYPE)
INPUT_TENSOR(added, 3, TYPE)
layout(binding = 4) buffer Sums { float sums[]; };
OUTPUT_TENSOR(y, 5, TYPE)
OUTPUT_TENSOR(statistics, 6, TYPE)  // the mean in step squares, else the variance
WALK(row_walk, 7)
layout(constant_id = 36) const uint COLUMN_RANK = 0u;  // where it is known
WALK_OF_RANK(column_walk, 3, COLUMN_RANK)

float mean_of(uint which, uint row) {
    float sum = 0.0;
    for (uint n = 0u; n < parts; ++n) sum += sums[sums_offset + (which * rows + row) * parts + n];
    return sum / float(columns);
}

void main() {
    Part p;
    if (!find_part(p)) return;
    uint[7] at = row_walk(0u, p.row);
#if defined(STEP_outputs)
    float center = mean_of(0u, p.row), spread = mean_of(1u, p.row);
    if (gl_LocalInvocationIndex == 0u && p.part == 0u)
        statistics_store_float(statistics_offset + at[6], spread);
    float factor = scale_float(scale_offset + at[3]) * inversesqrt(spread + epsilon);
    float shift = bias_float(bias_offset + at[4]);
    EACH_COLUMN(p) {
        float values[TOGETHER];
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            uint[3] to = column_walk(columns_at, min(COLUMN(n), p.end - 1u));
            values[n] = (x_float(x_offset + at[0] + to[0]) - center) * factor + shift;
            if (ADDS) values[n] += added_float(added_offset + at[1] + to[1]);
        }
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n)
            if (COLUMN(n) < p.end)
                y_store_float(y_offset + at[2] + column_walk(columns_at, COLUMN(n))[2],
                              activate(values[n]));
    }
#else
    float center = 0.0;
#if defined(STEP_squares)
    center = mean_of(0u, p.row);
    if (gl_LocalInvocationIndex == 0u && p.part == 0u)
        statistics_store_float(statistics_offset + at[5], center);
#endif
    float sum = 0.0;
    EACH_COLUMN(p) {
        float values[TOGETHER];
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n)
            values[n] = x_float(x_offset + at[0] + column_walk(columns_at, min(COLUMN(n), p.end - 1u))[0]);
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            float deviation = COLUMN(n) < p.end ? values[n] - center : 0.0;
#if defined(STEP_squares)
            deviation *= deviation;
#endif
            sum += deviation;
        }
    }
    sum = total(vec2(sum, 0.0)).x;
    if (gl_LocalInvocationIndex != 0u) return;
#if defined(STEP_squares)
    sums[sums_offset + (rows + p.row) * parts + p.part] = sum;
#else
    sums[sums_offset + p.row * parts + p.part] = sum;
#endif
#endif
}
