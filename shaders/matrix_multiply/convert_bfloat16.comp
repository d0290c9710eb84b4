//@ op -
//@ variants WAY: widen narrow
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// BFLOAT16 numbers as FLOAT32, or the other way round, rounded to the nearest. An invocation takes one of a
// walk, or of packed numbers two neighbours.
#define PARAMS_BINDING 2
layout(constant_id = 1) const bool PACKED = false;
layout(push_constant) uniform Push {
    uint count;
    uint x_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/bfloat16.glsl"
layout(binding = 0) readonly buffer X { uint x_words[]; };
layout(binding = 1) buffer Y { uint y_words[]; };
WALK(walk, 2)  // input, output

void convert(uint x, uint y) {
#if defined(WAY_widen)
    y_words[y] = x_words[x / 2u] >> x % 2u * 16u << 16;
#else
    uint shift = y % 2u * 16u, bits = float_to_bfloat16(uintBitsToFloat(x_words[x])) & 0xFFFFu;
    uint own = (y_words[y / 2u] >> shift ^ bits) & 0xFFFFu;
    atomicXor(y_words[y / 2u], own << shift);  // no other invocation changes them
#endif
}

void main() {
    uint i = invocation_index() * (PACKED ? 2u : 1u);
    if (i >= count) return;
    if (!PACKED) {
        uint[2] at = walk(0u, i);
        convert(x_offset + at[0], y_offset + at[1]);
    } else if (i + 1u == count) {
        convert(x_offset + i, y_offset + i);
    } else {
        uint x = x_offset + i, y = y_offset + i;
#if defined(WAY_widen)
        uint pair = x_words[x / 2u];
        y_words[y] = pair << 16;
        y_words[y + 1u] = pair & 0xFFFF0000u;
#else
        y_words[y / 2u] = float_to_bfloat16(uintBitsToFloat(x_words[x])) & 0xFFFFu
                          | float_to_bfloat16(uintBitsToFloat(x_words[x + 1u])) << 16;
#endif
    }
}
