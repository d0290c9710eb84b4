//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT DML_OPERATOR_MATRIX_MULTIPLY_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY
//@ variants B: k_contiguous n_contiguous n_contiguous64; ROWS: r1(rows=1) r2(rows=2) r4(rows=4) r8(rows=8)
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_atomic_int64 : require

// PARTS invocations split K of COLUMNS columns. Each multiplies them by all rows, so A is read once for
// these columns. If B is K-contiguous, neighbouring invocations read one column. If it is N-contiguous,
// they read 128 bytes of a row, and each transposes 16 rows of its columns.
const uint TILE_ROWS = ROWS_rows;
#if defined(B_k_contiguous)
const uint INVOCATIONS = 256u;
const uint COLUMNS = TILE_ROWS == 2u ? 4u : 2u;  // with 4 rows, there are too few tiles of 16 columns
const uint PARTS = TILE_ROWS == 8u ? 32u : 64u;
#else
#if defined(ROWS_r2) || defined(ROWS_r4)  // more parts suit GPUs, fewer suit CPUs
#define SPLIT_VECTORS 8u
#else
#define SPLIT_VECTORS 16u
#endif
#ifdef B_n_contiguous64  // for devices with 64-bit atomics
#define COUNTS_PARTS
#endif
const uint INVOCATIONS = 128u;
const uint COLUMNS = 4u;
const uint PARTS = 4u;
#endif
layout(local_size_x = INVOCATIONS) in;
const uint TILE_COLUMNS = INVOCATIONS / PARTS * COLUMNS;
#include "include/few_rows.glsl"

// The parts of all sums. Neighbouring invocations use neighbouring banks: by a word of padding, or by a
// permutation if 32 KB leave no room for padding.
const uint PITCH = SUMS * PARTS < 8192u ? SUMS + 1u : SUMS;
shared int s_parts[PARTS * PITCH];

uint place(uint sum, uint part) {
    return part * PITCH + (PITCH > SUMS ? sum : (sum + part) % SUMS);
}

// Adds up parts until SHARES of each sum are left, PITCH apart.
const uint SHARES = PARTS < 8u ? PARTS : 8u;

void add_parts() {
    const uint each = (SUMS * SHARES - 1u) / INVOCATIONS + 1u;
    int shares[each];
    barrier();
    if (PARTS == SHARES) return;
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

int sum_of(uint sum) {
    int total = 0;
    [[unroll]] for (uint share = 0u; share < SHARES; ++share)
        total += s_parts[PARTS == SHARES ? place(sum, share) : share * PITCH + sum];
    return total;
}

void main() {
    Part p;
    if (!find_part(p)) return;
    uint a_from[TILE_ROWS];
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) a_from[r] = row_begin(p.batch, r);
#ifdef B_k_contiguous
    uint part = gl_LocalInvocationIndex % PARTS;
    uint column = p.column + gl_LocalInvocationIndex / PARTS * COLUMNS;
    uint b_from[COLUMNS];
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) b_from[c] = column_begin(p.batch, column + c);
#else
    uint part = gl_LocalInvocationIndex / (INVOCATIONS / PARTS);
    uint column = p.column + gl_LocalInvocationIndex % (INVOCATIONS / PARTS) * COLUMNS;
    uint b_from = columns_begin(p.batch, column, 4u) / 4u;
    uint b_step = b_strides[1] / 4u;
#endif
    FinishPair finish[PAIRS];
    find_finish(p, finish);
    uint a_words[TILE_ROWS], b_words[COLUMNS];
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) a_words[r] = zero_word(true, r);
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) b_words[c] = zero_word(false, column + c);

    int products[TILE_ROWS][COLUMNS], row_sums[TILE_ROWS], column_sums[COLUMNS];
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) column_sums[c] = 0;
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) {
        row_sums[r] = 0;
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) products[r][c] = 0;
    }
    uint vectors = p.end;
    uint at = p.begin + part;
    // Multiplies a vector of each column by row r's, which x_of_r names.
#define MULTIPLY(x_of_r, y) \
    { \
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) { \
            y[c] ^= B_MASK; \
            if (COLUMN_SUMS) column_sums[c] += dot_product(y[c], uvec4(ONES)); \
        } \
        [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) { \
            uvec4 x = x_of_r ^ A_MASK; \
            if (ROW_SUMS) row_sums[r] += dot_product(x, uvec4(ONES)); \
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) \
                products[r][c] += dot_product(x, y[c]); \
        } \
    }
#ifdef B_k_contiguous
#define READ(y, here) \
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) y[c] = b_vectors[b_from[c] + here];
    for (; at + PARTS < vectors; at += 2u * PARTS) {
        uvec4 y[2][COLUMNS];
        [[unroll]] for (uint u = 0u; u < 2u; ++u) READ(y[u], at + u * PARTS)
        [[unroll]] for (uint u = 0u; u < 2u; ++u) MULTIPLY(a_vectors[a_from[r] + at + u * PARTS], y[u])
    }
    for (; at < vectors; at += PARTS) {
        uvec4 y[COLUMNS];
        READ(y, at)
        MULTIPLY(a_vectors[a_from[r] + at], y)
    }
#else
    uvec4 a_next[TILE_ROWS], b_next[4];
    // Past the end the last vector is read again: with a condition, the compiler would wait for the load.
#define READ_NEXT(vector) \
    { \
        uint from = min(vector, vectors - 1u); \
        [[unroll]] for (uint e = 0u; e < 16u; ++e) \
            b_next[e / 4u][e % 4u] = b[b_from + (from * 16u + e) * b_step]; \
        [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) \
            a_next[r] = a_vectors[a_from[r] + from]; \
    }
    READ_NEXT(at)
    for (; at < vectors; at += PARTS) {
        uvec4 rows_of_a[TILE_ROWS] = a_next, rows_of_b[4] = b_next;
        READ_NEXT(at + PARTS)
        [[unroll]] for (uint i = 0u; i < 4u; ++i) rows_of_b[i] = transposed(rows_of_b[i]);
        uvec4 y[COLUMNS];
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
            y[c] = uvec4(rows_of_b[0][c], rows_of_b[1][c], rows_of_b[2][c], rows_of_b[3][c]);
        MULTIPLY(rows_of_a[r], y)
    }
#endif
    int count = int((at - p.begin - part) / PARTS * 16u);

    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) {
        int a_zero = zero_point(true, r, a_words[r]);
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
            int b_zero = zero_point(false, column + c, b_words[c]);
            int sum = products[r][c];
            if (HAS_CORRECTION)
                sum -= b_zero * (row_sums[r] - count * a_zero) + a_zero * column_sums[c];
            s_parts[place(r * TILE_COLUMNS + column - p.column + c, part)] = sum;
        }
    }
    add_parts();
    ivec2 sums[PAIRS];
    [[unroll]] for (uint i = 0u; i < PAIRS; ++i) {
        uint first = min(first_of_pair(i), SUMS - 2u);
        sums[i] = ivec2(sum_of(first), sum_of(first + 1u));
    }
    finish_sums(p, sums, finish);
}
