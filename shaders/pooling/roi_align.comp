//@ op DML_OPERATOR_ROI_ALIGN DML_OPERATOR_ROI_ALIGN1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation computes the averages or the maxima of the samples of one bin for EACH channels, which share
// places and weights.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint BATCH_TYPE = 4u;
layout(constant_id = 3) const bool MAXIMUM = false;
layout(constant_id = 4) const bool LINEAR = true;
layout(constant_id = 5) const bool CORNERS = false;
layout(constant_id = 6) const uint EACH = 1u;
layout(constant_id = 7) const bool VECTORS = false;  // the channels are a vector, of input and output
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
    uint y_channel;   // the output's stride between channels
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

void load(uint at, out float values[EACH]) {
    if (VECTORS) {
        uvec4 vector = x_vectors[at / EACH];
        [[unroll]] for (uint e = 0u; e < EACH; ++e) values[e] = number_of(element_of(vector, e, TYPE), TYPE);
    } else {
        [[unroll]] for (uint e = 0u; e < EACH; ++e) values[e] = x_float(at + e * x_strides[1]);
    }
}

float blend(float a, float b, float second) { return second == 0.0 ? a : a * (1.0 - second) + b * second; }

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

    float totals[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) totals[e] = MAXIMUM ? infinity(0x80000000u) : 0.0;
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
            float sampled[EACH];
            load(upper + left * x_strides[3], sampled);
            if (LINEAR) {
                uint right = min(left + 1u, in_sizes[3] - 1u);
                float beside = u - float(left);
                float up_right[EACH], low[EACH], low_right[EACH];
                load(upper + right * x_strides[3], up_right);
                load(lower + left * x_strides[3], low);
                load(lower + right * x_strides[3], low_right);
                [[unroll]] for (uint e = 0u; e < EACH; ++e)
                    sampled[e] = blend(blend(sampled[e], up_right[e], beside),
                                       blend(low[e], low_right[e], beside), below);
            }
            [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                float one = inside ? sampled[e] : outside;
                totals[e] = MAXIMUM ? maximum(totals[e], one) : totals[e] + one;
            }
        }
    }
    uint to = y_offset + at[0];
    if (!MAXIMUM)
        [[unroll]] for (uint e = 0u; e < EACH; ++e) totals[e] /= float(down.count * across.count);
    if (VECTORS) {
        uvec4 bits = uvec4(0u);
        [[unroll]] for (uint e = 0u; e < EACH; ++e)
            set_element(bits, e, uvec2(bits_of(totals[e], TYPE), 0u), TYPE);
        y_vectors[to / EACH] = bits;
    } else {
        [[unroll]] for (uint e = 0u; e < EACH; ++e) y_store_float(to + e * y_channel, totals[e]);
    }
}
