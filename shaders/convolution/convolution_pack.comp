//@ op DML_OPERATOR_CONVOLUTION DML_OPERATOR_CONVOLUTION_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION
//@ variants T: b32 b16 b8
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Copies elements into lines of contiguous channels, filled up to whole vectors of 16 bytes with zeros or
// a zero point. If channels are few, a line has those of several NEIGHBOURS along the last axis, each
// filled up to CHANNELS. A workgroup of 256 copies LINES at a time.
layout(constant_id = 1) const bool HAS_FILL = false;
layout(constant_id = 2) const uint NEIGHBOURS = 1u;
layout(constant_id = 3) const uint CHANNELS = 1u;  // for each neighbour
layout(constant_id = 4) const uint LINES = 32u;
layout(push_constant) uniform Push {
    uint rows;
    uint channels;
    uint vectors;  // in a line
    uint channel_stride;
    uint width;  // lines along the last axis, with NEIGHBOURS
    uint limit;  // elements along the last axis
    uint stride;
    uint step;   // elements from line to line
    uint apart;  // elements from neighbour to neighbour
    uint shift;  // elements before the axis in the first line
    uint x_offset;
    uint y_offset;
    uint fill_offset;
    uint params_offset;
};
#define PARAMS_BINDING 3
#include "include/grid.glsl"
#include "include/walk.glsl"
layout(binding = 0) readonly buffer Input { uint x_words[]; };
layout(binding = 1) writeonly buffer Output { uvec4 y_vectors[]; };
layout(binding = 2) readonly buffer Fill { uint fill_words[]; };
WALK(walk, 1)
#if defined(T_b32)
const uint PER_WORD = 1u;
#elif defined(T_b16)
const uint PER_WORD = 2u;
#else
const uint PER_WORD = 4u;
#endif
const uint BITS = 32u / PER_WORD;

// An element. ``place`` is the line's first neighbour along the last axis.
uint element(uint line, uint place, uint channel, uint fill) {
    if (NEIGHBOURS > 1u) {
        place += channel / CHANNELS * apart;
        channel %= CHANNELS;
        if (place >= limit) return fill;
        line += place * stride;
    }
    uint at = line + min(channel, channels - 1u) * channel_stride;
    uint bits = bitfieldExtract(x_words[at / PER_WORD], int(at % PER_WORD * BITS), int(BITS));
    return channel < channels ? bits : fill;
}

void main() {
    uint index = group_index() * LINES + gl_LocalInvocationIndex % LINES;
    if (index >= rows) return;
    uint line = x_offset + walk(0u, index)[0];
    uint place = NEIGHBOURS > 1u ? index % width * step - shift : 0u;
    uint fill = HAS_FILL ? bitfieldExtract(fill_words[fill_offset / PER_WORD],
                                           int(fill_offset % PER_WORD * BITS), int(BITS))
                         : 0u;
    for (uint v = gl_LocalInvocationIndex / LINES; v < vectors; v += gl_WorkGroupSize.x / LINES) {
        uvec4 words = uvec4(0u);
        [[unroll]] for (uint e = 0u; e < 4u * PER_WORD; ++e)
            words[e / PER_WORD] |= element(line, place, v * 4u * PER_WORD + e, fill)
                                   << e % PER_WORD * BITS;
        y_vectors[y_offset / (4u * PER_WORD) + index * vectors + v] = words;
    }
}
