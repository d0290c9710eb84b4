//@ op -
#version 450
#extension GL_GOOGLE_include_directive : require
// BFLOAT16 numbers as FLOAT32. An invocation reads a vector of eight of them.
layout(push_constant) uniform Push {
    uint count;  // of vectors
    uint x_offset;
    uint y_offset;
};
#include "include/grid.glsl"
layout(binding = 0) readonly buffer X { uvec4 x_vectors[]; };
layout(binding = 1) writeonly buffer Y { uvec4 y_vectors[]; };

void main() {
    uint i = invocation_index();
    if (i >= count) return;
    uvec4 x = x_vectors[x_offset / 8u + i], even = x << 16, odd = x & 0xFFFF0000u;
    uint at = y_offset / 4u + 2u * i;
    y_vectors[at] = uvec4(even.x, odd.x, even.y, odd.y);
    y_vectors[at + 1u] = uvec4(even.z, odd.z, even.w, odd.w);
}
