//@ op DML_OPERATOR_CONVOLUTION
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Brings 16-bit elements into lines of channels, side by side, with zeros up to whole vectors of 8.
// A workgroup of 256 makes 32 lines, 8 vectors of each at a time.
layout(push_constant) uniform Push {
    uint lines;
    uint channels;
    uint vectors;  // of a line
    uint channel_stride;
    uint x_offset;
    uint y_offset;
    uint params_offset;
};
#define PARAMS_BINDING 2
#include "include/grid.glsl"
#include "include/walk.glsl"
layout(binding = 0) readonly buffer Input { uint x_words[]; };
layout(binding = 1) writeonly buffer Output { uvec4 y_vectors[]; };
WALK(walk, 1)

uint element(uint line, uint channel) {
    uint at = line + min(channel, channels - 1u) * channel_stride;
    uint bits = bitfieldExtract(x_words[at / 2u], int(at % 2u * 16u), 16);
    return channel < channels ? bits : 0u;
}

void main() {
    uint index = group_index() * 32u + gl_LocalInvocationIndex % 32u;
    if (index >= lines) return;
    uint line = x_offset + walk(0u, index)[0];
    for (uint v = gl_LocalInvocationIndex / 32u; v < vectors; v += 8u) {
        uvec4 words;
        [[unroll]] for (uint e = 0u; e < 4u; ++e)
            words[e] = element(line, v * 8u + 2u * e) | element(line, v * 8u + 2u * e + 1u) << 16;
        y_vectors[y_offset / 8u + index * vectors + v] = words;
    }
}
