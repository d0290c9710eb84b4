//@ op DML_OPERATOR_BATCH_NORMALIZATION_GRAD DML_OPERATOR_BATCH_NORMALIZATION_TRAINING_GRAD
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// One workgroup makes one row's gradients of scale and bias and, where batch_normalization_gradient
// wants them, three numbers: the mean of the input, that of the gradient, and that of the gradient times
// the centered input, divided by the variance.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool TRAINING = false;
layout(push_constant) uniform Push {
    uint rows;
    uint columns;
    uint columns_at;
    float epsilon;
    uint x_offset;
    uint dy_offset;
    uint mean_offset;
    uint variance_offset;
    uint dscale_offset;
    uint dbias_offset;
    uint totals_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/reduce.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(dy, 1, TYPE)
INPUT_TENSOR(mean, 2, TYPE)
INPUT_TENSOR(variance, 3, TYPE)
OUTPUT_TENSOR(dscale, 4, TYPE)
OUTPUT_TENSOR(dbias, 5, TYPE)
layout(binding = 6) writeonly buffer Totals { float totals[]; };
WALK(row_walk, 6)
WALK(column_walk, 2)

vec2 plus(vec2 a, vec2 b) { return a + b; }
WORKGROUP_REDUCE(total, vec2, plus, subgroupAdd)

void main() {
    uint row = group_index();
    if (row >= rows) return;
    uint[6] at = row_walk(0u, row);
    uint first = gl_LocalInvocationIndex, step = gl_WorkGroupSize.x;
    vec2 sums = vec2(0.0);
    float given = mean_float(mean_offset + at[2]), center = given;
    if (TRAINING) {
        for (uint c = first; c < columns; c += step)
            sums.x += x_float(x_offset + at[0] + column_walk(columns_at, c)[0]);
        center = total(sums).x / float(columns);
    }
    sums = vec2(0.0);
    for (uint c = first; c < columns; c += step) {
        uint[2] from = column_walk(columns_at, c);
        float gradient = dy_float(dy_offset + at[1] + from[1]);
        sums += vec2(gradient, gradient * (x_float(x_offset + at[0] + from[0]) - center));
    }
    sums = total(sums);
    if (first != 0u) return;
    float root = inversesqrt(variance_float(variance_offset + at[3]) + epsilon);
    dscale_store_float(dscale_offset + at[4], (sums.y + sums.x * (center - given)) * root);
    dbias_store_float(dbias_offset + at[5], sums.x);
    if (TRAINING) {
        uint to = totals_offset + 3u * row;
        totals[to] = center;
        totals[to + 1u] = sums.x / float(columns);
        totals[to + 2u] = sums.y / float(columns) * root * root;
    }
}
