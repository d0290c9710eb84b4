//@ op DML_OPERATOR_CONVOLUTION
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A convolution of groups with few output channels, such as depthwise ones, which would not fill a tile.
// An invocation computes two neighbouring elements of the output.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool ALONG_ROWS = true;  // neighbours are positions; else channels
layout(constant_id = 3) const bool HAS_BIAS = false;
const bool CHANNELS_INNER = false;
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint rows;
    uint groups;
    uint batches;
    uint in_channels;  // in a group
    uint out_channels;
    uint x_strides[2];  // batch, channel
    uint w_strides[3];  // group, output channel, input channel
    uint y_strides[3];  // split, batch, channel
    uint bias_stride;
    uint activation_at;
    uint x_offset;
    uint w_offset;
    uint y_offset;
    uint bias_offset;
    TAIL_FIELD
    uint params_offset;
};
#define PARAMS_BINDING AFTER_TAIL(4)
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/convolution.glsl"
#define TAIL_BINDING 4
#define TAIL_TYPE TYPE
#include "include/tail.glsl"
INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(w, 1, TYPE)
OUTPUT_TENSOR(y, 2, TYPE)
INPUT_TENSOR(bias, 3, TYPE)

float element(Taps taps, uint row, uint channel, out uint to) {
    to = NOWHERE;
    if (row >= rows || channel >= groups * out_channels) return 0.0;
    uint group = channel / out_channels;
    ivec4 at = input_row(taps, row, group, to);
    if (to == NOWHERE) return 0.0;
    to += channel * y_strides[2];
    uint from_w = w_offset + group * w_strides[0] + channel % out_channels * w_strides[1] +
                  taps.filter_first.x + taps.filter_first.y + taps.filter_first.z;
    uvec3 sizes, steps, x_steps, w_steps;
    [[unroll]] for (uint a = 0u; a < 3u; ++a) {
        sizes[a] = axis_word(a, 0u);
        steps[a] = axis_word(a, 2u);
        x_steps[a] = steps[a] * axis_word(a, 6u);
        w_steps[a] = axis_word(a, 3u);
    }
    float sum = 0.0;
    for (uint c = 0u; c < in_channels; ++c)
        for (uint i = 0u; i < taps.count.x; ++i) {
            if (uint(at.y) + i * steps.x >= sizes.x) continue;
            for (uint j = 0u; j < taps.count.y; ++j) {
                if (uint(at.z) + j * steps.y >= sizes.y) continue;
                uint from_x = uint(at.x) + c * x_strides[1] + i * x_steps.x + j * x_steps.y;
                uint tap = from_w + c * w_strides[2] + i * w_steps.x + j * w_steps.y;
                for (uint k = 0u; k < taps.count.z; ++k) {
                    if (uint(at.w) + k * steps.z < sizes.z)
                        sum += x_float(from_x + k * x_steps.z) * w_float(tap + k * w_steps.z);
                }
            }
        }
    if (HAS_BIAS) sum += bias_float(bias_offset + channel * bias_stride);
    return finish(sum, to - y_offset);
}

void main() {
    uint index = invocation_index();
    uint channels = groups * out_channels;
    uint pairs = ((ALONG_ROWS ? rows : channels) + 1u) / 2u, lines = ALONG_ROWS ? channels : rows;
    uint fast = index % pairs * 2u, slow = index / pairs % lines;
    Taps taps = taps_of(index / pairs / lines);
    if (index / pairs / lines >= taps.phases) return;
    uvec2 to;
    vec2 result;
    [[unroll]] for (uint e = 0u; e < 2u; ++e) {
        uint at;
        result[e] = ALONG_ROWS ? element(taps, fast + e, slow, at)
                               : element(taps, slow, fast + e, at);
        to[e] = at;
    }
    if (TYPE == 34u && to.x % 2u == 0u && to.y == to.x + 1u) {
        y_words[to.x / 2u] = floats_to_halves(result.x, result.y);
        return;
    }
    [[unroll]] for (uint e = 0u; e < 2u; ++e)
        if (to[e] != NOWHERE) y_store_float(to[e], result[e]);
}
