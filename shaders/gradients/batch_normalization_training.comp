//@ op DML_OPERATOR_BATCH_NORMALIZATION_TRAINING
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// One workgroup makes one row: its mean, its variance, and from these its outputs, in float32.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool ADDS = false;
layout(push_constant) uniform Push {
    uint rows;
    uint columns;
    uint columns_at;
    uint activation_at;
    float epsilon;
    uint x_offset;
    uint scale_offset;
    uint bias_offset;
    uint added_offset;
    uint y_offset;
    uint mean_offset;
    uint variance_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/reduce.glsl"
#include "include/activation.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(scale, 1, TYPE)
INPUT_TENSOR(bias, 2, TYPE)
INPUT_TENSOR(added, 3, TYPE)
OUTPUT_TENSOR(y, 4, TYPE)
OUTPUT_TENSOR(mean, 5, TYPE)
OUTPUT_TENSOR(variance, 6, TYPE)
WALK(row_walk, 7)
WALK(column_walk, 3)

float plus(float a, float b) { return a + b; }
WORKGROUP_REDUCE(total, float, plus, subgroupAdd)

void main() {
    uint row = group_index();
    if (row >= rows) return;
    uint[7] at = row_walk(0u, row);
    uint first = gl_LocalInvocationIndex, step = gl_WorkGroupSize.x;
    float sum = 0.0, squares = 0.0;
    for (uint c = first; c < columns; c += step)
        sum += x_float(x_offset + at[0] + column_walk(columns_at, c)[0]);
    float center = total(sum) / float(columns);
    for (uint c = first; c < columns; c += step) {
        float apart = x_float(x_offset + at[0] + column_walk(columns_at, c)[0]) - center;
        squares += apart * apart;
    }
    float spread = total(squares) / float(columns);
    if (first == 0u) {
        mean_store_float(mean_offset + at[5], center);
        variance_store_float(variance_offset + at[6], spread);
    }
    float factor = scale_float(scale_offset + at[3]) * inversesqrt(spread + epsilon);
    float shift = bias_float(bias_offset + at[4]);
    for (uint c = first; c < columns; c += step) {
        uint[3] to = column_walk(columns_at, c);
        float made = (x_float(x_offset + at[0] + to[0]) - center) * factor + shift;
        if (ADDS) made += added_float(added_offset + at[1] + to[1]);
        y_store_float(y_offset + at[2] + to[2], activate(made));
    }
}
