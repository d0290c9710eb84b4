//@ op DML_OPERATOR_ACTIVATION_IDENTITY
//@ variants T: b16 b32
#version 450
#extension GL_GOOGLE_include_directive : require
#include "include/grid.glsl"
#include "include/elements.glsl"

// Copies elements as bits. DENSE: both sides lie gapless, and one invocation owns the 16 bytes of
// output at one vector index; a word that the tensor covers in part is stored element by element.
// Otherwise one invocation copies one element through strides.
layout(constant_id = 1) const bool DENSE = false;

layout(binding = 0) readonly buffer InputWords { uint in_words[]; };
layout(binding = 1) readonly buffer InputVectors { uvec4 in_vectors[]; };
layout(binding = 2) buffer OutputWords { uint out_words[]; };
layout(binding = 3) writeonly buffer OutputVectors { uvec4 out_vectors[]; };

layout(push_constant) uniform Push {
    uint in_offset;
    uint out_offset;
    uint count;
    uint rank;
    uint sizes[8];
    uint in_strides[8];
    uint out_strides[8];
};

#ifndef ELEMENTS_PER_WORD
#define ELEMENTS_PER_WORD 1u
#endif
const uint PER_VECTOR = 4u * ELEMENTS_PER_WORD;

void copy_element(uint from, uint to) {
    STORE_ELEMENT(out_words, to, LOAD_ELEMENT(in_words, from));
}

void copy_vector(uint vector) {
    uint begin = vector * PER_VECTOR;
    uint end = begin + PER_VECTOR;
    uint shift = in_offset - out_offset;  // wraps, as all sums with it do
    bool whole = begin >= out_offset && end <= out_offset + count;
    if (whole && shift % PER_VECTOR == 0u) {
        out_vectors[vector] = in_vectors[(begin + shift) / PER_VECTOR];
        return;
    }
    for (uint word = 0u; word < 4u; ++word) {
        uint first = begin + word * ELEMENTS_PER_WORD;
        uint last = first + ELEMENTS_PER_WORD;
        if (first >= out_offset && last <= out_offset + count) {
            uint bits = 0u;
#if defined(ELEMENT_BITS)
            for (uint e = 0u; e < ELEMENTS_PER_WORD; ++e)
                bits |= LOAD_ELEMENT(in_words, first + e + shift) << (e * ELEMENT_BITS);
#else
            bits = in_words[first + shift];
#endif
            out_words[first / ELEMENTS_PER_WORD] = bits;
        } else {
            for (uint e = max(first, out_offset); e < min(last, out_offset + count); ++e)
                copy_element(e + shift, e);
        }
    }
}

void main() {
    uint index = invocation_index();
    if (DENSE) {
        uint vector = out_offset / PER_VECTOR + index;
        if (vector <= (out_offset + count - 1u) / PER_VECTOR) copy_vector(vector);
        return;
    }
    if (index >= count) return;
    uint from = in_offset;
    uint to = out_offset;
    for (uint d = rank; d-- > 0u;) {
        uint next = index / sizes[d];
        uint coordinate = index - next * sizes[d];
        from += coordinate * in_strides[d];
        to += coordinate * out_strides[d];
        index = next;
    }
    copy_element(from, to);
}
