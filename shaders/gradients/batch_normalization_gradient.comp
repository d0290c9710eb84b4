//@ op DML_OPERATOR_BATCH_NORMALIZATION_GRAD DML_OPERATOR_BATCH_NORMALIZATION_TRAINING_GRAD
//@ variants STEP: sums outputs
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// ``sums`` sums distances from the mean, gradients, and their products, and also computes the input's gradient
// unless in training: ``outputs`` then goes by the input's own mean, which is the mean and the average distance from
// it.
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
    uint sums_offset;  // three sums by row and part: distances, gradients, products
    uint dx_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/batch_normalization.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_EACH(x, TYPE, true)
INPUT_TENSOR(dy, 1, TYPE)
INPUT_EACH(dy, TYPE, true)
INPUT_TENSOR(mean, 2, TYPE)
INPUT_TENSOR(variance, 3, TYPE)
INPUT_TENSOR(scale, 4, TYPE)
layout(binding = 5) buffer Sums { float sums[]; };
OUTPUT_TENSOR(dx, 6, TYPE)
OUTPUT_EACH(dx, TYPE)
WALK(row_walk, 6)  // x, dy, dx, mean, variance, scale
layout(constant_id = 36) const uint COLUMN_RANK = 0u;  // where it is known
WALK_OF_RANK(column_walk, 3, COLUMN_RANK)

vec3 plus(vec3 a, vec3 b) { return a + b; }
WORKGROUP_REDUCE(total, vec3, plus, subgroupAdd)

float average_of(uint which, uint row) {
    float sum = 0.0;
    for (uint n = 0u; n < parts; ++n) sum += sums[sums_offset + (which * rows + row) * parts + n];
    return sum / float(columns * EACH);
}

void main() {
    Part p;
    if (!find_part(p)) return;
    uint[6] at = row_walk(0u, p.row);
    float center = mean_float(mean_offset + at[3]);
    float root = inversesqrt(variance_float(variance_offset + at[4]) + epsilon);
    float factor = scale_float(scale_offset + at[5]) * root;
#if defined(STEP_outputs)
    float beside = average_of(0u, p.row), shift = average_of(1u, p.row);
    float slope = (average_of(2u, p.row) - beside * shift) * root * root;
    center += beside;
#endif
    vec3 found = vec3(0.0);
    EACH_COLUMN(p) {
        float x[TOGETHER][EACH], gradients[TOGETHER][EACH];
        uint to[TOGETHER];
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            uint[3] from = column_walk(columns_at, min(COLUMN(n), p.end - 1u));
            dy_load_each(dy_offset + at[1] + from[1], gradients[n]);
            to[n] = dx_offset + at[2] + from[2];
            x_load_each(x_offset + at[0] + from[0], x[n]);
        }
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            if (COLUMN(n) >= p.end) continue;
            uvec2 made[EACH];
            [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                float apart = x[n][e] - center, gradient = gradients[n][e];
#if defined(STEP_outputs)
                gradient += -shift - apart * slope;
#else
                found += vec3(apart, gradient, gradient * apart);
#endif
                made[e] = uvec2(bits_of(gradient * factor, TYPE), 0u);
            }
#if defined(STEP_sums)
            if (TRAINING) continue;
#endif
            dx_store_each(to[n], made);
        }
    }
#if defined(STEP_sums)
    found = total(found);
    if (gl_LocalInvocationIndex != 0u) return;
    [[unroll]] for (uint i = 0u; i < 3u; ++i)
        sums[sums_offset + (i * rows + p.row) * parts + p.part] = found[i];
#endif
}
