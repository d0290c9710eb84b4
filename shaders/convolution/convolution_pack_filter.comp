//@ op DML_OPERATOR_CONVOLUTION
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Puts a FLOAT16 filter into the order in which convolution_packed_coopmat.comp reads it: groups, phases, strips of 64
// columns (output channels), 32 input channels, taps, two steps of K, fragments of 16 columns, invocations. Invocation l
// has rows l / 4 and l / 4 + 8 of a left operand, by turns two channels of each: of the 32, the channels 8 (l % 4) to
// + 3 in the first step, + 4 to + 7 in the second. Its rows of four fragments are eight neighbouring columns. With
// PIXELS_LEFT it has columns l / 4 and l / 4 + 8 of a right operand, one after the other, in an order that makes
// its sums of two fragments eight neighbours. What is beyond the filter is 0. An invocation makes a vector.
layout(constant_id = 1) const bool PIXELS_LEFT = false;
layout(constant_id = 2) const uint UNIT = 1u;  // vectors: all begins at a multiple of them in its buffer
layout(push_constant) uniform Push {
    uint count;
    uint phases_y;
    uint phases_x;
    uint strips;
    uint chunks;
    uint taps_y;
    uint taps_x;
    uint in_channels;
    uint out_channels;
    uint strides[5];  // group, output channel, input channel, tap y and x
    uint filter_offset;
    uint packed_offset;
    uint params_offset;
};
#define PARAMS_BINDING 2
#include "include/grid.glsl"
#include "include/params.glsl"
layout(binding = 0) readonly buffer Filter { uint w_words[]; };
layout(binding = 1) writeonly buffer Packed { uvec4 packed_vectors[]; };

void main() {
    uint n = invocation_index();
    if (n >= count) return;
    uint to = (packed_offset / 8u + UNIT - 1u) / UNIT * UNIT + n;
    uint lane = n % 32u, fragment = n / 32u % 4u, step = n / 128u % 2u;
    n /= 256u;
    uint tap_x = n % taps_x;
    n /= taps_x;
    uint tap_y = n % taps_y;
    n /= taps_y;
    uint chunk = n % chunks;
    n /= chunks;
    uint strip = n % strips;
    n /= strips;
    uint phase_x = n % phases_x;
    n /= phases_x;
    uint phase_y = n % phases_y, group = n / phases_y;
    // The elements of a phase's first taps: first along y, then along x.
    uint from = filter_offset + group * strides[0] + param(phase_y) + param(phases_y + phase_x)
                + tap_y * strides[3] + tap_x * strides[4];
    uint channel = chunk * 32u + lane % 4u * 8u + step * 4u;
    uvec4 found = uvec4(0u);
    [[unroll]] for (uint e = 0u; e < 8u; ++e) {
        uint own = channel + (PIXELS_LEFT ? e % 4u : e / 4u * 2u + e % 2u);
        uint column = strip * 64u + (PIXELS_LEFT ? fragment / 2u * 32u + lane / 8u * 8u + fragment % 2u * 4u
                                                   + e / 4u * 2u + lane / 4u % 2u
                                                 : lane / 4u * 8u + fragment * 2u + e / 2u % 2u);
        uint at = from + min(column, out_channels - 1u) * strides[1] + min(own, in_channels - 1u) * strides[2];
        uint bits = bitfieldExtract(w_words[at / 2u], int(at % 2u * 16u), 16);
        found[e / 2u] |= own < in_channels && column < out_channels ? bits << e % 2u * 16u : 0u;
    }
    packed_vectors[to] = found;
}
