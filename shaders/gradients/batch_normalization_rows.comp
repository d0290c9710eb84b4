//@ op DML_OPERATOR_BATCH_NORMALIZATION_GRAD DML_OPERATOR_BATCH_NORMALIZATION_TRAINING_GRAD
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Computes the gradients of scale and bias for each row, from the sums of its parts.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;
layout(push_constant) uniform Push {
    uint rows;
    uint parts;
    float epsilon;
    uint variance_offset;
    uint sums_offset;
    uint dscale_offset;
    uint dbias_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"

INPUT_TENSOR(variance, 0, TYPE)
INPUT_TENSOR(sums, 1, 36u)
OUTPUT_TENSOR(dscale, 2, TYPE)
OUTPUT_TENSOR(dbias, 3, TYPE)
WALK(walk, 3)

float sum_of(uint which, uint row) {
    float sum = 0.0;
    for (uint n = 0u; n < parts; ++n)
        sum += sums_float(sums_offset + (which * rows + row) * parts + n);
    return sum;
}

void main() {
    uint row = invocation_index();
    if (row >= rows) return;
    uint[3] at = walk(0u, row);
    float root = inversesqrt(variance_float(variance_offset + at[0]) + epsilon);
    dscale_store_float(dscale_offset + at[1], sum_of(2u, row) * root);
    dbias_store_float(dbias_offset + at[2], sum_of(1u, row));
}
