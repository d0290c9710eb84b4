//@ op DML_OPERATOR_BATCH_NORMALIZATION_GRAD DML_OPERATOR_BATCH_NORMALIZATION_TRAINING_GRAD
//@ variants STEP: means sums outputs
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// ``means`` sums the input, if the mean is the input's own. ``sums`` sums gradients, and gradients times
// distances from the mean. ``outputs`` computes the input's gradient.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool TRAINING = false;
layout(push_constant) uniform Push {
    uint rows;
    uint columns;
    uint parts;
    uint span;
    uint columns_at;
    float epsilon;
    uint x_offset;
    uint dy_offset;
    uint mean_offset;
    uint variance_offset;
    uint scale_offset;
    uint sums_offset;  // three sums by row and part: elements, gradients, products
    uint dx_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/batch_normalization.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(dy, 1, TYPE)
INPUT_TENSOR(mean, 2, TYPE)
INPUT_TENSOR(variance, 3, TYPE)
INPUT_TENSOR(scale, 4, TYPE)
layout(binding = 5) buffer Sums { float sums[]; };
OUTPUT_TENSOR(dx, 6, TYPE)
WALK(row_walk, 6)  // x, dy, dx, mean, variance, scale
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
    uint[6] at = row_walk(0u, p.row);
#if !defined(STEP_means)
    float center = TRAINING ? mean_of(0u, p.row) : mean_float(mean_offset + at[3]);
#endif
#if defined(STEP_outputs)
    float root = inversesqrt(variance_float(variance_offset + at[4]) + epsilon);
    float factor = scale_float(scale_offset + at[5]) * root;
    float shift = 0.0, slope = 0.0;
    if (TRAINING) {
        shift = mean_of(1u, p.row);
        slope = mean_of(2u, p.row) * root * root;
    }
    EACH_COLUMN(p) {
        float values[TOGETHER];
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            uint[3] from = column_walk(columns_at, min(COLUMN(n), p.end - 1u));
            values[n] = dy_float(dy_offset + at[1] + from[1]);
            if (TRAINING)
                values[n] += -shift - (x_float(x_offset + at[0] + from[0]) - center) * slope;
        }
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n)
            if (COLUMN(n) < p.end)
                dx_store_float(dx_offset + at[2] + column_walk(columns_at, COLUMN(n))[2],
                               values[n] * factor);
    }
#else
    vec2 found = vec2(0.0);
    EACH_COLUMN(p) {
        vec2 values[TOGETHER];
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            uint[3] from = column_walk(columns_at, min(COLUMN(n), p.end - 1u));
            values[n].x = x_float(x_offset + at[0] + from[0]);
#if defined(STEP_sums)
            float gradient = dy_float(dy_offset + at[1] + from[1]);
            values[n] = vec2(gradient, gradient * (values[n].x - center));
#endif
        }
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) if (COLUMN(n) < p.end) found += values[n];
    }
    found = total(found);
    if (gl_LocalInvocationIndex != 0u) return;
    uint to = sums_offset + p.row * parts + p.part;
#if defined(STEP_means)
    sums[to] = found.x;
#else
    sums[to + rows * parts] = found.x;
    sums[to + 2u * rows * parts] = found.y;
#endif
#endif
}
