//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT
//@ variants B: along across32 across64; ROWS: r1 r4 r8
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require

// PARTS invocations share the depth of COLUMNS columns, which each multiplies by all rows, so that
// A is read once for these. Where B lies along the depth, neighbours among them read one column;
// else neighbouring invocations read along a row, and each turns 16 rows of its columns around.
#if defined(ROWS_r1)
const uint TILE_ROWS = 1u;
#elif defined(ROWS_r4)
const uint TILE_ROWS = 4u;
#else
const uint TILE_ROWS = 8u;
#endif
#if defined(B_along)
const uint INVOCATIONS = 256u;
const uint COLUMNS = TILE_ROWS == 4u ? 4u : 2u;
const uint PARTS = TILE_ROWS == 8u ? 32u : 64u;
#elif defined(B_across32)
const uint INVOCATIONS = TILE_ROWS == 8u ? 256u : 512u;
const uint COLUMNS = 4u;
const uint PARTS = INVOCATIONS / 8u;
#else
const uint INVOCATIONS = TILE_ROWS == 1u ? 512u : 256u;
const uint COLUMNS = 4u;
const uint PARTS = INVOCATIONS / 16u;
#endif
layout(local_size_x = INVOCATIONS) in;
const uint TILE_COLUMNS = INVOCATIONS / PARTS * COLUMNS;
#include "include/few_rows.glsl"

// The parts of all sums, a bank on from one invocation to the next: by a word between them, or by
// turning them around where 32 KB leave no room for one.
const uint SUMS = TILE_ROWS * TILE_COLUMNS;
const uint PITCH = SUMS * PARTS < 8192u ? SUMS + 1u : SUMS;
shared int s_parts[PARTS * PITCH];

uint place(uint sum, uint part) {
    return part * PITCH + (PITCH > SUMS ? sum : (sum + part) % SUMS);
}

// Adds parts up, until SHARES of each sum are left, PITCH apart.
const uint SHARES = 8u;

void add_parts() {
    const uint each = (SUMS * SHARES - 1u) / INVOCATIONS + 1u;
    int shares[each];
    barrier();
    [[unroll]] for (uint j = 0u; j < each; ++j) {
        uint i = min(gl_LocalInvocationIndex + j * INVOCATIONS, SUMS * SHARES - 1u);
        shares[j] = 0;
        [[unroll]] for (uint part = 0u; part < PARTS; part += SHARES)
            shares[j] += s_parts[place(i % SUMS, part + i / SUMS)];
    }
    barrier();
    [[unroll]] for (uint j = 0u; j < each; ++j) {
        uint i = gl_LocalInvocationIndex + j * INVOCATIONS;
        if (i < SUMS * SHARES) s_parts[i / SUMS * PITCH + i % SUMS] = shares[j];
    }
    barrier();
}

uvec2 sum_of(uint sum) {
    int total = 0;
    [[unroll]] for (uint share = 0u; share < SHARES; ++share)
        total += s_parts[share * PITCH + sum];
    return widen(total);
}

void main() {
    const uint row = 0u;
    uint batch, column;
    if (!find_columns(batch, column)) return;
    uint a_from[TILE_ROWS];
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) a_from[r] = row_begin(batch, row + r);
#ifdef B_along
    uint part = gl_LocalInvocationIndex % PARTS;
    uint my_column = gl_LocalInvocationIndex / PARTS * COLUMNS;
    uint b_from[COLUMNS];
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
        b_from[c] = column_begin(batch, column + my_column + c);
#else
    uint part = gl_LocalInvocationIndex / (INVOCATIONS / PARTS);
    uint my_column = gl_LocalInvocationIndex % (INVOCATIONS / PARTS) * COLUMNS;
    uint b_from = columns_begin(batch, column + my_column) / 4u;
    uint b_step = b_strides[1] / 4u;
#endif
    // What the end needs is on its way from the beginning: of the zero points here, and of the two
    // neighbouring sums that an invocation finishes.
    uint first = min(gl_LocalInvocationIndex * 2u, SUMS - 2u);
    uint my_row = row + first / TILE_COLUMNS;
    uint first_column = column + first % TILE_COLUMNS;
    Finish finish = finish_at(batch, my_row, first_column);
    Finish next_finish = finish_at(batch, my_row, first_column + 1u);
    uint p[TILE_ROWS], q[COLUMNS];
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) p[r] = zero_word(true, row + r);
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) q[c] = zero_word(false, column + my_column + c);

    int products[TILE_ROWS][COLUMNS], row_sums[TILE_ROWS], column_sums[COLUMNS];
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) column_sums[c] = 0;
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) {
        row_sums[r] = 0;
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) products[r][c] = 0;
    }
    uint vectors = depth / 16u;
    uint at = part;
    // By one vector of each column.
#define MULTIPLY(y, here) \
    { \
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) { \
            y[c] ^= B_MASK; \
            if (COLUMN_SUMS) column_sums[c] += dot_product(y[c], uvec4(ONES)); \
        } \
        [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) { \
            uvec4 x = a_vectors[a_from[r] + here] ^ A_MASK; \
            if (ROW_SUMS) row_sums[r] += dot_product(x, uvec4(ONES)); \
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) \
                products[r][c] += dot_product(x, y[c]); \
        } \
    }
#ifdef B_along
#define READ(y, here) \
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) y[c] = b_vectors[b_from[c] + here];
    for (; at + PARTS < vectors; at += 2u * PARTS) {
        uvec4 y[2][COLUMNS];
        [[unroll]] for (uint u = 0u; u < 2u; ++u) READ(y[u], at + u * PARTS)
        [[unroll]] for (uint u = 0u; u < 2u; ++u) MULTIPLY(y[u], at + u * PARTS)
    }
    for (; at < vectors; at += PARTS) {
        uvec4 y[COLUMNS];
        READ(y, at)
        MULTIPLY(y, at)
    }
#else
    uvec4 next[4];
    // What comes next is on its way while this is multiplied. Past the end the last is read again:
    // under a condition, the compiler would wait for it.
#define READ_NEXT \
    [[unroll]] for (uint e = 0u; e < 16u; ++e) \
        next[e / 4u][e % 4u] = b[b_from + (min(at, vectors - 1u) * 16u + e) * b_step];
    READ_NEXT
    while (at < vectors) {
        uvec4 read[4] = next;
        uint here = at;
        at += PARTS;
        READ_NEXT
        [[unroll]] for (uint i = 0u; i < 4u; ++i) read[i] = transposed(read[i]);
        uvec4 y[COLUMNS];
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
            y[c] = uvec4(read[0][c], read[1][c], read[2][c], read[3][c]);
        MULTIPLY(y, here)
    }
#endif
    int count = int((at - part) / PARTS * 16u);

    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) {
        int a_zero = zero_point(true, row + r, p[r]);
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
            int b_zero = zero_point(false, column + my_column + c, q[c]);
            int sum = products[r][c];
            if (HAS_CORRECTION)
                sum -= b_zero * (row_sums[r] - count * a_zero) + a_zero * column_sums[c];
            s_parts[place(r * TILE_COLUMNS + my_column + c, part)] = sum;
        }
    }
    add_parts();
    if (gl_LocalInvocationIndex * 2u < SUMS)
        finish_pair(batch, my_row, first_column, sum_of(first), sum_of(first + 1u), finish,
                    next_finish);
}
