//@ op DML_OPERATOR_DIAGONAL_MATRIX1 DML_OPERATOR_DIAGONAL_MATRIX
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/grid.glsl"
#include "include/vectors.glsl"

// An element is Value where column - row lies in [fill_begin, fill_end), or with INVERT where it does
// not. Others are the input's element, or 0 without an input. Columns count from sizes[2] (the height)
// up, so that column - row is never negative.
// DENSE: all is contiguous, and rows begin anywhere; ROWS: only the output's rows are contiguous, or all
// begin with a vector. An invocation writes vectors of 16 bytes, and does not read input that Value
// hides. ELEMENTS: an invocation writes one element, through strides.
const uint ELEMENTS = 0u;
const uint ROWS = 1u;
const uint DENSE = 2u;
layout(constant_id = 1) const uint PATH = 0u;
layout(constant_id = 2) const bool HAS_INPUT = false;
layout(constant_id = 3) const bool INVERT = false;
layout(constant_id = 5) const bool EVEN = false;  // all rows begin and end with a vector
layout(constant_id = 6) const bool ONE_MATRIX = false;
layout(constant_id = 7) const bool ONE_PART = false;  // a group of lanes makes a whole row

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
    uint lanes;  // a power of two
};

#define VALUE uvec2(value[0], value[1])

bool is_filled(uint top) {
    bool inside = INVERT ? top >= fill_end && top < fill_begin
                         : top >= fill_begin && top < fill_end;
    return inside != INVERT;
}

uvec2 element(uint top, uint from) {
    if (is_filled(top)) return VALUE;
    if (HAS_INPUT) return x_bits(from);
    return uvec2(0u);
}

// Bits of the first ``e`` elements of a vector.
uvec4 mask_before(int e) {
    ivec4 bits = clamp(e * int(128u / PER_VECTOR) - ivec4(0, 32, 64, 96), 0, 32);
    return mix((uvec4(1u) << uvec4(bits)) - 1u, uvec4(0xFFFFFFFFu), equal(bits, ivec4(32)));
}

uvec4 gathered(uint from, uint step) {
    uvec4 vector = uvec4(0u);
    [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e)
        set_element(vector, e, x_bits(from + e * step));
    return vector;
}

// Value fills elements [x, y) of a row's vector that begins at ``top``; with INVERT all others.
ivec2 fill_range(uint top) {
    return ivec2((INVERT ? uvec2(fill_end, fill_begin) : uvec2(fill_begin, fill_end)) - top);
}

bool holds_all(ivec2 range) {
    return range.x <= 0 && range.y >= int(PER_VECTOR);
}

bool holds_none(ivec2 range) {
    return range.x >= int(PER_VECTOR) || range.y <= 0 || range.x >= range.y;
}

bool is_hidden(ivec2 range) {
    return INVERT ? holds_none(range) : holds_all(range);
}

uvec4 with_value(uvec4 vector, ivec2 range) {
    if (is_hidden(range)) return filled_vector(VALUE);
    if (INVERT ? holds_all(range) : holds_none(range)) return vector;
    range = clamp(range, 0, int(PER_VECTOR));
    uvec4 mask = mask_before(range.y) & ~mask_before(range.x);
    if (INVERT) mask = ~mask;
    return vector & ~mask | filled_vector(VALUE) & mask;
}

// Elements [first, last), which lie in one vector of output and begin at (row, column).
void make_part(uint first, uint last, uint row, uint column, uint from) {
    uint step = PATH == DENSE ? 1u : in_strides[3];
    uint have = last - first;
    uvec4 vector = uvec4(0u);
    if (have == PER_VECTOR && column + have <= sizes[3]) {
        ivec2 range = fill_range(column + sizes[2] - row);
        if (HAS_INPUT) {
            if (!is_hidden(range)) vector = step == 1u ? load_vector(from) : gathered(from, step);
        }
        y_vectors[first / PER_VECTOR] = with_value(vector, range);
        return;
    }
    for (uint e = 0u; e < have; ++e) {
        set_element(vector, e, element(column + sizes[2] - row, from + e * step));
        if (++column == sizes[3]) {
            column = 0u;
            if (++row == sizes[2]) row = 0u;
        }
    }
    store_vector(first, have, vector);
}

const uint EACH = 2u;  // vectors that an invocation makes

// Carries a column beyond the row's end into the rows.
void step_rows(inout uint row, inout uint column) {
    if (column < sizes[3]) return;
    uint more = column / sizes[3];
    column -= more * sizes[3];
    row += more;
    if (row >= sizes[2]) row %= sizes[2];
}

void make_dense() {
    uint begin = out_offset / PER_VECTOR;
    uint end = (out_offset + count - 1u) / PER_VECTOR;
    uint vector = begin + group_index() * gl_WorkGroupSize.x * EACH + gl_LocalInvocationID.x;
    if (vector > end) return;
    uint at = max(vector * PER_VECTOR, out_offset) - out_offset;
    uint at_row = at / sizes[3];
    uint column = at - at_row * sizes[3];
    uint row = at_row % sizes[2];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        uint first = max(vector * PER_VECTOR, out_offset);
        uint last = min((vector + 1u) * PER_VECTOR, out_offset + count);
        make_part(first, last, row, column, first - out_offset + in_offset);
        vector += gl_WorkGroupSize.x;
        if (vector > end) return;
        column += vector * PER_VECTOR - first;
        step_rows(row, column);
    }
}

// `lanes` invocations make a part of a row, EACH vectors each.
void make_row_part() {
    uint per_row = (sizes[3] + PER_VECTOR - 1u) / PER_VECTOR;
    uint parts = ONE_PART ? 1u : (per_row + EACH * lanes - 1u) / (EACH * lanes);
    uint group = group_index() / parts;
    uint part = (group_index() - group * parts) * EACH * lanes + (gl_LocalInvocationID.x & (lanes - 1u));
    uint at_row = (group * gl_WorkGroupSize.x + gl_LocalInvocationID.x) / lanes;
    uint matrix = ONE_MATRIX ? uint(at_row >= sizes[2]) : at_row / sizes[2];
    uint row = at_row - matrix * sizes[2];
    uint batch = ONE_MATRIX ? matrix : matrix / sizes[1];
    if (batch >= sizes[0]) return;
    matrix -= batch * sizes[1];
    uint from = in_offset + row * in_strides[2] + matrix * in_strides[1] + batch * in_strides[0];
    uint to = out_offset + row * out_strides[2] + matrix * out_strides[1] + batch * out_strides[0];
    if (EVEN) {
        ivec2 ranges[EACH];
        uint seen = per_row;
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uint v = part + e * lanes;
            ranges[e] = fill_range(v * PER_VECTOR + sizes[2] - row);
            if (v < per_row && !is_hidden(ranges[e])) seen = v;
        }
        uvec4 vectors[EACH];
        [[unroll]] for (uint e = 0u; e < EACH; ++e) vectors[e] = uvec4(0u);
        if (HAS_INPUT) {
            // In place of a hidden vector, one that is seen is read again. Conditional loads would not
            // all be in flight at once.
            if (seen < per_row) {
                [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                    uint v = part + e * lanes;
                    if (v >= per_row || is_hidden(ranges[e])) v = seen;
                    vectors[e] = x_vectors[from / PER_VECTOR + v];
                }
            }
        }
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uint v = part + e * lanes;
            if (v < per_row) y_vectors[to / PER_VECTOR + v] = with_value(vectors[e], ranges[e]);
        }
        return;
    }
    // A row that does not begin with a vector lies in one more.
    for (uint e = 0u; e < EACH; ++e) {
        for (uint v = part + e * lanes; v <= per_row; v += parts * EACH * lanes) {
            uint vector = to / PER_VECTOR + v;
            uint first = max(vector * PER_VECTOR, to);
            uint last = min((vector + 1u) * PER_VECTOR, to + sizes[3]);
            if (first < last)
                make_part(first, last, row, first - to, from + (first - to) * in_strides[3]);
        }
    }
}

void make_element() {
    uint index = invocation_index();
    if (index >= count) return;
    uint at_row = index / sizes[3];
    uint column = index - at_row * sizes[3];
    uint matrix = at_row < sizes[2] ? 0u : at_row / sizes[2];
    uint row = at_row - matrix * sizes[2];
    uint batch = matrix < sizes[1] ? 0u : matrix / sizes[1];
    uvec4 at = uvec4(batch, matrix - batch * sizes[1], row, column);
    uint from = in_offset;
    uint to = out_offset;
    for (uint d = 0u; d < 4u; ++d) {
        from += at[d] * in_strides[d];
        to += at[d] * out_strides[d];
    }
    y_store_bits(to, element(column + sizes[2] - row, from));
}

void main() {
    if (PATH == DENSE) make_dense();
    else if (PATH == ROWS) make_row_part();
    else make_element();
}
