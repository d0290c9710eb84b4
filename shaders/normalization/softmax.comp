//@ op DML_OPERATOR_ACTIVATION_SOFTMAX1
//@ variants SUB: tree subgroups
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#if defined(SUB_subgroups)
#extension GL_KHR_shader_subgroup_arithmetic : require
#define SUBGROUPS
#endif
// One workgroup makes one row. Sums are float32, of exp(x - maximum).
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint TYPE = 36u;
layout(push_constant) uniform Push {
    uint rows;
    uint columns;
    uint columns_at;  // of the second walk's words
    uint x_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/reduce.glsl"

INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, TYPE)
WALK(walk, 2)

float plus(float a, float b) { return a + b; }
float larger(float a, float b) { return is_nan(a) || a > b ? a : b; }
WORKGROUP_REDUCE(total, float, plus, subgroupAdd)
WORKGROUP_REDUCE(largest, float, larger, subgroupMax)

void main() {
    uint row = group_index();
    if (row >= rows) return;
    uint[2] at = walk(0u, row);
    uint first = gl_LocalInvocationIndex, step = gl_WorkGroupSize.x;
    float most = uintBitsToFloat(0xFF800000u), sum = 0.0;
    for (uint c = first; c < columns; c += step)
        most = max(most, x_float(x_offset + at[0] + walk(columns_at, c)[0]));
    most = largest(most);
    for (uint c = first; c < columns; c += step)
        sum += exp(x_float(x_offset + at[0] + walk(columns_at, c)[0]) - most);
    sum = total(sum);
    for (uint c = first; c < columns; c += step) {
        uint[2] to = walk(columns_at, c);
        y_store_float(y_offset + at[1] + to[1], exp(x_float(x_offset + at[0] + to[0]) - most) / sum);
    }
}
