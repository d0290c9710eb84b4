//@ op DML_OPERATOR_NONZERO_COORDINATES
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A workgroup marks the non-zero elements of a block of 4,096, by a bit each, and counts them.
// EACH: elements of a vector if the tensor is packed, else 1.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint TYPE = 4u;
layout(constant_id = 2) const uint EACH = 1u;
layout(push_constant) uniform Push {
    uint count;
    uint x_offset;
    uint marks_offset;
    uint counts_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/reduce.glsl"

INPUT_TENSOR(x, 0, TYPE)
layout(binding = 1) writeonly buffer Marks { uint marks[]; };
layout(binding = 2) writeonly buffer Counts { uint counts[]; };
WALK(walk, 1)

const uint BLOCK = 4096u;
const uint WORDS = BLOCK / 32u;
shared uint s_marks[BLOCK / EACH];  // by vector or element

uint plus(uint a, uint b) { return a + b; }
WORKGROUP_REDUCE(total, uint, plus, subgroupAdd)

// Zero is +0 and -0.
bool is_nonzero(uvec2 bits) {
    return (IS_FLOAT(TYPE) ? bits.x << (32u - 8u * BYTES_OF(TYPE)) << 1u : bits.x) != 0u;
}

uint marks_of(uint first) {
    if (EACH == 1u) {
        if (first >= count) return 0u;
        return uint(is_nonzero(x_bits(x_offset + walk(0u, first)[0])));
    }
    uint found = 0u;
    if (first < count && count - first >= EACH) {
        uvec4 vector = x_vectors[(x_offset + first) / EACH];
        const uint width = 128u / EACH;
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uint bits = bitfieldExtract(vector[e * width / 32u], int(e * width % 32u), int(width));
            found |= uint(is_nonzero(uvec2(bits, 0u))) << e;
        }
    } else {
        for (uint e = 0u; first + e < count; ++e)
            found |= uint(is_nonzero(x_bits(x_offset + first + e))) << e;
    }
    return found;
}

void main() {
    uint block = group_index(), i = gl_LocalInvocationIndex, step = gl_WorkGroupSize.x;
    uint first = block * BLOCK;
    if (first >= count || first / BLOCK != block) return;
    [[unroll]] for (uint v = 0u; v < BLOCK / EACH / 256u; ++v)
        s_marks[v * step + i] = marks_of(first + (v * step + i) * EACH);
    barrier();
    uint word = 0u;
    if (i < WORDS) {
        [[unroll]] for (uint v = 0u; v < 32u / EACH; ++v)
            word |= s_marks[i * (32u / EACH) + v] << (v * EACH);
        marks[marks_offset + block * WORDS + i] = word;
    }
    uint found = total(uint(bitCount(word)));
    if (i == 0u) counts[counts_offset + block] = found;
}
