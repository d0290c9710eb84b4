//@ op DML_OPERATOR_ROI_POOLING
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation computes one element of the output.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint TYPE = 36u;
layout(push_constant) uniform Push {
    uint count;
    uint in_sizes[4];
    uint x_strides[4];
    uint roi_strides[2];
    uint pooled[2];  // height and width
    float scale;
    uint x_offset;
    uint roi_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(roi, 1, TYPE)
OUTPUT_TENSOR(y, 2, TYPE)
// y, region, channel, height, width
WALK(walk, 5)

// The beginning and the end of a bin, inside the input.
uvec2 bin(int first, int last, uint place, uint bins, uint size) {
    uint length = uint(max(last - first, 0)) + 1u;
    // With quotient and remainder no product exceeds 32 bits.
    uint whole = length / bins, rest = length % bins;
    int begin = first + int(place * whole + place * rest / bins);
    int end = first + int((place + 1u) * whole + ((place + 1u) * rest + bins - 1u) / bins);
    return uvec2(clamp(ivec2(begin, end), ivec2(0), ivec2(size)));
}

int corner(uint from, uint e) {
    precise float place = roi_float(from + e * roi_strides[1]) * scale;
    return int(clamp(is_nan(place) ? 0.0 : rounded(place, false), -1.0e9, 1.0e9));
}

void main() {
    uint item = invocation_index();
    if (item >= count) return;
    uint[5] at = walk(0u, item);
    uint from = roi_offset + at[1] * roi_strides[0];
    float batch = roi_float(from);
    uint n = uint(clamp(is_nan(batch) ? 0.0 : batch, 0.0, float(in_sizes[0] - 1u)));
    uvec2 h = bin(corner(from, 2u), corner(from, 4u), at[3], pooled[0], in_sizes[2]);
    uvec2 w = bin(corner(from, 1u), corner(from, 3u), at[4], pooled[1], in_sizes[3]);
    uint plane = x_offset + min(n, in_sizes[0] - 1u) * x_strides[0] + at[2] * x_strides[1];
    bool any_there = h.x < h.y && w.x < w.y;
    float most = any_there ? infinity(0x80000000u) : 0.0;
    const uint EACH = 8u;  // operators/roi.py counts the passes
    for (uint i = h.x; i < h.y; ++i) {
        for (uint j = w.x; j < w.y; j += EACH) {
            [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                uint column = min(j + e, w.y - 1u);
                most = maximum(most, x_float(plane + i * x_strides[2] + column * x_strides[3]));
            }
        }
    }
    y_store_float(y_offset + at[0], most);
}
