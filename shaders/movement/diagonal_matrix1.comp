//@ op DML_OPERATOR_DIAGONAL_MATRIX1 DML_OPERATOR_DIAGONAL_MATRIX
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/grid.glsl"
#include "include/vectors.glsl"

// Value where column - row lies in [fill_begin, fill_end), or outside it when INVERT; else the
// input's element, or 0 without input. Columns are counted from sizes[2] (the height) upwards, so
// that column - row never becomes negative.
// DENSE: all lies gapless, and rows begin anywhere; LINES: only the output's rows lie gapless, or all
// begin with a vector. An invocation makes vectors of 16 bytes of output, and reads no input where
// Value hides it. ELEMENTS: an invocation makes one element, through strides.
const uint ELEMENTS = 0u;
const uint LINES = 1u;
const uint DENSE = 2u;
layout(constant_id = 1) const uint PATH = 0u;
layout(constant_id = 2) const bool HAS_INPUT = false;
layout(constant_id = 3) const bool INVERT = false;
layout(constant_id = 4) const uint LANES = 256u;
layout(constant_id = 5) const bool EVEN = false;  // all rows begin and end with a vector
layout(constant_id = 6) const bool ONE_MATRIX = false;
layout(constant_id = 7) const bool ONE_PART = false;  // a group of LANES makes a whole row

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
#else
#define VALUE value[0]
#endif

bool is_filled(uint top) {
    bool inside = INVERT ? top >= fill_end && top < fill_begin
                         : top >= fill_begin && top < fill_end;
    return inside != INVERT;
}

ELEMENT element(uint top, uint from) {
    if (is_filled(top)) return VALUE;
    if (HAS_INPUT) return LOAD_ELEMENT(in_words, from);
    return ZERO_ELEMENT;
}

// Bits of the first ``e`` elements of a vector.
uvec4 mask_before(int e) {
    ivec4 bits = clamp(e * int(128u / PER_VECTOR) - ivec4(0, 32, 64, 96), 0, 32);
    return mix((uvec4(1u) << uvec4(bits)) - 1u, uvec4(0xFFFFFFFFu), equal(bits, ivec4(32)));
}

uvec4 gathered(uint from, uint step) {
    uvec4 vector = uvec4(0u);
    [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e)
        set_element(vector, e, LOAD_ELEMENT(in_words, from + e * step));
    return vector;
}

// What Value fills, [x, y) of a row's vector that begins at ``top``; or all else when INVERT.
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
        out_vectors[first / PER_VECTOR] = with_value(vector, range);
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

// Takes what a column lies beyond the row as rows.
void step_rows(inout uint row, inout uint column) {
    if (column < sizes[3]) return;
    uint lines = column / sizes[3];
    column -= lines * sizes[3];
    row += lines;
    if (row >= sizes[2]) row %= sizes[2];
}

void make_dense() {
    uint begin = out_offset / PER_VECTOR;
    uint end = (out_offset + count - 1u) / PER_VECTOR;
    uint vector = begin + group_index() * gl_WorkGroupSize.x * EACH + gl_LocalInvocationID.x;
    if (vector > end) return;
    uint at = max(vector * PER_VECTOR, out_offset) - out_offset;
    uint line = at / sizes[3];
    uint column = at - line * sizes[3];
    uint row = line % sizes[2];
    [[unroll]] for (uint turn = 0u; turn < EACH; ++turn) {
        uint first = max(vector * PER_VECTOR, out_offset);
        uint last = min((vector + 1u) * PER_VECTOR, out_offset + count);
        make_part(first, last, row, column, first - out_offset + in_offset);
        vector += gl_WorkGroupSize.x;
        if (vector > end) return;
        column += vector * PER_VECTOR - first;
        step_rows(row, column);
    }
}

// LANES invocations make a part of a row, EACH vectors each.
void make_line_part() {
    uint per_line = (sizes[3] + PER_VECTOR - 1u) / PER_VECTOR;
    uint parts = ONE_PART ? 1u : (per_line + EACH * LANES - 1u) / (EACH * LANES);
    uint lines = group_index() / parts;
    uint part = (group_index() - lines * parts) * EACH * LANES + gl_LocalInvocationID.x % LANES;
    uint line = lines * (gl_WorkGroupSize.x / LANES) + gl_LocalInvocationID.x / LANES;
    uint matrix = ONE_MATRIX ? uint(line >= sizes[2]) : line / sizes[2];
    uint row = line - matrix * sizes[2];
    uint batch = ONE_MATRIX ? matrix : matrix / sizes[1];
    if (batch >= sizes[0]) return;
    matrix -= batch * sizes[1];
    uint from = in_offset + row * in_strides[2] + matrix * in_strides[1] + batch * in_strides[0];
    uint to = out_offset + row * out_strides[2] + matrix * out_strides[1] + batch * out_strides[0];
    if (EVEN) {
        ivec2 ranges[EACH];
        uint seen = per_line;
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uint v = part + e * LANES;
            ranges[e] = fill_range(v * PER_VECTOR + sizes[2] - row);
            if (v < per_line && !is_hidden(ranges[e])) seen = v;
        }
        uvec4 vectors[EACH];
        [[unroll]] for (uint e = 0u; e < EACH; ++e) vectors[e] = uvec4(0u);
        if (HAS_INPUT) {
            // What is hidden is not read: one that is seen is, once more. So all loads are under way
            // at once, as they would not be with a condition each.
            if (seen < per_line) {
                [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                    uint v = part + e * LANES;
                    if (v >= per_line || is_hidden(ranges[e])) v = seen;
                    vectors[e] = in_vectors[from / PER_VECTOR + v];
                }
            }
        }
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uint v = part + e * LANES;
            if (v < per_line) out_vectors[to / PER_VECTOR + v] = with_value(vectors[e], ranges[e]);
        }
        return;
    }
    // A line that does not begin with a vector may meet one more.
    for (uint e = 0u; e < EACH; ++e) {
        for (uint v = part + e * LANES; v <= per_line; v += parts * EACH * LANES) {
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
    uint line = index / sizes[3];
    uint column = index - line * sizes[3];
    uint matrix = line < sizes[2] ? 0u : line / sizes[2];
    uint row = line - matrix * sizes[2];
    uint batch = matrix < sizes[1] ? 0u : matrix / sizes[1];
    uvec4 at = uvec4(batch, matrix - batch * sizes[1], row, column);
    uint from = in_offset;
    uint to = out_offset;
    for (uint d = 0u; d < 4u; ++d) {
        from += at[d] * in_strides[d];
        to += at[d] * out_strides[d];
    }
    STORE_ELEMENT(out_words, to, element(column + sizes[2] - row, from));
}

void main() {
    if (PATH == DENSE) make_dense();
    else if (PATH == LINES) make_line_part();
    else make_element();
}
