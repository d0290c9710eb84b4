//@ op DML_OPERATOR_GEMM
//@ variants TILE: t512(columns=512)
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A few rows of A times B, of a short K. An invocation has four columns of a row, and reads what it multiplies
// itself: nobody waits for anybody.
const uint TILE_ROWS = 1u, TILE_COLUMNS = TILE_columns;
const uint INVOCATIONS = TILE_COLUMNS / 4u;
layout(local_size_x = INVOCATIONS) in;
#include "include/gemm.glsl"
#include "include/gemm_fours.glsl"
const uint AHEAD = 4u;  // vectors read at once

void main() {
    Tile t;
    if (!find_tile(t)) return;
    uint column = t.column + 4u * gl_LocalInvocationIndex;
    if (column >= columns) return;
    uint a_from = a_offset + t.at[0] + t.row * a_row, b_from = b_offset + t.at[1] + column;
    vec4 sums = vec4(0.0);
    for (uint k = 0u; k < K; k += AHEAD) {
        vec4 found[AHEAD];
        float factors[AHEAD];
        [[unroll]] for (uint n = 0u; n < AHEAD; ++n) {
            uint at = min(k + n, K - 1u);
            found[n] = VECTOR(b, b_from + at * b_k);
            factors[n] = a_float(a_from + at * a_k);
        }
        [[unroll]] for (uint n = 0u; n < AHEAD; ++n)
            if (k + n < K) sums += factors[n] * found[n];
    }
    finish_four(t, t.row, column, sums);
}
