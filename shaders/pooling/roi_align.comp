//@ op DML_OPERATOR_ROI_ALIGN DML_OPERATOR_ROI_ALIGN1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation computes one element of the output: the average or the maximum of samples.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint BATCH_TYPE = 4u;
layout(constant_id = 3) const bool MAXIMUM = false;
layout(constant_id = 4) const bool LINEAR = true;
layout(constant_id = 5) const bool CORNERS = false;
layout(constant_id = 34) const bool IEEE_UNITS = false;
#define HAS_IEEE_UNITS IEEE_UNITS
layout(push_constant) uniform Push {
    uint count;
    uint in_sizes[4];
    uint x_strides[4];
    uint roi_strides[2];
    uint batch_stride;
    uint outputs[2];  // height and width
    float scales[2];
    float in_offset;
    float out_offset;
    float outside;
    uint samples[2];  // at least, at most
    uint x_offset;
    uint roi_offset;
    uint batch_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/regions.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(roi, 1, TYPE)
INPUT_TENSOR(batch, 2, BATCH_TYPE)
OUTPUT_TENSOR(y, 3, TYPE)
// y, region, channel, height, width
WALK(walk, 5)

void main() {
    uint item = invocation_index();
    if (item >= count) return;
    uint[5] at = walk(0u, item);
    uint from = roi_offset + at[1] * roi_strides[0];
    uint step = roi_strides[1];
    Axis across = axis_of(roi_float(from), roi_float(from + 2u * step), outputs[1], scales[1]);
    Axis down = axis_of(roi_float(from + step), roi_float(from + 3u * step), outputs[0], scales[0]);
    uvec2 batch = batch_bits(batch_offset + at[1] * batch_stride);
    uint n = batch.y != 0u ? in_sizes[0] - 1u : min(batch.x, in_sizes[0] - 1u);
    uint plane = x_offset + n * x_strides[0] + at[2] * x_strides[1];

    float total = MAXIMUM ? infinity(0x80000000u) : 0.0;
    for (uint i = 0u; i < down.count; ++i) {
        float v = coordinate(down, at[3] * down.count + i);
        bool row_inside = is_inside(v, in_sizes[2]);
        v = clamp(row_inside ? v : 0.0, 0.0, float(in_sizes[2] - 1u));
        uint top = LINEAR ? uint(v) : uint(v + 0.5);
        uint bottom = min(top + 1u, in_sizes[2] - 1u);
        uint upper = plane + min(top, in_sizes[2] - 1u) * x_strides[2];
        uint lower = plane + bottom * x_strides[2];
        float below = v - float(top);
        for (uint j = 0u; j < across.count; ++j) {
            float u = coordinate(across, at[4] * across.count + j);
            bool inside = row_inside && is_inside(u, in_sizes[3]);
            u = clamp(inside ? u : 0.0, 0.0, float(in_sizes[3] - 1u));
            uint left = LINEAR ? uint(u) : min(uint(u + 0.5), in_sizes[3] - 1u);
            float sampled = x_float(upper + left * x_strides[3]);
            if (LINEAR) {
                uint right = min(left + 1u, in_sizes[3] - 1u);
                float beside = u - float(left);
                float up = sampled, up_right = x_float(upper + right * x_strides[3]);
                float low = x_float(lower + left * x_strides[3]);
                float low_right = x_float(lower + right * x_strides[3]);
                float above_row = beside == 0.0 ? up : up * (1.0 - beside) + up_right * beside;
                float below_row = beside == 0.0 ? low : low * (1.0 - beside) + low_right * beside;
                sampled = below == 0.0 ? above_row : above_row * (1.0 - below) + below_row * below;
            }
            sampled = inside ? sampled : outside;
            total = MAXIMUM ? maximum(total, sampled) : total + sampled;
        }
    }
    if (!MAXIMUM) total /= float(down.count * across.count);
    y_store_float(y_offset + at[0], total);
}
