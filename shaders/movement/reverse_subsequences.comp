//@ op DML_OPERATOR_REVERSE_SUBSEQUENCES
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation moves PARTS elements, or vectors of 16 bytes along a contiguous row. A vector moves whole
// where all of its lengths are the same. The walk gives four places: in the input without the axis, in the
// lengths, in the output, and the coordinate on the axis. RUN: rows of one length are contiguous in both
// tensors. The walk is of rows, and an invocation copies RUN vectors of one.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint LENGTH_WORDS = 1u;
layout(constant_id = 2) const uint TYPE = 4u;
layout(constant_id = 3) const uint EACH = 1u;  // elements that move as one
layout(constant_id = 4) const uint PARTS = 1u;
layout(constant_id = 5) const uint RUN = 0u;

layout(push_constant) uniform Push {
    uint x_offset;
    uint lengths_offset;
    uint y_offset;
    uint params_offset;
    uint count;
    uint size;  // of the axis
    uint stride;  // of the input along it
    uint row_size;
    uint runs;  // of a row
    uint length_step;  // from the length of one element of a vector to the next
};
#include "include/grid.glsl"
#include "include/bits.glsl"
#define WALK_RANKED
#include "include/walk.glsl"

INPUT_BITS(x, 0, TYPE)
layout(binding = 1) readonly buffer Lengths { uint lengths[]; };
OUTPUT_BITS(y, 2, TYPE)
#define RUN_BYTES TYPE
#include "include/runs.glsl"
WALK(walk, 4)

// The coordinate that moves to ``at``.
uint source(uint at, uint number) {
    uint length = lengths[number * LENGTH_WORDS];
    if (LENGTH_WORDS == 2u && lengths[number * LENGTH_WORDS + 1u] != 0u) length = 0xFFFFFFFFu;
    length = min(length, size);
    return at < length ? length - 1u - at : at;
}

uvec4 vector_at(uint begin, uint at, uint number) {
    uint from[EACH];
    bool whole = true;
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        from[e] = source(at, number + e * length_step);
        whole = whole && from[e] == from[0];
    }
    if (whole) return x_vectors[(begin + from[0] * stride) / EACH];
    uvec4 vector = uvec4(0u);
    [[unroll]] for (uint e = 0u; e < EACH; ++e)
        set_element(vector, e, x_bits(begin + from[e] * stride + e), TYPE);
    return vector;
}

void main() {
    if (RUN != 0u) {
        uint row = invocation_index() / runs;
        if (row >= count) return;
        uint[4] at = walk(0u, row);
        uint from = x_offset + at[0] + source(at[3], lengths_offset + at[1]) * stride;
        copy_row_run(from, y_offset + at[2], row_size, invocation_index() - row * runs, RUN);
        return;
    }
    uint first = group_index() * gl_WorkGroupSize.x * PARTS + gl_LocalInvocationID.x;
    uint to[PARTS];
    uvec4 unit[PARTS];
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        uint[4] at = walk(0u, min(first + p * gl_WorkGroupSize.x, count - 1u));
        uint begin = x_offset + at[0], number = lengths_offset + at[1];
        if (EACH == 1u) unit[p].xy = x_bits(begin + source(at[3], number) * stride);
        else unit[p] = vector_at(begin, at[3], number);
        to[p] = y_offset + at[2];
    }
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        if (first + p * gl_WorkGroupSize.x >= count) return;
        if (EACH == 1u) y_store_bits(to[p], unit[p].xy);
        else y_vectors[to[p] / EACH] = unit[p];
    }
}
