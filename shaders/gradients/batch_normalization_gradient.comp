//@ op DML_OPERATOR_BATCH_NORMALIZATION_GRAD DML_OPERATOR_BATCH_NORMALIZATION_TRAINING_GRAD
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// The gradient of each element of a batch normalization's input.
#define PARAMS_BINDING 6
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool TRAINING = false;
layout(push_constant) uniform Push {
    uint count;
    float epsilon;
    uint x_offset;
    uint dy_offset;
    uint variance_offset;
    uint scale_offset;
    uint totals_offset;
    uint dx_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(dy, 1, TYPE)
INPUT_TENSOR(variance, 2, TYPE)
INPUT_TENSOR(scale, 3, TYPE)
layout(binding = 4) readonly buffer Totals { float totals[]; };
OUTPUT_TENSOR(dx, 5, TYPE)
WALK(walk, 6)

void main() {
    uint i = invocation_index();
    if (i >= count) return;
    uint[6] at = walk(0u, i);
    float root = inversesqrt(variance_float(variance_offset + at[2]) + epsilon);
    float gradient = dy_float(dy_offset + at[1]);
    if (TRAINING) {
        uint from = totals_offset + at[4];
        float centered = x_float(x_offset + at[0]) - totals[from];
        gradient = gradient - totals[from + 1u] - centered * totals[from + 2u];
    }
    dx_store_float(dx_offset + at[5], gradient * scale_float(scale_offset + at[3]) * root);
}
