//@ op DML_OPERATOR_GEMM
//@ variants TILE: t128 t64 t32
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A workgroup computes a tile of the output, an invocation BLOCK x BLOCK of it in float32. While one
// slice of K is multiplied, the next one is stored in the other half of the shared memory.
#if defined(TILE_t128)
const uint TILE = 128u, BLOCK = 8u, TILE_K = 8u;
#elif defined(TILE_t64)
const uint TILE = 64u, BLOCK = 4u, TILE_K = 16u;
#else
const uint TILE = 32u, BLOCK = 4u, TILE_K = 32u;
#endif
const uint TILE_ROWS = TILE, TILE_COLUMNS = TILE;
const uint SIDE = TILE / BLOCK;
const uint INVOCATIONS = SIDE * SIDE;
layout(local_size_x = INVOCATIONS) in;
#define FOURS_TO_ADD clamp(TILE_FOURS / INVOCATIONS, 1u, 4u)
#include "include/gemm.glsl"
#include "include/gemm_fours.glsl"

// By K, then by the row or column, four to a vector. A vector of padding lets invocations that write
// along K use different banks.
const uint PITCH = TILE / 4u + 1u;
const uint SLICE = TILE_K * PITCH;
shared vec4 s_a[2u * SLICE];
shared vec4 s_b[2u * SLICE];
const int LOADS = int(TILE * TILE_K / 4u / INVOCATIONS);
const int CHUNKS = int(BLOCK / 4u);

// The row of A (or column of B) and the k of an invocation's four elements, within the slice.
uvec2 place(bool across, int load) {
    uint n = gl_LocalInvocationIndex + uint(load) * INVOCATIONS;
    return across ? uvec2(n % (TILE / 4u) * 4u, n / (TILE / 4u))
                  : uvec2(n / (TILE_K / 4u), n % (TILE_K / 4u) * 4u);
}

#define PUT(shared_side, across, at, half_at, found) \
    if (across) { \
        shared_side[half_at + at.y * PITCH + at.x / 4u] = found; \
    } else { \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) \
            shared_side[half_at + (at.y + i) * PITCH + at.x / 4u][at.x % 4u] = found[i]; \
    }

void main() {
    Tile t;
    if (!find_tile(t)) return;
    uint my_row = gl_LocalInvocationIndex / SIDE, my_column = gl_LocalInvocationIndex % SIDE;
    vec4 sums[BLOCK][CHUNKS];
    [[unroll]] for (int i = 0; i < int(BLOCK); ++i)
        [[unroll]] for (int j = 0; j < CHUNKS; ++j) sums[i][j] = vec4(0.0);
    vec4 a_next[LOADS], b_next[LOADS];
#define LOAD(k) \
    [[unroll]] for (int n = 0; n < LOADS; ++n) { \
        uvec2 at = place(A_MN_CONTIGUOUS, n); \
        a_next[n] = a_four(A_MN_CONTIGUOUS, A_VECTORS, a_offset + t.at[0], t.row + at.x, rows, a_row, \
                           (k) + at.y, t.end, a_k); \
        at = place(B_MN_CONTIGUOUS, n); \
        b_next[n] = b_four(B_MN_CONTIGUOUS, B_VECTORS, b_offset + t.at[1], t.column + at.x, columns, \
                           b_column, (k) + at.y, t.end, b_k); \
    }
#define STORE(half_at) \
    [[unroll]] for (int n = 0; n < LOADS; ++n) { \
        uvec2 at = place(A_MN_CONTIGUOUS, n); \
        PUT(s_a, A_MN_CONTIGUOUS, at, half_at, a_next[n]) \
        at = place(B_MN_CONTIGUOUS, n); \
        PUT(s_b, B_MN_CONTIGUOUS, at, half_at, b_next[n]) \
    }
    LOAD(t.begin)
    STORE(0u)
    barrier();
    uint current = 0u;
    for (uint k = t.begin; k < t.end; k += TILE_K) {
        LOAD(k + TILE_K)
        [[unroll]] for (uint e = 0u; e < TILE_K; ++e) {
            uint line = current + e * PITCH;
            vec4 x[CHUNKS], z[CHUNKS];
            [[unroll]] for (int j = 0; j < CHUNKS; ++j) {
                x[j] = s_a[line + my_row + uint(j) * SIDE];
                z[j] = s_b[line + my_column + uint(j) * SIDE];
            }
            [[unroll]] for (int i = 0; i < int(BLOCK); ++i)
                [[unroll]] for (int j = 0; j < CHUNKS; ++j) sums[i][j] += x[i / 4][i % 4] * z[j];
        }
        current = SLICE - current;
        STORE(current)
        barrier();
    }
    [[unroll]] for (int i = 0; i < int(BLOCK); ++i)
        [[unroll]] for (int j = 0; j < CHUNKS; ++j)
            finish_four(t, t.row + 4u * my_row + uint(i / 4) * 4u * SIDE + uint(i % 4),
                        t.column + 4u * (my_column + uint(j) * SIDE), sums[i][j]);
    add_parts(t);
}
