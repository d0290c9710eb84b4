//@ op DML_OPERATOR_GEMM
//@ variants TILE: t128 t128x64 t64 t32
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A workgroup computes a tile of the output, an invocation a block of it in float32. While one slice of
// K is multiplied, the next one is stored in the other half of the shared memory.
#if defined(TILE_t128)
const uint TILE_ROWS = 128u, TILE_COLUMNS = 128u, BLOCK_ROWS = 8u, BLOCK_COLUMNS = 8u, TILE_K = 8u;
#elif defined(TILE_t128x64)
const uint TILE_ROWS = 128u, TILE_COLUMNS = 64u, BLOCK_ROWS = 8u, BLOCK_COLUMNS = 4u, TILE_K = 16u;
#elif defined(TILE_t64)
const uint TILE_ROWS = 64u, TILE_COLUMNS = 64u, BLOCK_ROWS = 4u, BLOCK_COLUMNS = 4u, TILE_K = 16u;
#else
const uint TILE_ROWS = 32u, TILE_COLUMNS = 32u, BLOCK_ROWS = 4u, BLOCK_COLUMNS = 4u, TILE_K = 32u;
#endif
const uint DOWN = TILE_ROWS / BLOCK_ROWS, ACROSS = TILE_COLUMNS / BLOCK_COLUMNS;  // blocks of a tile
const uint INVOCATIONS = DOWN * ACROSS;
layout(local_size_x = INVOCATIONS) in;
#include "include/gemm.glsl"
#include "include/gemm_fours.glsl"

// By K, then by the row or column, four to a vector. A vector of padding lets invocations that write
// along K use different banks.
const uint A_PITCH = TILE_ROWS / 4u + 1u, B_PITCH = TILE_COLUMNS / 4u + 1u;
shared vec4 s_a[2u * TILE_K * A_PITCH];
shared vec4 s_b[2u * TILE_K * B_PITCH];
const int A_LOADS = int(TILE_ROWS * TILE_K / 4u / INVOCATIONS);
const int B_LOADS = int(TILE_COLUMNS * TILE_K / 4u / INVOCATIONS);
const int ROW_FOURS = int(BLOCK_ROWS / 4u), COLUMN_FOURS = int(BLOCK_COLUMNS / 4u);

// The row of A (or column of B) and the k of an invocation's four elements, within the slice.
uvec2 place(bool across, uint lines, int load) {
    uint n = gl_LocalInvocationIndex + uint(load) * INVOCATIONS;
    return across ? uvec2(n % (lines / 4u) * 4u, n / (lines / 4u))
                  : uvec2(n / (TILE_K / 4u), n % (TILE_K / 4u) * 4u);
}

#define PUT(shared_side, pitch, across, at, half_at, found) \
    if (across) { \
        shared_side[(half_at * TILE_K + at.y) * pitch + at.x / 4u] = found; \
    } else { \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) \
            shared_side[(half_at * TILE_K + at.y + i) * pitch + at.x / 4u][at.x % 4u] = found[i]; \
    }

void main() {
    Tile t;
    if (!find_tile(t)) return;
    uint my_row = gl_LocalInvocationIndex / ACROSS, my_column = gl_LocalInvocationIndex % ACROSS;
    vec4 sums[BLOCK_ROWS][COLUMN_FOURS];
    [[unroll]] for (int i = 0; i < int(BLOCK_ROWS); ++i)
        [[unroll]] for (int j = 0; j < COLUMN_FOURS; ++j) sums[i][j] = vec4(0.0);
    vec4 a_next[A_LOADS], b_next[B_LOADS];
#define LOAD(k) \
    [[unroll]] for (int n = 0; n < A_LOADS; ++n) { \
        uvec2 at = place(A_MN_CONTIGUOUS, TILE_ROWS, n); \
        a_next[n] = a_four(A_MN_CONTIGUOUS, A_VECTORS, a_offset + t.at[0], t.row + at.x, rows, a_row, \
                           (k) + at.y, t.end, a_k); \
    } \
    [[unroll]] for (int n = 0; n < B_LOADS; ++n) { \
        uvec2 at = place(B_MN_CONTIGUOUS, TILE_COLUMNS, n); \
        b_next[n] = b_four(B_MN_CONTIGUOUS, B_VECTORS, b_offset + t.at[1], t.column + at.x, columns, \
                           b_column, (k) + at.y, t.end, b_k); \
    }
#define STORE(half_at) \
    [[unroll]] for (int n = 0; n < A_LOADS; ++n) { \
        uvec2 at = place(A_MN_CONTIGUOUS, TILE_ROWS, n); \
        PUT(s_a, A_PITCH, A_MN_CONTIGUOUS, at, half_at, a_next[n]) \
    } \
    [[unroll]] for (int n = 0; n < B_LOADS; ++n) { \
        uvec2 at = place(B_MN_CONTIGUOUS, TILE_COLUMNS, n); \
        PUT(s_b, B_PITCH, B_MN_CONTIGUOUS, at, half_at, b_next[n]) \
    }
    LOAD(t.begin)
    STORE(0u)
    barrier();
    uint current = 0u;
    for (uint k = t.begin; k < t.end; k += TILE_K) {
        LOAD(k + TILE_K)
        [[unroll]] for (uint e = 0u; e < TILE_K; ++e) {
            vec4 x[ROW_FOURS], z[COLUMN_FOURS];
            [[unroll]] for (int j = 0; j < ROW_FOURS; ++j)
                x[j] = s_a[(current * TILE_K + e) * A_PITCH + my_row + uint(j) * DOWN];
            [[unroll]] for (int j = 0; j < COLUMN_FOURS; ++j)
                z[j] = s_b[(current * TILE_K + e) * B_PITCH + my_column + uint(j) * ACROSS];
            [[unroll]] for (int i = 0; i < int(BLOCK_ROWS); ++i)
                [[unroll]] for (int j = 0; j < COLUMN_FOURS; ++j)
                    sums[i][j] += x[i / 4][i % 4] * z[j];
        }
        current = 1u - current;
        STORE(current)
        barrier();
    }
    [[unroll]] for (int i = 0; i < int(BLOCK_ROWS); ++i)
        [[unroll]] for (int j = 0; j < COLUMN_FOURS; ++j)
            finish_four(t, t.row + 4u * my_row + uint(i / 4) * 4u * DOWN + uint(i % 4),
                        t.column + 4u * (my_column + uint(j) * ACROSS), sums[i][j]);
    add_parts(t);
}
