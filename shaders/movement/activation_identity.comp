//@ op DML_OPERATOR_ACTIVATION_IDENTITY
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/grid.glsl"
#include "include/vectors.glsl"
#include "include/parts.glsl"

// Copies elements as bits, lines of sizes[0] of them. WHOLE where lines of the output lie gapless: an
// invocation makes the part of a line that falls into one vector of output, and a packed tensor is
// one line. Otherwise it copies one element.
// EVEN where also all lines begin and end with a vector. REPEATS: each line repeats one element.
// GATHERS: what a line reads is neither one element nor gapless.
layout(constant_id = 2) const bool WHOLE = false;
layout(constant_id = 3) const bool EVEN = false;
layout(constant_id = 4) const bool REPEATS = false;
layout(constant_id = 5) const uint PARTS = 1u;  // that an invocation copies of EVEN lines
layout(constant_id = 6) const bool GATHERS = false;

uvec4 gathered(uint from) {
    uvec4 vector = uvec4(0u);
    [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e)
        set_element(vector, e, LOAD_ELEMENT(in_words, from + e * in_strides[0]));
    return vector;
}

uvec4 load_part(uint from) {
    if (REPEATS) return filled_vector(LOAD_ELEMENT(in_words, from));
    if (GATHERS) return gathered(from);
    return load_vector(from);
}

void copy_even_part(uint index) {
    uint per_line = sizes[0] / PER_VECTOR;
    uint at = min(index, count * per_line - 1u);
    uint line = RANK == 0u ? 0u : at / per_line;
    uint part = at - line * per_line;
    uvec2 begin = part_offsets(line);
    uvec4 vector;
    if (REPEATS) vector = filled_vector(LOAD_ELEMENT(in_words, begin.x));
    else vector = in_vectors[begin.x / PER_VECTOR + part];
    if (index == at) out_vectors[begin.y / PER_VECTOR + part] = vector;
}

void copy_line_part(uint index) {
    uint size = sizes[0];
    // A line meets so many vectors at most.
    uint per_line = (size + PER_VECTOR - 2u) / PER_VECTOR + 1u;
    uint line = RANK == 0u ? 0u : index / per_line;
    uint part = index - line * per_line;
    if (line >= count || part >= per_line) return;
    uvec2 begin = part_offsets(line);
    uint from = begin.x, to = begin.y;
    uint vector = to / PER_VECTOR + part;
    uint first = max(vector * PER_VECTOR, to);
    uint last = min((vector + 1u) * PER_VECTOR, to + size);
    if (first >= last) return;
    uint step = in_strides[0];
    from += (first - to) * step;
    if (last - first == PER_VECTOR) {
        out_vectors[vector] = load_part(from);
        return;
    }
    for (uint e = first; e < last; ++e)
        STORE_ELEMENT(out_words, e, LOAD_ELEMENT(in_words, from + (e - first) * step));
}

void copy_element(uint index) {
    uint line = index / sizes[0];
    uint e = index - line * sizes[0];
    if (line >= count) return;
    uvec2 at = part_offsets(line) + e * uvec2(in_strides[0], out_strides[0]);
    STORE_ELEMENT(out_words, at.y, LOAD_ELEMENT(in_words, at.x));
}

void main() {
    uint first = group_index() * gl_WorkGroupSize.x * PARTS + gl_LocalInvocationID.x;
    if (EVEN) {
        [[unroll]] for (uint p = 0u; p < PARTS; ++p) copy_even_part(first + p * gl_WorkGroupSize.x);
    } else if (WHOLE) {
        copy_line_part(first);
    } else {
        copy_element(first);
    }
}
