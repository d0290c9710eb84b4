//@ op DML_OPERATOR_GEMM
//@ variants TILE:
//@     t128(rows=128, columns=128, unrolls=1)
//@     t64(rows=64, columns=64, unrolls=1)
//@     t32(rows=32, columns=32, unrolls=0)
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// gemm.comp for drivers on which barriers and shared memory are slow: each invocation reads all that
// its block of the output takes. The smallest tile has little code, for compilers that are slow.
#if TILE_unrolls
#define EACH_ROW [[unroll]]
#else
#define EACH_ROW
#define EACH_COLUMN
#endif
const uint TILE_ROWS = TILE_rows, TILE_COLUMNS = TILE_columns, SIDE = 8u, BLOCK = TILE_ROWS / SIDE;
const uint INVOCATIONS = SIDE * SIDE;
layout(local_size_x = INVOCATIONS) in;
#include "include/gemm.glsl"
#include "include/gemm_fours.glsl"
layout(constant_id = 9) const bool ENDS_INSIDE = true;  // whether K is no multiple of four

// ``found``: what four of K, from ``k`` on, have in the rows or columns of a block.
#define LOAD(x, found, across, vectors, from, line, lines, line_step, k_step) \
    float found[BLOCK][4]; \
    EACH_ROW for (uint n = 0u; n < BLOCK; ++n) { \
        uint l = line + (across ? n / 4u * 4u : n), e = k + (across ? n % 4u : 0u); \
        vec4 four = ALL_VECTORS && !ENDS_INSIDE \
            ? VECTOR(x, from + min(l, lines - (across ? 4u : 1u)) * line_step + e * k_step) \
            : x##_four(across, vectors, from, l, lines, line_step, e, t.end, k_step); \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) \
            if (across) found[n / 4u * 4u + i][n % 4u] = four[i]; \
            else found[n][i] = four[i]; \
    }

void main() {
    Tile t;
    if (!find_tile(t)) return;
    uint row = t.row + gl_LocalInvocationIndex / SIDE * BLOCK;
    uint column = t.column + gl_LocalInvocationIndex % SIDE * BLOCK;
    uint a_from = a_offset + t.at[0], b_from = b_offset + t.at[1];
    float sums[BLOCK][BLOCK];
    [[unroll]] for (uint i = 0u; i < BLOCK; ++i)
        [[unroll]] for (uint j = 0u; j < BLOCK; ++j) sums[i][j] = 0.0;
    uint end = row < rows && column < columns ? t.end : t.begin;
    for (uint k = t.begin; k < end; k += 4u) {
        LOAD(a, x, A_MN_CONTIGUOUS, A_VECTORS, a_from, row, rows, a_row, a_k)
        LOAD(b, z, B_MN_CONTIGUOUS, B_VECTORS, b_from, column, columns, b_column, b_k)
        EACH_ROW for (uint i = 0u; i < BLOCK; ++i)
            [[unroll]] for (uint j = 0u; j < BLOCK; ++j)
                [[unroll]] for (uint e = 0u; e < 4u; ++e) sums[i][j] += x[i][e] * z[j][e];
    }
    EACH_ROW for (uint i = 0u; i < BLOCK; ++i)
        [[unroll]] for (uint j = 0u; j < BLOCK; j += 4u)
            finish_four(t, row + i, column + j,
                        vec4(sums[i][j], sums[i][j + 1u], sums[i][j + 2u], sums[i][j + 3u]));
    add_parts(t);
}
