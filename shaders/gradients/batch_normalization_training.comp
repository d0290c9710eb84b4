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
INPUT_EACH(x, TYPE, true)
INPUT_TENSOR(scale, 1, TYPE)
INPUT_TENSOR(bias, 2, TYPE)
INPUT_TENSOR(added, 3, TYPE)
INPUT_EACH(added, TYPE, true)
layout(binding = 4) buffer Sums { float sums[]; };
OUTPUT_TENSOR(y, 5, TYPE)
OUTPUT_EACH(y, TYPE)
OUTPUT_TENSOR(statistics, 6, TYPE)  // the mean in step squares, else the variance
WALK(row_walk, 7)
layout(constant_id = 36) const uint COLUMN_RANK = 0u;  // where it is known
WALK_OF_RANK(column_walk, 3, COLUMN_RANK)

float plus(float a, float b) { return a + b; }
WORKGROUP_REDUCE(total, float, plus, subgroupAdd)

float average_of(uint which, uint row) {
    float sum = 0.0;
    for (uint n = 0u; n < parts; ++n) sum += sums[sums_offset + (which * rows + row) * parts + n];
    return sum / float(columns * EACH);
}

void main() {
    Part p;
    if (!find_part(p)) return;
    uint[7] at = row_walk(0u, p.row);
    float center = 0.0, sum = 0.0;
#if !defined(STEP_means)
    center = average_of(0u, p.row);
    if (gl_LocalInvocationIndex == 0u && p.part == 0u) {
#if defined(STEP_squares)
        statistics_store_float(statistics_offset + at[5], center);
#else
        statistics_store_float(statistics_offset + at[6], average_of(1u, p.row));
#endif
    }
#endif
#if defined(STEP_outputs)
    float factor = scale_float(scale_offset + at[3]) * inversesqrt(average_of(1u, p.row) + epsilon);
    float shift = bias_float(bias_offset + at[4]);
#endif
    EACH_COLUMN(p) {
        float x[TOGETHER][EACH];
#if defined(STEP_outputs)
        float added[TOGETHER][EACH];
        uint to[TOGETHER];
#endif
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            uint[3] from = column_walk(columns_at, min(COLUMN(n), p.end - 1u));
            x_load_each(x_offset + at[0] + from[0], x[n]);
#if defined(STEP_outputs)
            if (ADDS) added_load_each(added_offset + at[1] + from[1], added[n]);
            to[n] = y_offset + at[2] + from[2];
#endif
        }
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            if (COLUMN(n) >= p.end) continue;
#if defined(STEP_outputs)
            uvec2 made[EACH];
            [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                float value = (x[n][e] - center) * factor + shift;
                if (ADDS) value += added[n][e];
                made[e] = uvec2(bits_of(activate(value), TYPE), 0u);
            }
            y_store_each(to[n], made);
#elif defined(STEP_squares)
            [[unroll]] for (uint e = 0u; e < EACH; ++e) sum += (x[n][e] - center) * (x[n][e] - center);
#else
            [[unroll]] for (uint e = 0u; e < EACH; ++e) sum += x[n][e];
#endif
        }
    }
#if !defined(STEP_outputs)
    sum = total(sum);
    if (gl_LocalInvocationIndex != 0u) return;
#if defined(STEP_squares)
    sums[sums_offset + (rows + p.row) * parts + p.part] = sum;
#else
    sums[sums_offset + p.row * parts + p.part] = sum;
#endif
#endif
}
