//@ op DML_OPERATOR_REVERSE_SUBSEQUENCES
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation moves an element. The walk has the input without the axis, the lengths, the output
// and the coordinate on the axis.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint LENGTH_WORDS = 1u;

layout(push_constant) uniform Push {
    uint x_offset;
    uint lengths_offset;
    uint y_offset;
    uint params_offset;
    uint count;
    uint size;  // of the axis
    uint stride;  // of the input along it
};
#include "include/grid.glsl"
#include "include/elements.glsl"
#include "include/walk.glsl"

layout(binding = 0) readonly buffer X { uint x_words[]; };
layout(binding = 1) readonly buffer Lengths { uint lengths[]; };
layout(binding = 2) buffer Y { uint y_words[]; };
WALK(walk, 4)

void main() {
    uint index = invocation_index();
    if (index >= count) return;
    uint[4] at = walk(0u, index);
    uint from = at[3], length_at = (lengths_offset + at[1]) * LENGTH_WORDS;
    uint length = lengths[length_at];
    if (LENGTH_WORDS == 2u && lengths[length_at + 1u] != 0u) length = 0xFFFFFFFFu;
    length = min(length, size);
    if (from < length) from = length - 1u - from;
    STORE_ELEMENT(y_words, y_offset + at[2],
                  LOAD_ELEMENT(x_words, x_offset + at[0] + from * stride));
}
