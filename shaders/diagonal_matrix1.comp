//@ op DML_OPERATOR_DIAGONAL_MATRIX1 DML_OPERATOR_DIAGONAL_MATRIX
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#include "include/grid.glsl"
#include "include/elements.glsl"

// Value where column - row lies in [fill_begin, fill_end), or outside it when INVERT; else the
// input's element, or 0 without input. Columns are counted from sizes[2] (the height) upwards, so
// that column - row never becomes negative. DENSE: the output (and the input) lie gapless, and one
// invocation owns 16 bytes of output; else one invocation makes one element through strides.
layout(constant_id = 1) const bool DENSE = false;
layout(constant_id = 2) const bool HAS_INPUT = false;
layout(constant_id = 3) const bool INVERT = false;

layout(binding = 0) readonly buffer InputWords { uint in_words[]; };
layout(binding = 1) buffer OutputWords { uint out_words[]; };
layout(binding = 2) writeonly buffer OutputVectors { uvec4 out_vectors[]; };

layout(push_constant) uniform Push {
    uint in_offset;
    uint out_offset;
    uint count;
    uint fill_begin;
    uint fill_end;
    uint value[2];
    uint sizes[4];
    uint in_strides[4];
    uint out_strides[4];
};

#if defined(T_b64)
#define VALUE uvec2(value[0], value[1])
const uint PER_VECTOR = 2u;
#elif defined(T_b32)
#define VALUE value[0]
const uint PER_VECTOR = 4u;
#else
#define VALUE value[0]
const uint PER_VECTOR = 4u * ELEMENTS_PER_WORD;
#endif

bool is_filled(uint row, uint column) {
    uint top = column + sizes[2] - row;
    bool inside = INVERT ? top >= fill_end && top < fill_begin
                         : top >= fill_begin && top < fill_end;
    return inside != INVERT;
}

ELEMENT element(uint row, uint column, uint from) {
    if (is_filled(row, column)) return VALUE;
    if (HAS_INPUT) return LOAD_ELEMENT(in_words, from);
    return ZERO_ELEMENT;
}

void fill_vector(uint vector) {
    uint begin = vector * PER_VECTOR;
    uint first = max(begin, out_offset);
    uint last = min(begin + PER_VECTOR, out_offset + count);
    uint line = (first - out_offset) / sizes[3];
    uint column = first - out_offset - line * sizes[3];
    uint row = line % sizes[2];

    uvec4 bits = uvec4(0u);
    bool whole = last - first == PER_VECTOR;
    for (uint e = first; e < last; ++e) {
        ELEMENT x = element(row, column, e - out_offset + in_offset);
        if (!whole) {
            STORE_ELEMENT(out_words, e, x);
        } else {
            uint at = e - begin;
#if defined(T_b64)
            bits[2u * at] = x.x;
            bits[2u * at + 1u] = x.y;
#elif defined(T_b32)
            bits[at] = x;
#else
            bits[at / ELEMENTS_PER_WORD] |= x << element_shift(at);
#endif
        }
        if (++column == sizes[3]) {
            column = 0u;
            if (++row == sizes[2]) row = 0u;
        }
    }
    if (whole) out_vectors[vector] = bits;
}

void main() {
    uint index = invocation_index();
    if (DENSE) {
        uint vector = out_offset / PER_VECTOR + index;
        if (vector <= (out_offset + count - 1u) / PER_VECTOR) fill_vector(vector);
        return;
    }
    if (index >= count) return;
    uint coordinate[4];
    uint from = in_offset;
    uint to = out_offset;
    for (int d = 3; d >= 0; --d) {
        uint next = index / sizes[d];
        coordinate[d] = index - next * sizes[d];
        from += coordinate[d] * in_strides[d];
        to += coordinate[d] * out_strides[d];
        index = next;
    }
    STORE_ELEMENT(out_words, to, element(coordinate[2], coordinate[3], from));
}
