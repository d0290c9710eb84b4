//@ op DML_OPERATOR_CUMULATIVE_SUMMATION DML_OPERATOR_CUMULATIVE_PRODUCT
//@ variants KIND: float integer halves
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// SHARE invocations scan one row, tile after tile. A workgroup has as many rows as fit. In each tile,
// an invocation has STRIPES units of WIDTH neighbouring elements, SHARE units apart. Long rows are
// split into parts: one dispatch stores the totals of parts, another continues from the totals of
// earlier parts.
// KIND halves: two neighbouring FLOAT16 rows are a row of words, which are stored whole.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool PRODUCT = false;
layout(constant_id = 3) const bool EXCLUSIVE = false;
layout(constant_id = 4) const bool BACKWARDS = false;
layout(constant_id = 5) const bool ROWS_FIRST = false;  // neighbouring invocations take different rows
layout(constant_id = 6) const bool VECTORS = false;  // a unit is a vector
layout(constant_id = 7) const uint WIDTH = 1u;
layout(constant_id = 8) const bool TO_TOTALS = false;
layout(constant_id = 9) const bool FROM_TOTALS = false;
layout(constant_id = 10) const bool AHEAD = false;  // a tile is read while the one before is scanned
layout(constant_id = 11) const uint COMBINED = 2u;  // units that a step combines
layout(constant_id = 12) const uint STRIPES = 4u;
layout(constant_id = 13) const uint MOST_SHARE = 0u;  // SHARE if rows are long, else 0
layout(push_constant) uniform Push {
    uint rows;
    uint columns;
    uint parts;  // of a row
    uint part_columns;  // columns of a part: whole tiles
    uint x_stride;
    uint y_stride;
    uint share_bits;  // of SHARE, a power of two
    uint x_offset;
    uint y_offset;
    uint totals_offset;
    uint params_offset;
};
#include "include/share.glsl"
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/carries.glsl"

INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, TYPE)
WALK(walk_rows, 2)

#if defined(KIND_halves)
#define READ uint
#define READ_NOTHING (PRODUCT ? 0x3C003C00u : 0u)
#define READ_AT(at) x_words[at]
#else
#define READ NUMBER
#define READ_NOTHING NOTHING
#define READ_AT(at) number(x_bits(at))
#endif

const uint TILE_UNITS = STRIPES * gl_WorkGroupSize.x;
shared NUMBER s_units[2u * TILE_UNITS];  // each step reads one half, while the next one may write the other
shared CARRY s_carries[gl_WorkGroupSize.x];

// The column at position ``c`` of the scan.
uint place(uint c) {
    return BACKWARDS ? columns - 1u - c : c;
}

// The result of all invocations of a row, which are ``step`` apart.
CARRY of_row(CARRY own, uint share, uint step) {
    uint i = gl_LocalInvocationIndex;
    s_carries[i] = own;
    for (uint others = SHARE / 2u; others > 0u; others /= 2u) {
        barrier();
        if (share < others) s_carries[i] = carried(s_carries[i], s_carries[i + others * step]);
    }
    barrier();
    return s_carries[i - share * step];
}

layout(binding = 2) buffer Totals { WORDS totals[]; };

// Where the total of a part lies: those that invocations read at once are neighbours.
uint total_at(uint row, uint part) {
    return totals_offset + (ROWS_FIRST ? part * rows + row : row * parts + part);
}

void main() {
    uint i = gl_LocalInvocationIndex, size = gl_WorkGroupSize.x, height = size >> SHARE_BITS;
    uint height_bits = findLSB(gl_WorkGroupSize.x) - SHARE_BITS;
    uint part = group_index() % parts;
    if (FROM_TOTALS) part = parts - 1u - part;  // a cache may still hold what was read last
    uint row = group_index() / parts * height + (ROWS_FIRST ? i & height - 1u : i >> SHARE_BITS);
    uint share = ROWS_FIRST ? i >> height_bits : i & SHARE - 1u;
    uint step = ROWS_FIRST ? height : 1u;  // between neighbouring invocations of a row
    uint last = i + (SHARE - 1u - share) * step;
    bool inside = row < rows;
    uint[2] at = walk_rows(0u, min(row, rows - 1u));
    uint x_row = x_offset + at[0], y_row = y_offset + at[1];
    uint from = part * part_columns, to = min(columns, from + part_columns);
    uint tile = SHARE * STRIPES * WIDTH;

    CARRY carry = NO_CARRY;
    if (FROM_TOTALS) {
        if (inside)
            for (uint p = share; p < part; p += SHARE) carry = carried(carry, CARRY_FROM(totals[total_at(row, p)]));
        carry = of_row(carry, share, step);
    }
    uint half_tile = 0u;
    uvec4 ahead[STRIPES];
#define READ_VECTORS(base) \
    [[unroll]] for (uint s = 0u; s < STRIPES; ++s) { \
        uint c = base + (s * SHARE + share) * WIDTH; \
        ahead[s] = uvec4(0u); \
        if (inside && c < to) \
            ahead[s] = x_vectors[(x_row + (BACKWARDS ? columns - c - WIDTH : c)) / WIDTH]; \
    }
    // A condition for each element would keep the reads from being under way together.
    READ next[VECTORS ? 1u : STRIPES * WIDTH];
#define READ_ELEMENTS(base) { \
        uint first = base + share * WIDTH; \
        if (base + tile <= to) { \
            [[unroll]] for (uint k = 0u; k < STRIPES * WIDTH; ++k) \
                next[k] = READ_AT(x_row + place(first + k / WIDTH * SHARE * WIDTH + k % WIDTH) * x_stride); \
        } else { \
            [[unroll]] for (uint k = 0u; k < STRIPES * WIDTH; ++k) { \
                uint c = first + k / WIDTH * SHARE * WIDTH + k % WIDTH; \
                next[k] = READ_NOTHING; \
                if (c < to) next[k] = READ_AT(x_row + place(c) * x_stride); \
            } \
        } \
    }
    if (AHEAD) {
        if (VECTORS) READ_VECTORS(from)
        else READ_ELEMENTS(from)
    }
    for (uint base = from; base < to; base += tile) {
        // All elements are read before any is written, because the output may be the input.
        if (!AHEAD) {
            if (VECTORS) READ_VECTORS(base)
            else READ_ELEMENTS(base)
        }
        READ x[STRIPES * WIDTH];
        [[unroll]] for (uint k = 0u; k < STRIPES * WIDTH; ++k) {
#if !defined(KIND_halves)
            uint e = k % WIDTH;
            if (VECTORS) x[k] = number(element_of(ahead[k / WIDTH], BACKWARDS ? WIDTH - 1u - e : e, TYPE));
            else
#endif
            x[k] = next[k];
        }
        if (AHEAD) {
            if (VECTORS) READ_VECTORS(base + tile)
            else if (base + tile < to) READ_ELEMENTS(base + tile)
        }
        NUMBER unit[STRIPES];
        [[unroll]] for (uint s = 0u; s < STRIPES; ++s) {
#if defined(KIND_halves)
            unit[s] = halves_to_floats(x[s * WIDTH]);
            [[unroll]] for (uint e = 1u; e < WIDTH; ++e) unit[s] = combine(unit[s], halves_to_floats(x[s * WIDTH + e]));
#else
            [[unroll]] for (uint e = 1u; e < WIDTH; ++e)
                x[s * WIDTH + e] = combine(x[s * WIDTH + e - 1u], x[s * WIDTH + e]);
            unit[s] = x[s * WIDTH + WIDTH - 1u];
#endif
        }
        if (TO_TOTALS) {
            [[unroll]] for (uint s = 0u; s < STRIPES; ++s) carry = carried(carry, carry_of(unit[s]));
            continue;
        }
        [[unroll]] for (uint reach = 1u; reach < size; reach *= COMBINED) {
            if (reach >= SHARE) break;
            [[unroll]] for (uint s = 0u; s < STRIPES; ++s) s_units[half_tile + s * size + i] = unit[s];
            barrier();
            [[unroll]] for (uint n = 1u; n < COMBINED; ++n)
                if (n * reach < SHARE && share >= n * reach) {
                    uint earlier = half_tile + i - n * reach * step;
                    [[unroll]] for (uint s = 0u; s < STRIPES; ++s)
                        unit[s] = combine(s_units[earlier + s * size], unit[s]);
                }
            half_tile = TILE_UNITS - half_tile;
        }
        [[unroll]] for (uint s = 0u; s < STRIPES; ++s) s_units[half_tile + s * size + i] = unit[s];
        barrier();
        [[unroll]] for (uint s = 0u; s < STRIPES; ++s) {
            uint c = base + (s * SHARE + share) * WIDTH, units = half_tile + s * size;
            if (inside && c < to) {
                NUMBER before = NOTHING;
                if (share > 0u) before = s_units[units + i - step];
#if defined(KIND_halves)
                NUMBER own = NOTHING;  // what the unit has up to an element
                [[unroll]] for (uint e = 0u; e < WIDTH; ++e) {
                    NUMBER sum = before;
                    if (EXCLUSIVE && e > 0u) sum = combine(before, own);
                    own = e == 0u ? halves_to_floats(x[s * WIDTH]) : combine(own, halves_to_floats(x[s * WIDTH + e]));
                    if (!EXCLUSIVE) sum = combine(before, own);
                    if (c + e < to) y_words[y_row + place(c + e) * y_stride] = result(carry, sum);
                }
#else
                uvec4 vector = uvec4(0u);
                [[unroll]] for (uint e = 0u; e < WIDTH; ++e) {
                    NUMBER sum = before;
                    if (!EXCLUSIVE) sum = combine(before, x[s * WIDTH + e]);
                    else if (e > 0u) sum = combine(before, x[s * WIDTH + e - 1u]);
                    uvec2 bits = result(carry, sum);
                    if (VECTORS) set_element(vector, BACKWARDS ? WIDTH - 1u - e : e, bits, TYPE);
                    else if (c + e < to) y_store_bits(y_row + place(c + e) * y_stride, bits);
                }
                if (VECTORS)
                    y_vectors[(y_row + (BACKWARDS ? columns - c - WIDTH : c)) / WIDTH] = vector;
#endif
            }
            carry = carried(carry, carry_of(s_units[units + last]));
        }
        half_tile = TILE_UNITS - half_tile;
    }
    if (TO_TOTALS) {
        carry = of_row(carry, share, step);
        if (inside && share == 0u) totals[total_at(row, part)] = WORDS_OF(carry);
    }
}
