//@ op DML_OPERATOR_ACTIVATION_IDENTITY
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/grid.glsl"
#include "include/vectors.glsl"
#include "include/parts.glsl"
#define RUN_BYTES BYTES
#include "include/runs.glsl"

// Copies elements as bits, in rows of sizes[0]. WHOLE: rows of the output are contiguous, and an
// invocation writes the part of a row that lies in one vector of the output. A packed tensor is one
// row. Otherwise an invocation copies one element. EVEN: all rows also begin and end with a vector.
// REPEATS: each row repeats one element. GATHERS: rows of the input are not contiguous.
layout(constant_id = 2) const bool WHOLE = false;
layout(constant_id = 3) const bool EVEN = false;
layout(constant_id = 4) const bool REPEATS = false;
layout(constant_id = 5) const uint PARTS = 1u;  // of EVEN rows that an invocation copies
layout(constant_id = 6) const bool GATHERS = false;
layout(constant_id = 7) const uint RUN = 0u;  // vectors of a WHOLE row that an invocation copies, or 0
layout(constant_id = 8) const bool ON_CPU = false;

uvec4 gathered(uint from) {
    uvec4 vector = uvec4(0u);
    [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e)
        set_element(vector, e, x_bits(from + e * in_strides[0]));
    return vector;
}

uvec4 load_part(uint from) {
    if (REPEATS) return filled_vector(x_bits(from));
    if (GATHERS) return gathered(from);
    return load_vector(from);
}

// All parts are read before one is written, so that they are under way together.
void copy_even_parts(uint first) {
    uint per_row = sizes[0] / PER_VECTOR, end = count * per_row;
    uint to[PARTS];
    uvec4 vector[PARTS];
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        uint at = min(first + p * gl_WorkGroupSize.x, end - 1u);
        uint row = RANK == 0u ? 0u : at / per_row;
        uint part = at - row * per_row;
        uvec2 begin = part_offsets(row);
        if (REPEATS) vector[p] = filled_vector(x_bits(begin.x));
        else vector[p] = x_vectors[begin.x / PER_VECTOR + part];
        to[p] = begin.y / PER_VECTOR + part;
    }
    [[unroll]] for (uint p = 0u; p < PARTS; ++p)
        if (first + p * gl_WorkGroupSize.x < end) y_vectors[to[p]] = vector[p];
}

void copy_row_part(uint index) {
    uint size = sizes[0];
    // A row lies in so many vectors at most.
    uint per_row = (size + PER_VECTOR - 2u) / PER_VECTOR + 1u;
    uint row = RANK == 0u ? 0u : index / per_row;
    uint part = index - row * per_row;
    if (row >= count || part >= per_row) return;
    uvec2 begin = part_offsets(row);
    uint from = begin.x, to = begin.y;
    uint vector = to / PER_VECTOR + part;
    uint first = max(vector * PER_VECTOR, to);
    uint last = min((vector + 1u) * PER_VECTOR, to + size);
    if (first >= last) return;
    uint step = in_strides[0];
    if (ON_CPU && GATHERS) {
        uvec4 made = uvec4(0u);
        [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e) {
            // Those that the row does not have are others of it.
            uint at = clamp(vector * PER_VECTOR + e, first, last - 1u) - to;
            set_element(made, e, x_bits(from + at * step));
        }
        store_words(first, last, made);
        return;
    }
    from += (first - to) * step;
    if (last - first == PER_VECTOR) {
        y_vectors[vector] = load_part(from);
        return;
    }
    for (uint e = first; e < last; ++e)
        y_store_bits(e, x_bits(from + (e - first) * step));
}

// Where rows are contiguous in both tensors.
void copy_some(uint index) {
    uint per_row = ((sizes[0] + PER_VECTOR - 2u) / PER_VECTOR + RUN) / RUN;
    uint row = RANK == 0u ? 0u : index / per_row;
    if (row >= count) return;
    uvec2 begin = part_offsets(row);
    copy_row_run(begin.x, begin.y, sizes[0], index - row * per_row, RUN);
}

void copy_element(uint index) {
    uint row = index / sizes[0];
    uint e = index - row * sizes[0];
    if (row >= count) return;
    uvec2 at = part_offsets(row) + e * uvec2(in_strides[0], out_strides[0]);
    y_store_bits(at.y, x_bits(at.x));
}

void main() {
    uint first = group_index() * gl_WorkGroupSize.x * PARTS + gl_LocalInvocationID.x;
    if (RUN != 0u) {
        copy_some(first);
    } else if (EVEN) {
        copy_even_parts(first);
    } else if (WHOLE) {
        copy_row_part(first);
    } else {
        copy_element(first);
    }
}
