//@ op DML_OPERATOR_CUMULATIVE_SUMMATION DML_OPERATOR_CUMULATIVE_PRODUCT
//@ variants KIND: float integer
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// SHARE invocations scan one row, tile after tile. A workgroup has as many rows as fit. In each tile,
// an invocation has STRIPES units of WIDTH neighbouring elements, SHARE units apart. Long rows are
// split into parts: one dispatch stores the totals of parts, another continues from the totals of
// earlier parts.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool PRODUCT = false;
layout(constant_id = 3) const bool EXCLUSIVE = false;
layout(constant_id = 4) const bool BACKWARDS = false;
layout(constant_id = 5) const uint SHARE = 1u;  // a power of two
layout(constant_id = 6) const bool ROWS_FIRST = false;  // neighbouring invocations take different rows
layout(constant_id = 7) const bool VECTORS = false;  // a unit is a vector
layout(constant_id = 8) const uint WIDTH = 1u;
layout(constant_id = 9) const bool TO_TOTALS = false;
layout(constant_id = 10) const bool FROM_TOTALS = false;
layout(constant_id = 11) const bool AHEAD = false;  // vectors are read while the tile before is scanned
layout(constant_id = 12) const uint COMBINED = 2u;  // units that a step combines
layout(push_constant) uniform Push {
    uint rows;
    uint columns;
    uint parts;  // of a row
    uint part_columns;  // columns of a part: whole tiles
    uint x_stride;
    uint y_stride;
    uint x_offset;
    uint y_offset;
    uint totals_offset;
    uint params_offset;
};
const uint STRIPES = 4u;
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/integers64.glsl"
#include "include/float_pairs.glsl"

INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, TYPE)
layout(binding = 2) buffer Totals { uint totals[]; };
WALK(walk_rows, 2)

// A NUMBER is the result of one or several elements of a tile. A CARRY is the result of all tiles before.
#if defined(KIND_float)
#define NUMBER float
#define CARRY PAIR
#define NOTHING (PRODUCT ? 1.0 : 0.0)
#define NO_CARRY PAIR(NOTHING, 0.0)
#define WORDS_OF(carry) floatBitsToUint(carry)
#define CARRY_FROM(words) uintBitsToFloat(words)

NUMBER number(uvec2 bits) { return number_of(bits, TYPE); }
NUMBER combine(NUMBER a, NUMBER b) { return PRODUCT ? a * b : a + b; }

CARRY carried(CARRY a, CARRY b) {
    if (PRODUCT) return PAIR(a.x * b.x, 0.0);
    PAIR sum = pair_of_sum(a.x, b.x);
    // Beside an infinity, the lower part is NaN and is left out.
    return PAIR(sum.x, magnitude_bits(sum.x) < 0x7F800000u ? sum.y + (a.y + b.y) : 0.0);
}

CARRY carry_of(NUMBER x) { return PAIR(x, 0.0); }

uvec2 result(CARRY before, NUMBER x) {
    return uvec2(bits_of(PRODUCT ? before.x * x : before.x + (before.y + x), TYPE), 0u);
}
#else
#define NUMBER uvec2
#define CARRY uvec2
#define NOTHING uvec2(PRODUCT ? 1u : 0u, 0u)
#define NO_CARRY NOTHING
#define WORDS_OF(carry) carry
#define CARRY_FROM(words) words

NUMBER number(uvec2 bits) { return bits; }

NUMBER combine(NUMBER a, NUMBER b) {
    if (BYTES_OF(TYPE) < 8u) return uvec2(PRODUCT ? a.x * b.x : a.x + b.x, 0u);
    return PRODUCT ? multiply64(a, b) : add64(a, b);
}

CARRY carried(CARRY a, CARRY b) { return combine(a, b); }
CARRY carry_of(NUMBER x) { return x; }
uvec2 result(CARRY before, NUMBER x) { return combine(before, x); }
#endif

const uint MOST_WIDTH = 8u;
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

void main() {
    uint i = gl_LocalInvocationIndex, size = gl_WorkGroupSize.x, height = size / SHARE;
    uint part = group_index() % parts;
    if (FROM_TOTALS) part = parts - 1u - part;  // a cache may still hold what was read last
    uint row = group_index() / parts * height + (ROWS_FIRST ? i % height : i / SHARE);
    uint share = ROWS_FIRST ? i / height : i % SHARE;
    uint step = ROWS_FIRST ? height : 1u;  // between neighbouring invocations of a row
    uint last = i + (SHARE - 1u - share) * step;
    bool inside = row < rows;
    uint[2] at = walk_rows(0u, min(row, rows - 1u));
    uint x_row = x_offset + at[0], y_row = y_offset + at[1];
    uint from = part * part_columns, to = min(columns, from + part_columns);
    const uint tile = SHARE * STRIPES * WIDTH;

    CARRY carry = NO_CARRY;
    if (FROM_TOTALS) {
        if (inside)
            for (uint p = share; p < part; p += SHARE) {
                uint word = totals_offset + 2u * (row * parts + p);
                carry = carried(carry, CARRY_FROM(uvec2(totals[word], totals[word + 1u])));
            }
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
    if (VECTORS && AHEAD) READ_VECTORS(from)
    for (uint base = from; base < to; base += tile) {
        // All elements are read before any is written, because the output may be the input.
        NUMBER x[STRIPES * MOST_WIDTH];
        if (VECTORS && !AHEAD) READ_VECTORS(base)
        [[unroll]] for (uint s = 0u; s < STRIPES; ++s) {
            uint c = base + (s * SHARE + share) * WIDTH;
            [[unroll]] for (uint e = 0u; e < WIDTH; ++e) {
                if (VECTORS)
                    x[s * WIDTH + e] = number(element_of(ahead[s], BACKWARDS ? WIDTH - 1u - e : e, TYPE));
                else
                    x[s * WIDTH + e] = inside && c + e < to
                        ? number(x_bits(x_row + place(c + e) * x_stride)) : NOTHING;
            }
        }
        if (VECTORS && AHEAD) READ_VECTORS(base + tile)
        NUMBER unit[STRIPES];
        [[unroll]] for (uint s = 0u; s < STRIPES; ++s) {
            [[unroll]] for (uint e = 1u; e < WIDTH; ++e)
                x[s * WIDTH + e] = combine(x[s * WIDTH + e - 1u], x[s * WIDTH + e]);
            unit[s] = x[s * WIDTH + WIDTH - 1u];
        }
        if (TO_TOTALS) {
            [[unroll]] for (uint s = 0u; s < STRIPES; ++s) carry = carried(carry, carry_of(unit[s]));
            continue;
        }
        [[unroll]] for (uint reach = 1u; reach < SHARE; reach *= COMBINED) {
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
            }
            carry = carried(carry, carry_of(s_units[units + last]));
        }
        half_tile = TILE_UNITS - half_tile;
    }
    if (TO_TOTALS) {
        carry = of_row(carry, share, step);
        if (inside && share == 0u) {
            uint word = totals_offset + 2u * (row * parts + part);
            uvec2 words = WORDS_OF(carry);
            totals[word] = words.x;
            totals[word + 1u] = words.y;
        }
    }
}
