//@ op DML_OPERATOR_SLICE_GRAD
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation writes a vector of the outgoing gradient y, which is packed and whose rows consist of
// vectors. It has the elements of the incoming gradient x that the steps of the slice meet, and zeros
// between.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint RANK = 0u;  // dimensions that count rows
layout(constant_id = 2) const uint STEP = 1u;  // along a row, without its sign
layout(constant_id = 3) const bool BACK = false;  // the slice steps backwards along a row
// All vectors meet the same number of steps, from this element on, and they are contiguous and aligned in x.
layout(constant_id = 4) const bool EVEN = false;
layout(constant_id = 5) const uint PHASE = 0u;
layout(push_constant) uniform Push {
    uint x_offset;
    uint y_offset;
    uint params_offset;
    uint vectors;
    uint per_row[3];  // vectors; then multiplier and shift to divide by them
    uint begin;  // of the slice in a row
    uint count;  // elements of a row of x
    uint stride;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/vectors.glsl"

// Words of a dimension that counts rows. The last comes first.
const uint SIZE = 0u;  // then multiplier and shift
const uint BEGIN = 3u;
const uint BACKWARDS = 4u;
const uint STEPS = 5u;  // then multiplier and shift
const uint COUNT = 8u;  // of x
const uint STRIDE = 9u;  // of x
const uint WORDS = 10u;

layout(binding = 0) readonly buffer XPairs { uvec2 x_pairs[]; };
const uint HITS = (PER_VECTOR + STEP - 1u) / STEP;  // the most steps that meet a vector

uint quotient(uint n, uint divisor_at) {
    if (param(divisor_at) == 1u) return n;
    return walk_quotient(n, param(divisor_at + 1u), param(divisor_at + 2u));
}

// Where a row of x begins that belongs to a row of y, if there is one.
bool has_row(uint row, out uint from) {
    bool there = true;
    from = x_offset;
    [[unroll]] for (uint i = 0u; i < RANK; ++i) {
        uint d = i * WORDS;
        uint next = i + 1u == RANK ? 0u : quotient(row, d + SIZE);
        uint coordinate = row - next * param(d + SIZE);
        uint distance = coordinate - param(d + BEGIN);
        if (param(d + BACKWARDS) != 0u) distance = 0u - distance;
        uint steps = quotient(distance, d + STEPS);
        there = there && steps * param(d + STEPS) == distance && steps < param(d + COUNT);
        from += steps * param(d + STRIDE);
        row = next;
    }
    return there;
}

// Sets element ``e``, which must be 0, unless it lies in another vector. No index is dynamic.
void place(inout uvec4 vector, uint e, uvec2 bits) {
    if (BYTES == 8u) {
        if (e == 0u) vector.xy = bits;
        if (e == 1u) vector.zw = bits;
    } else {
        uint word = bits.x << e % PER_WORD * BYTES * 8u % 32u;
        [[unroll]] for (uint w = 0u; w < 4u; ++w)
            if (e / PER_WORD == w) vector[w] |= word;
    }
}

void main() {
    uint number = invocation_index();
    if (number >= vectors) return;
    uint row = RANK == 0u ? 0u : per_row[0] == 1u ? number : walk_quotient(number, per_row[1], per_row[2]);
    uint column = (number - row * per_row[0]) * PER_VECTOR, from;
    uvec4 vector = uvec4(0u);
    bool there = has_row(row, from);
    uint after = column - begin;  // the beginning of the slice
    if (STEP == 1u && !BACK && there && stride == 1u && after < count && count - after >= PER_VECTOR) {
        vector = load_vector(from + after);
    } else if (EVEN && there && column / STEP >= begin / STEP && column / STEP - begin / STEP + HITS <= count) {
        uint at = (from + (column / STEP - begin / STEP)) / HITS;
        uvec4 met = uvec4(0u);
        if (HITS * BYTES == 8u) met.xy = x_pairs[at];
        else met.x = x_words[at];
        [[unroll]] for (uint h = 0u; h < HITS; ++h) place(vector, PHASE + h * STEP, element_of(met, h));
    } else if (there) {
        int before = BACK ? int(begin) - int(column + PER_VECTOR - 1u) : int(column) - int(begin);
        uint steps = before <= 0 ? 0u : (uint(before) + STEP - 1u) / STEP;
        uvec2 met[HITS];
        // Beyond the end the last element is read again, because conditional loads do not overlap.
        [[unroll]] for (uint h = 0u; h < HITS; ++h)
            met[h] = x_bits(from + min(steps + h, count - 1u) * stride);
        [[unroll]] for (uint h = 0u; h < HITS; ++h) {
            uint along = (steps + h) * STEP;
            if (steps + h < count) place(vector, (BACK ? begin - along : begin + along) - column, met[h]);
        }
    }
    y_vectors[y_offset / PER_VECTOR + number] = vector;
}
