//@ op DML_OPERATOR_GEMM
//@ variants TILE:
//@     t128(rows=128, columns=128, k=32, down=2, across=2, along=1, alone=0, packed=0,
//@         m=16, n=16, depth=16, lanes=32)
//@     t64x256p(rows=64, columns=256, k=32, down=1, across=4, along=1, alone=0, packed=1,
//@         m=16, n=16, depth=16, lanes=32)
//@     t64(rows=64, columns=64, k=64, down=2, across=2, along=1, alone=0, packed=0,
//@         m=16, n=16, depth=16, lanes=32)
//@     t64d(rows=64, columns=64, k=128, down=2, across=2, along=2, alone=0, packed=0,
//@         m=16, n=16, depth=16, lanes=32)
//@     t32x64(rows=32, columns=64, k=128, down=1, across=1, along=8, alone=0, packed=0,
//@         m=16, n=16, depth=16, lanes=32)
//@     t32(rows=32, columns=32, k=128, down=1, across=1, along=4, alone=0, packed=0,
//@         m=16, n=16, depth=16, lanes=32)
//@     t16(rows=16, columns=32, k=256, down=1, across=1, along=8, alone=1, packed=0,
//@         m=16, n=16, depth=16, lanes=32)
//@     t64m8n16(rows=64, columns=64, k=32, down=8, across=2, along=1, alone=0, packed=0,
//@         m=8, n=16, depth=16, lanes=16)
//@     t32m8n8(rows=32, columns=32, k=32, down=4, across=4, along=1, alone=0, packed=0,
//@         m=8, n=8, depth=16, lanes=8)
//@     t16m8n8d8(rows=16, columns=16, k=16, down=2, across=1, along=1, alone=0, packed=0,
//@         m=8, n=8, depth=8, lanes=8)
//@ unchecked t64x256p
//@ glslang >= 14
//@ target vulkan1.1
//@ tail *
//@ bfloat16 t128 t64 t64d t32x64 t32 t16 t64m8n16 t32m8n8 t16m8n8d8
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#ifdef BFLOAT16
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#endif
// FLOAT16 or BFLOAT16 matrices, accumulated in float32. Matrix units multiply M x DEPTH by DEPTH x N elements with
// subgroups of LANES, all of which devices list. A workgroup of subgroups computes a tile of the output
// in SUBGROUPS_DOWN x SUBGROUPS_ACROSS parts. SUBGROUPS_K subgroups split K of each part. ALONE: each of
// them reads its own slice, and no subgroup waits for another. A and B are read in vectors of eight
// elements, which are contiguous along K or along the other axis.
// PACKED_B: gemm_pack.comp has put B into the order of matrix units. Each subgroup reads it straight from
// memory. Shared memory holds two slices of A: the next one is stored while this one is multiplied.
const uint TILE_ROWS = TILE_rows, TILE_COLUMNS = TILE_columns, TILE_K = TILE_k;
const uint SUBGROUPS_DOWN = TILE_down, SUBGROUPS_ACROSS = TILE_across, SUBGROUPS_K = TILE_along;
const bool ALONE = TILE_alone != 0;
const uint SUBGROUPS = SUBGROUPS_DOWN * SUBGROUPS_ACROSS * SUBGROUPS_K;
const uint LANES = TILE_lanes, INVOCATIONS = LANES * SUBGROUPS;
layout(local_size_x = INVOCATIONS) in;
#define HALF_STORES
// Subgroups of fewer lanes have fewer registers for each.
#define FOURS_TO_ADD clamp(TILE_ROWS * TILE_COLUMNS / 4u / INVOCATIONS, 1u, LANES < 32u ? 2u : 4u)
#define ALIKE_IS_CONSTANT
#include "include/gemm.glsl"

// Whether vectors lie along A's rows, and along B's columns; else along K.
layout(constant_id = 5) const bool A_MN_CONTIGUOUS = false;
layout(constant_id = 6) const bool B_MN_CONTIGUOUS = false;
// Whether K, or a part of it, ends inside a slice.
layout(constant_id = 7) const bool ENDS_INSIDE = false;

const uint M = TILE_m, N = TILE_n, DEPTH = TILE_depth;
const uint PART_ROWS = TILE_ROWS / SUBGROUPS_DOWN;
const uint PART_COLUMNS = TILE_COLUMNS / SUBGROUPS_ACROSS;
const int DOWN = int(PART_ROWS / M);
const int ACROSS = int(PART_COLUMNS / N);
#define Sums coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define RowFragment coopmat<float16_t, gl_ScopeSubgroup, M, DEPTH, gl_MatrixUseA>
#define ColumnFragment coopmat<float16_t, gl_ScopeSubgroup, DEPTH, N, gl_MatrixUseB>

// A slice of K, in the layout of A and B. After the last slice it holds the sums, M rows of each part at
// a time. A vector of padding after each line of the slice, and two after each row of sums, avoid bank
// conflicts. A subgroup that is ALONE has its own slice.
const uint SHARES = ALONE ? SUBGROUPS_K : 1u;
const uint OWN_K = TILE_K / SHARES;
const uint READERS = INVOCATIONS / SHARES;
const uint K_VECTORS = OWN_K / 8u;
const uint A_SLICE = max(TILE_ROWS * (K_VECTORS + 1u), OWN_K * (TILE_ROWS / 8u + 1u));
const uint B_SLICE = max(TILE_COLUMNS * (K_VECTORS + 1u), OWN_K * (TILE_COLUMNS / 8u + 1u));
#if TILE_packed
const uint SLICE = 2u * A_SLICE;
#else
const uint SLICE = A_SLICE + B_SLICE;
#endif
const uint A_PITCH = A_MN_CONTIGUOUS ? TILE_ROWS / 8u + 1u : K_VECTORS + 1u;
const uint B_PITCH = B_MN_CONTIGUOUS ? TILE_COLUMNS / 8u + 1u : K_VECTORS + 1u;
const uint ROW_VECTORS = PART_COLUMNS / 4u;
const uint STRIP_PITCH = ROW_VECTORS + 2u;
const uint STRIP = M * STRIP_PITCH;
shared uvec4 s_slice[max(SHARES * SLICE, SUBGROUPS * STRIP)];

const int A_LOADS = int(TILE_ROWS * K_VECTORS / READERS);
const int B_LOADS = int(TILE_COLUMNS * K_VECTORS / READERS);

// The line of the slice that holds an invocation's vector, and the vector's position in the line. Eight
// invocations store together. If a line has fewer than eight vectors, they use lines with different
// banks.
uvec2 place(bool across, uint lines, int load) {
    uint n = (ALONE ? gl_SubgroupInvocationID : gl_LocalInvocationIndex) + uint(load) * READERS;
    if (across) return uvec2(n / (lines / 8u), n % (lines / 8u));
    if (K_VECTORS == 4u) return uvec2(n / 4u % 2u * 4u + n / 8u % 4u + n / 32u * 8u, n % 4u);
    return uvec2(n / K_VECTORS, n % K_VECTORS);
}

// Between writing and reading a slice.
void share_slice() {
    if (ALONE) {
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    } else {
        barrier();
    }
}

// Between writing and reading strips. A subgroup with a part of its own needs no other.
void share_strip() {
    if (SUBGROUPS_K > 1u) {
        barrier();
    } else {
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    }
}

void main() {
    Tile t;
    if (!find_tile(t)) return;
    uint member_of_k = gl_SubgroupID % SUBGROUPS_K;
    uint part = gl_SubgroupID / SUBGROUPS_K;
    uint part_row = part / SUBGROUPS_ACROSS * PART_ROWS;
    uint part_column = part % SUBGROUPS_ACROSS * PART_COLUMNS;

    uint own_begin = ALONE ? member_of_k * OWN_K : 0u;
    uint a_slice = ALONE ? member_of_k * SLICE : 0u;
    uint b_slice = a_slice + A_SLICE;

    // Positions beyond the edges are clamped, and their sums dropped. They count vectors.
    uint a_from[A_LOADS];
#define FIND_SIDE(side, SIDE, lines, line, count, step, where) \
    [[unroll]] for (int i = 0; i < SIDE##_LOADS; ++i) { \
        uvec2 at = place(SIDE##_MN_CONTIGUOUS, lines, i); \
        uint k = t.begin + own_begin + (SIDE##_MN_CONTIGUOUS ? at.x : at.y * 8u); \
        uint across = SIDE##_MN_CONTIGUOUS ? min(line + at.y * 8u, (count - 1u) / 8u * 8u) \
                                           : min(line + at.x, count - 1u) * step; \
        side##_from[i] = (side##_offset + t.at[where] + across + k * side##_k) / 8u; \
    }
    FIND_SIDE(a, A, TILE_ROWS, t.row, rows, a_row, 0)
    uint a_step = TILE_K / 8u * a_k;
    // The next slice. Nothing uses it before it is stored, so that nothing waits for it.
    uvec4 a_next[A_LOADS];
#define LOAD_SIDE(side, SIDE, slice) \
    [[unroll]] for (int i = 0; i < SIDE##_LOADS; ++i) \
        side##_next[i] = side##_vectors[side##_from[i] + (slice) * side##_step];
    // The rest of K, which does not fill a slice. What is beyond its end is 0.
#define LOAD_REST(side, SIDE, lines) \
    [[unroll]] for (int i = 0; i < SIDE##_LOADS; ++i) { \
        uvec2 at = place(SIDE##_MN_CONTIGUOUS, lines, i); \
        uint k = own_begin + (SIDE##_MN_CONTIGUOUS ? at.x : at.y * 8u); \
        uint left = rest > k ? rest - k : 0u; \
        uint past = SIDE##_MN_CONTIGUOUS ? (k - rest + 1u) * (side##_k / 8u) \
                                         : k / 8u - (rest - 1u) / 8u; \
        uvec4 found = \
            side##_vectors[side##_from[i] + slices * side##_step - (left > 0u ? 0u : past)]; \
        [[unroll]] for (uint w = 0u; w < 4u; ++w) \
            found[w] &= left > (SIDE##_MN_CONTIGUOUS ? 0u : 2u * w + 1u) ? ~0u \
                        : left > (SIDE##_MN_CONTIGUOUS ? 0u : 2u * w) ? 0xFFFFu : 0u; \
        side##_next[i] = found; \
    }
#define STORE_SIDE(side, SIDE, lines, to) \
    [[unroll]] for (int i = 0; i < SIDE##_LOADS; ++i) { \
        uvec2 at = place(SIDE##_MN_CONTIGUOUS, lines, i); \
        s_slice[to + at.x * SIDE##_PITCH + at.y] = side##_next[i]; \
    }
#define LOAD_ROWS(x, from, line, k) \
    if (A_MN_CONTIGUOUS) \
        coopMatLoad(x, s_slice, from + (k) * A_PITCH + (line) / 8u, A_PITCH, \
                    gl_CooperativeMatrixLayoutColumnMajor); \
    else \
        coopMatLoad(x, s_slice, from + (line) * A_PITCH + (k) / 8u, A_PITCH, \
                    gl_CooperativeMatrixLayoutRowMajor);

    Sums sums[DOWN][ACROSS];
    [[unroll]] for (int i = 0; i < DOWN; ++i)
        [[unroll]] for (int j = 0; j < ACROSS; ++j) sums[i][j] = Sums(0.0);
    uint slices = (t.end - t.begin) / TILE_K, rest = t.end - t.begin - slices * TILE_K;
#if TILE_packed
    // B lies in strips of 64 columns and steps of 16 of K, filled up with zeros to whole strips and four
    // steps. A vector holds what an invocation has of a fragment. While one of two steps is multiplied,
    // the other is on its way; those past the end are not multiplied.
    const uint STEP_VECTORS = 128u, OWN_STEPS = TILE_K / DEPTH;
    uint all_steps = ((K - 1u) / 64u + 1u) * 4u;
    uint strip = min((t.column + part_column) / 64u, (columns - 1u) / 64u);
    uint b_from = (b_offset + t.at[1]) / 8u + strip * all_steps * STEP_VECTORS + gl_SubgroupInvocationID;
    uint first_step = t.begin / DEPTH;
    uvec4 b_even[ACROSS], b_odd[ACROSS];
#define LOAD_STEP(which, step) { \
        uint at = b_from + min(step, all_steps - 1u) * STEP_VECTORS; \
        [[unroll]] for (int j = 0; j < ACROSS; ++j) which[j] = b_vectors[at + uint(j) * LANES]; \
    }
#define MULTIPLY_STEP(which, step, from, n) { \
        ColumnFragment z[ACROSS]; \
        RowFragment x; \
        [[unroll]] for (int j = 0; j < ACROSS; ++j) \
            [[unroll]] for (int w = 0; w < 4; ++w) { \
                f16vec2 pair = unpackFloat2x16(which[j][w]); \
                z[j][2 * w] = pair.x; \
                z[j][2 * w + 1] = pair.y; \
            } \
        [[unroll]] for (int i = 0; i < DOWN; ++i) { \
            LOAD_ROWS(x, from, part_row + uint(i) * M, n * DEPTH) \
            [[unroll]] for (int j = 0; j < ACROSS; ++j) \
                sums[i][j] = coopMatMulAdd(x, z[j], sums[i][j]); \
        } \
        LOAD_STEP(which, (step) + 2u) \
    }
#define MULTIPLY(slice, from) { \
        uint step = first_step + (slice) * OWN_STEPS; \
        MULTIPLY_STEP(b_even, step, from, 0u) \
        MULTIPLY_STEP(b_odd, step + 1u, from, 1u) \
    }
    LOAD_STEP(b_even, first_step)
    LOAD_STEP(b_odd, first_step + 1u)
    if (!ENDS_INSIDE || slices > 0u) {
        LOAD_SIDE(a, A, 0u)
        STORE_SIDE(a, A, TILE_ROWS, 0u)
        LOAD_SIDE(a, A, min(1u, slices - 1u))
    }
    for (uint slice = 0u; slice < slices; ++slice) {
        uint from = slice % 2u * A_SLICE;
        barrier();
        STORE_SIDE(a, A, TILE_ROWS, A_SLICE - from)
        LOAD_SIDE(a, A, min(slice + 2u, slices - 1u))
        MULTIPLY(slice, from)
    }
    if (ENDS_INSIDE && rest > 0u) {
        LOAD_REST(a, A, TILE_ROWS)
        barrier();
        STORE_SIDE(a, A, TILE_ROWS, 0u)
        barrier();
        MULTIPLY(slices, 0u)
    }
#else
    uint b_from[B_LOADS];
    FIND_SIDE(b, B, TILE_COLUMNS, t.column, columns, b_column, 1)
    uint b_step = TILE_K / 8u * b_k;
    uvec4 b_next[B_LOADS];
#define LOAD(slice) \
    LOAD_SIDE(a, A, slice) \
    LOAD_SIDE(b, B, slice)
#define STORE_SLICE \
    STORE_SIDE(a, A, TILE_ROWS, a_slice) \
    STORE_SIDE(b, B, TILE_COLUMNS, b_slice)
#define MULTIPLY \
    [[unroll]] for (uint n = 0u; n < TILE_K / DEPTH / SUBGROUPS_K; ++n) { \
        uint k = (ALONE ? n : n * SUBGROUPS_K + member_of_k) * DEPTH; \
        ColumnFragment z[ACROSS]; \
        RowFragment x; \
        [[unroll]] for (int j = 0; j < ACROSS; ++j) { \
            uint line = part_column + uint(j) * N; \
            if (B_MN_CONTIGUOUS) \
                coopMatLoad(z[j], s_slice, b_slice + k * B_PITCH + line / 8u, B_PITCH, \
                            gl_CooperativeMatrixLayoutRowMajor); \
            else \
                coopMatLoad(z[j], s_slice, b_slice + line * B_PITCH + k / 8u, B_PITCH, \
                            gl_CooperativeMatrixLayoutColumnMajor); \
        } \
        [[unroll]] for (int i = 0; i < DOWN; ++i) { \
            LOAD_ROWS(x, a_slice, part_row + uint(i) * M, k) \
            [[unroll]] for (int j = 0; j < ACROSS; ++j) \
                sums[i][j] = coopMatMulAdd(x, z[j], sums[i][j]); \
        } \
    }

    if (!ENDS_INSIDE || slices > 0u) {
        LOAD(0u)
    }
    for (uint slice = 0u; slice < slices; ++slice) {
        share_slice();
        STORE_SLICE
        share_slice();
        // The next slice is read while this one is multiplied. At the end the last slice is read again:
        // with a condition, the compiler would wait for the loads.
        LOAD(min(slice + 1u, slices - 1u))
        MULTIPLY
    }
    if (ENDS_INSIDE && rest > 0u) {
        LOAD_REST(a, A, TILE_ROWS)
        LOAD_REST(b, B, TILE_COLUMNS)
        share_slice();
        STORE_SLICE
        share_slice();
        MULTIPLY
    }
#endif
    barrier();
    // The subgroups of a part add up its strips in a fixed order. An invocation takes four columns of
    // a row at a time, and up to four such rows together.
    uint member = member_of_k * LANES + gl_SubgroupInvocationID;
    const uint STEP = SUBGROUPS_K * LANES / ROW_VECTORS;
    const uint TIMES = max(M / STEP, 1u), TOGETHER = TIMES > 4u ? 1u : TIMES;
    uint column = t.column + part_column + member % ROW_VECTORS * 4u;
    // Strips are not a loop: if a compiler does not unroll it, all sums go to memory.
#define STORE_STRIP(number) \
    if (DOWN > number) { \
        share_strip(); \
        [[unroll]] for (int j = 0; j < ACROSS; ++j) \
            coopMatStore(sums[min(number, DOWN - 1)][j], s_slice, \
                         gl_SubgroupID * STRIP + uint(j) * N / 4u, STRIP_PITCH, \
                         gl_CooperativeMatrixLayoutRowMajor); \
        share_strip(); \
        [[dont_unroll]] for (uint first = member / ROW_VECTORS; first < M; \
                             first += STEP * TOGETHER) { \
            vec4 fours[TOGETHER]; \
            [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) { \
                uint r = first + n * STEP; \
                uint at = part * SUBGROUPS_K * STRIP + r * STRIP_PITCH + member % ROW_VECTORS; \
                fours[n] = uintBitsToFloat(s_slice[at]); \
                [[unroll]] for (uint d = 1u; d < SUBGROUPS_K; ++d) \
                    fours[n] += uintBitsToFloat(s_slice[at + d * STRIP]); \
            } \
            [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) \
                finish_four(t, t.row + part_row + uint(number) * M + first + n * STEP, \
                            column, fours[n]); \
        } \
    }
    STORE_STRIP(0)
    STORE_STRIP(1)
    STORE_STRIP(2)
    STORE_STRIP(3)
    add_parts(t);
}
