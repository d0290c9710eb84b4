//@ op DML_OPERATOR_GEMM
//@ variants TILE:
//@     t128(rows=128, columns=128, k=8, block_rows=8, block_columns=8, shares=1, ahead=0, adds=4)
//@     t128x64(rows=128, columns=64, k=8, block_rows=8, block_columns=8, shares=1, ahead=1, adds=4)
//@     t128x64d(rows=128, columns=64, k=16, block_rows=8, block_columns=8, shares=2, ahead=1, adds=4)
//@     t64(rows=64, columns=64, k=16, block_rows=4, block_columns=4, shares=1, ahead=0, adds=4)
//@     t32x64(rows=32, columns=64, k=16, block_rows=4, block_columns=4, shares=1, ahead=0, adds=2)
//@     t32(rows=32, columns=32, k=32, block_rows=8, block_columns=4, shares=4, ahead=0, adds=4)
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A workgroup computes a tile of the output, an invocation a block of it in float32. While one slice of
// K is multiplied, the next one is stored in the other half of the shared memory. Where SHARES > 1, as many
// invocations take a block, each with a part of every slice, and add up at the end.
const uint TILE_ROWS = TILE_rows, TILE_COLUMNS = TILE_columns, TILE_K = TILE_k;
const uint BLOCK_ROWS = TILE_block_rows, BLOCK_COLUMNS = TILE_block_columns, SHARES = TILE_shares;
const uint DOWN = TILE_ROWS / BLOCK_ROWS, ACROSS = TILE_COLUMNS / BLOCK_COLUMNS;  // blocks of a tile
const uint BLOCKS = DOWN * ACROSS;
const uint INVOCATIONS = BLOCKS * SHARES;
layout(local_size_x = INVOCATIONS) in;
#define FOURS_TO_ADD uint(TILE_adds)
#include "include/gemm.glsl"
#include "include/gemm_fours.glsl"
layout(constant_id = 9) const bool ENDS_INSIDE = true;  // whether K is no multiple of TILE_K

// By K, then by the row or column, four to a vector. A vector of padding lets invocations that write
// along K use different banks.
const uint A_PITCH = TILE_ROWS / 4u + 1u, B_PITCH = TILE_COLUMNS / 4u + 1u;
const uint A_SLICE = TILE_K * A_PITCH, B_SLICE = TILE_K * B_PITCH, B_AT = 2u * A_SLICE;
const uint BLOCK_FOURS = BLOCK_ROWS * BLOCK_COLUMNS / 4u, HALF_FOURS = BLOCK_FOURS / 2u;
const uint SLICES_END = B_AT + 2u * B_SLICE, SUMS_END = (SHARES - 1u) * HALF_FOURS * BLOCKS;
shared vec4 s_tile[SLICES_END > SUMS_END ? SLICES_END : SUMS_END];
const int A_LOADS = int(TILE_ROWS * TILE_K / 4u / INVOCATIONS);
const int B_LOADS = int(TILE_COLUMNS * TILE_K / 4u / INVOCATIONS);
const int ROW_FOURS = int(BLOCK_ROWS / 4u), COLUMN_FOURS = int(BLOCK_COLUMNS / 4u);

// The row of A (or column of B) and the k of an invocation's four elements, within the slice.
uvec2 place(bool across, uint lines, int load) {
    uint n = gl_LocalInvocationIndex + uint(load) * INVOCATIONS;
    return across ? uvec2(n % (lines / 4u) * 4u, n / (lines / 4u))
                  : uvec2(n / (TILE_K / 4u), n % (TILE_K / 4u) * 4u);
}

#define PUT(first, pitch, across, at, found) \
    if (across) { \
        s_tile[(first) + at.y * pitch + at.x / 4u] = found; \
    } else { \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) \
            s_tile[(first) + (at.y + i) * pitch + at.x / 4u][at.x % 4u] = found[i]; \
    }

void main() {
    Tile t;
    if (!find_tile(t)) return;
    // 32 invocations take 4 x 8 blocks, where reads of shared memory are the fewest.
    uint share = gl_LocalInvocationIndex / BLOCKS, block = gl_LocalInvocationIndex % BLOCKS;
    uint my_row = block / (4u * ACROSS) * 4u + block % 2u + block / 16u % 2u * 2u;
    uint my_column = block / 32u % (ACROSS / 8u) * 8u + block / 2u % 8u;
    vec4 sums[BLOCK_ROWS][COLUMN_FOURS];
    [[unroll]] for (int i = 0; i < int(BLOCK_ROWS); ++i)
        [[unroll]] for (int j = 0; j < COLUMN_FOURS; ++j) sums[i][j] = vec4(0.0);
    // Whole slices are read without conditions, the last one twice.
    const bool WHOLE = ALL_VECTORS && !ENDS_INSIDE;
    uint a_at[A_LOADS], b_at[B_LOADS];
    [[unroll]] for (int n = 0; n < A_LOADS; ++n) {
        uvec2 at = place(A_MN_CONTIGUOUS, TILE_ROWS, n);
        a_at[n] = (a_offset + t.at[0] + min(t.row + at.x, rows - (A_MN_CONTIGUOUS ? 4u : 1u)) * a_row
                   + (t.begin + at.y) * a_k) / 4u;
    }
    [[unroll]] for (int n = 0; n < B_LOADS; ++n) {
        uvec2 at = place(B_MN_CONTIGUOUS, TILE_COLUMNS, n);
        b_at[n] = (b_offset + t.at[1] + min(t.column + at.x, columns - (B_MN_CONTIGUOUS ? 4u : 1u)) * b_column
                   + (t.begin + at.y) * b_k) / 4u;
    }
    uint slices = (t.end - t.begin + TILE_K - 1u) / TILE_K;
    uint a_step = TILE_K * a_k / 4u, b_step = TILE_K * b_k / 4u;  // in vectors
    vec4 a_next[A_LOADS], b_next[B_LOADS];
#define LOAD(slice) \
    { \
        uint k = t.begin + (slice) * TILE_K, whole = min(slice, slices - 1u); \
        [[unroll]] for (int n = 0; n < A_LOADS; ++n) { \
            uvec2 at = place(A_MN_CONTIGUOUS, TILE_ROWS, n); \
            if (WHOLE) a_next[n] = VECTOR_AT(a, a_at[n] + whole * a_step); \
            else a_next[n] = a_four(A_MN_CONTIGUOUS, A_VECTORS, a_offset + t.at[0], t.row + at.x, rows, \
                                    a_row, k + at.y, t.end, a_k); \
        } \
        [[unroll]] for (int n = 0; n < B_LOADS; ++n) { \
            uvec2 at = place(B_MN_CONTIGUOUS, TILE_COLUMNS, n); \
            if (WHOLE) b_next[n] = VECTOR_AT(b, b_at[n] + whole * b_step); \
            else b_next[n] = b_four(B_MN_CONTIGUOUS, B_VECTORS, b_offset + t.at[1], t.column + at.x, \
                                    columns, b_column, k + at.y, t.end, b_k); \
        } \
    }
#define STORE(half_at) \
    [[unroll]] for (int n = 0; n < A_LOADS; ++n) { \
        uvec2 at = place(A_MN_CONTIGUOUS, TILE_ROWS, n); \
        PUT(half_at * A_SLICE, A_PITCH, A_MN_CONTIGUOUS, at, a_next[n]) \
    } \
    [[unroll]] for (int n = 0; n < B_LOADS; ++n) { \
        uvec2 at = place(B_MN_CONTIGUOUS, TILE_COLUMNS, n); \
        PUT(B_AT + half_at * B_SLICE, B_PITCH, B_MN_CONTIGUOUS, at, b_next[n]) \
    }
#define READ(x, z, e) \
    [[unroll]] for (int j = 0; j < ROW_FOURS; ++j) \
        x[j] = s_tile[a_from + current * A_SLICE + (e) * A_PITCH + uint(j) * DOWN]; \
    [[unroll]] for (int j = 0; j < COLUMN_FOURS; ++j) \
        z[j] = s_tile[b_from + current * B_SLICE + (e) * B_PITCH + uint(j) * ACROSS];
#define MULTIPLY(x, z) \
    [[unroll]] for (int i = 0; i < int(BLOCK_ROWS); ++i) \
        [[unroll]] for (int j = 0; j < COLUMN_FOURS; ++j) sums[i][j] += x[i / 4][i % 4] * z[j];
    LOAD(0u)
    STORE(0u)
    barrier();
    uint current = 0u;
    const uint OWN_K = TILE_K / SHARES;  // of a slice
    uint a_from = share * OWN_K * A_PITCH + my_row, b_from = B_AT + share * OWN_K * B_PITCH + my_column;
#if TILE_ahead  // large blocks of few invocations: shared memory is read before the product that waits for it
    vec4 x[ROW_FOURS], z[COLUMN_FOURS], more_x[ROW_FOURS], more_z[COLUMN_FOURS];
    READ(x, z, 0u)
    for (uint slice = 1u; slice <= slices; ++slice) {
        LOAD(slice)
        [[unroll]] for (uint e = 0u; e < OWN_K - 2u; e += 2u) {
            READ(more_x, more_z, e + 1u)
            MULTIPLY(x, z)
            READ(x, z, e + 2u)
            MULTIPLY(more_x, more_z)
        }
        READ(more_x, more_z, OWN_K - 1u)
        MULTIPLY(x, z)
        current = 1u - current;
        STORE(current)
        barrier();
        READ(x, z, 0u)
        MULTIPLY(more_x, more_z)
    }
#else
    for (uint slice = 1u; slice <= slices; ++slice) {
        LOAD(slice)
        [[unroll]] for (uint e = 0u; e < OWN_K; ++e) {
            vec4 x[ROW_FOURS], z[COLUMN_FOURS];
            READ(x, z, e)
            MULTIPLY(x, z)
        }
        current = 1u - current;
        STORE(current)
        barrier();
    }
#endif
    // Half of a block at a time. As a loop it would not be unrolled, and the sums would lie in memory.
#define SUM(n) sums[(n) / uint(COLUMN_FOURS)][(n) % uint(COLUMN_FOURS)]
#define ADD_SHARES(first) \
    barrier(); \
    if (share > 0u) \
        [[unroll]] for (uint n = 0u; n < HALF_FOURS; ++n) \
            s_tile[((share - 1u) * HALF_FOURS + n) * BLOCKS + block] = SUM((first) + n); \
    barrier(); \
    if (share == 0u) \
        [[unroll]] for (uint other = 0u; other < SHARES - 1u; ++other) \
            [[unroll]] for (uint n = 0u; n < HALF_FOURS; ++n) \
                SUM((first) + n) += s_tile[(other * HALF_FOURS + n) * BLOCKS + block];
    if (SHARES > 1u) {
        ADD_SHARES(0u)
        ADD_SHARES(HALF_FOURS)
    }
    if (share == 0u)
        [[unroll]] for (int n = 0; n < ROW_FOURS; ++n) {
            uint row = t.row + 4u * (my_row + uint(n) * DOWN), column = t.column + 4u * my_column;
            const uint NEXT = 4u * ACROSS;
            Beside beside[4][COLUMN_FOURS];
            if (!SPLIT)
                [[unroll]] for (int i = 0; i < 4; ++i)
                    [[unroll]] for (int j = 0; j < COLUMN_FOURS; ++j)
                        beside[i][j] = beside_four(t, row + uint(i), column + uint(j) * NEXT);
            [[unroll]] for (int i = 0; i < 4; ++i)
                [[unroll]] for (int j = 0; j < COLUMN_FOURS; ++j)
                    finish_four(t, row + uint(i), column + uint(j) * NEXT, sums[4 * n + i][j], beside[i][j]);
        }
    add_parts(t);
}
