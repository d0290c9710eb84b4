//@ op DML_OPERATOR_GEMM
//@ variants TILE:
//@     t32n(rows=32, columns=32, parts=1, down=2, across=2, along_k=0, shared=0)
//@     t32k(rows=32, columns=32, parts=1, down=2, across=2, along_k=1, shared=0)
//@     t64k(rows=64, columns=64, parts=1, down=4, across=4, along_k=1, shared=0)
//@     t64s(rows=64, columns=64, parts=2, down=2, across=4, along_k=0, shared=1)
//@     t128x64s(rows=128, columns=64, parts=4, down=2, across=4, along_k=0, shared=1)
//@ glslang >= 14
//@ target vulkan1.1
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
// FLOAT16 matrices, accumulated in float32, for tiles that are few enough that latency counts. A goes from
// memory to its places in registers, without shared memory. Columns of B are rows of left operands, rows of
// A columns of right ones: invocation l of a subgroup of 32 holds elements of the l / 4 th and the
// l / 4 + 8 th (DeviceTraits.fragments_alike). The order along K is free: an invocation takes eight
// neighbours of a step of 32, four in each half.
//   k: B is read in vectors of eight elements along K, as A is.
//   n: it is read in vectors of 2 ACROSS columns. Eight invocations read a row of B.
//   s: it is read in vectors of columns, and goes through shared memory, for all parts of a tile.
// But for s, the order of columns is free, too: an invocation takes 2 ACROSS neighbours.
// A tile has PARTS_DOWN parts. The subgroups of a part divide K, and add up their sums at the end.
const uint PARTS_DOWN = TILE_parts, DOWN = TILE_down, ACROSS = TILE_across;
layout(local_size_x = 256, local_size_x_id = 0) in;
const uint INVOCATIONS = gl_WorkGroupSize.x, SUBGROUPS = INVOCATIONS / 32u;
const uint SUBGROUPS_K = SUBGROUPS / PARTS_DOWN;
const uint PART_ROWS = 16u * DOWN, TILE_ROWS = PARTS_DOWN * PART_ROWS, TILE_COLUMNS = 16u * ACROSS;
layout(constant_id = 7) const bool ENDS_INSIDE = false;  // whether K ends inside a step of each subgroup
#define HALF_STORES
#define FOURS_TO_ADD 2u
#define ALIKE_IS_CONSTANT
#include "include/gemm.glsl"

#define Sums coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define ColumnFragment coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RowFragment coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
const uint STEP = 32u;
#if !TILE_along_k && !TILE_shared
#define BVector uvec2
layout(binding = 1) readonly buffer BPairs { uvec2 b_pairs[]; };
const uint B_READS = 8u;
#else
#define BVector uvec4
#if TILE_along_k
const uint B_READS = 2u * ACROSS;
#else
const uint B_READS = 8u / PARTS_DOWN;
#endif
#endif

// Shared memory holds two slices of B: a step of each subgroup along K. After the last one it holds the sums
// of 16 rows of each subgroup. Padding avoids bank conflicts.
const uint FOURS = ACROSS / 2u;
#if TILE_shared
const uint B_PITCH = TILE_COLUMNS / 8u + 1u, BLOCK = STEP * B_PITCH, SLICE = SUBGROUPS_K * BLOCK;
const uint SUM_PITCH = TILE_COLUMNS / 4u + 1u, STRIP = 16u * SUM_PITCH;
#else
const uint SLICE = 0u;
const uint SUM_PITCH = FOURS == 2u ? 42u : 35u, STRIP = 4u * FOURS * SUM_PITCH;
#endif
const uint ALL_SUMS = SUBGROUPS_K > 1u ? SUBGROUPS * STRIP : 1u;
shared uvec4 s_memory[2u * SLICE > ALL_SUMS ? 2u * SLICE : ALL_SUMS];

// The words are elements of the rows (columns) and places along K 0 0, 0 8, 8 0, 8 8.
#define FILL(fragment, word0, word1, word2, word3) \
    { \
        uvec4 words = uvec4(word0, word1, word2, word3); \
        [[unroll]] for (int w = 0; w < 4; ++w) { \
            f16vec2 pair = unpackFloat2x16(words[w]); \
            fragment[2 * w] = pair.x; \
            fragment[2 * w + 1] = pair.y; \
        } \
    }
#define LOW(x, y) ((x) & 0xFFFFu | (y) << 16u)
#define HIGH(x, y) ((x) >> 16u | (y) & 0xFFFF0000u)

void main() {
    Tile t;
    if (!find_tile(t)) return;
    uint lane = gl_SubgroupInvocationID, row = lane / 4u, quad = lane % 4u;
    uint member = gl_SubgroupID % SUBGROUPS_K, part = gl_SubgroupID / SUBGROUPS_K;
    uint part_row = t.row + part * PART_ROWS;

    // Rows and columns beyond the edges are clamped, and their sums dropped. Positions count vectors.
    uint a_from[2u * DOWN];
    [[unroll]] for (uint i = 0u; i < 2u * DOWN; ++i)
        a_from[i] = (a_offset + t.at[0] + min(part_row + i * 8u + row, rows - 1u) * a_row) / 8u + quad;
#if TILE_along_k
    uint b_from[2u * ACROSS];
    [[unroll]] for (uint i = 0u; i < 2u * ACROSS; ++i) {
        uint column = min(t.column + row * 2u * ACROSS + i, columns - 1u);
        b_from[i] = (b_offset + t.at[1] + column * b_column) / 8u + quad;
    }
#elif TILE_shared
    // The parts share the rows of a block. A row's place is that of its fragment, and in it.
    const uint EACH = STEP / PARTS_DOWN;
    uint b_from = (b_offset + t.at[1] + min(t.column + lane % 8u * 8u, columns - 8u)) / 8u;
    uint b_line = b_k / 8u, b_first = part * EACH + lane / 8u;
    uint b_to[B_READS];
    [[unroll]] for (uint i = 0u; i < B_READS; ++i) {
        uint k = b_first + i * 4u;
        uint place = k / 4u % 2u * 16u + k / 2u % 2u * 8u + k / 8u * 2u + k % 2u;
        b_to[i] = member * BLOCK + place * B_PITCH + lane % 8u;
    }
#else
    const uint WIDTH = 2u * ACROSS;
    uint b_from = (b_offset + t.at[1] + min(t.column + row * WIDTH, columns - WIDTH)) / WIDTH;
    uint b_line = b_k / WIDTH;
#endif

    uvec4 a[2u * DOWN];
    BVector b[B_READS];
    Sums sums[DOWN][ACROSS];
    [[unroll]] for (uint i = 0u; i < DOWN; ++i)
        [[unroll]] for (uint j = 0u; j < ACROSS; ++j) sums[i][j] = Sums(0.0);
    // K is a multiple of eight, so an invocation's elements of a step are all inside, or all past the end.
#define READ_A(step) \
    { \
        uint v = t.begin / 8u + (step) * (STEP / 8u) + quad; \
        if (ENDS_INSIDE) v = min(v, (t.end - 1u) / 8u); \
        [[unroll]] for (uint i = 0u; i < 2u * DOWN; ++i) a[i] = a_vectors[a_from[i] + v - quad]; \
    }
#define END_A(step) \
    if (ENDS_INSIDE && t.begin + (step) * STEP + quad * 8u >= t.end) \
        [[unroll]] for (uint i = 0u; i < 2u * DOWN; ++i) a[i] = uvec4(0u);
#define MULTIPLY(FILL_COLUMNS) \
    [[unroll]] for (uint n = 0u; n < 2u; ++n) { \
        ColumnFragment z[ACROSS]; \
        RowFragment x; \
        [[unroll]] for (uint j = 0u; j < ACROSS; ++j) FILL_COLUMNS(z[j], j, n) \
        [[unroll]] for (uint i = 0u; i < DOWN; ++i) { \
            FILL(x, a[2u * i][2u * n], a[2u * i][2u * n + 1u], a[2u * i + 1u][2u * n], \
                 a[2u * i + 1u][2u * n + 1u]) \
            [[unroll]] for (uint j = 0u; j < ACROSS; ++j) \
                sums[i][j] = coopMatMulAdd(z[j], x, sums[i][j]); \
        } \
    }
#if TILE_shared
#define READ_B(step) \
    { \
        uint k = t.begin + (step) * STEP + b_first; \
        [[unroll]] for (uint i = 0u; i < B_READS; ++i) \
            b[i] = b_vectors[b_from + (ENDS_INSIDE ? min(k + i * 4u, t.end - 1u) : k + i * 4u) * b_line]; \
    }
#define HOLD_B(step, to) \
    { \
        uint k = t.begin + (step) * STEP + b_first; \
        [[unroll]] for (uint i = 0u; i < B_READS; ++i) \
            s_memory[to + b_to[i]] = ENDS_INSIDE && k + i * 4u >= t.end ? uvec4(0u) : b[i]; \
    }
#define LOAD_COLUMNS(z, j, n) \
    coopMatLoad(z, s_memory, from + (n) * (16u * B_PITCH) + (j) * 2u, B_PITCH, \
                gl_CooperativeMatrixLayoutColumnMajor);
    // While a slice is multiplied, the next one is in shared memory, and the one after it on its way.
    uint slices = (t.end - t.begin - 1u) / (STEP * SUBGROUPS_K) + 1u, last = slices - 1u;
#define STEP_OF(slice) (min(slice, last) * SUBGROUPS_K + member)
    READ_A(member)
    READ_B(member)
    HOLD_B(member, 0u)
    READ_B(STEP_OF(1u))
    for (uint slice = 0u; slice < slices; ++slice) {
        uint held = slice % 2u * SLICE, from = held + member * BLOCK;
        barrier();
        HOLD_B(STEP_OF(slice + 1u), SLICE - held)
        READ_B(STEP_OF(slice + 2u))
        END_A(slice * SUBGROUPS_K + member)
        MULTIPLY(LOAD_COLUMNS)
        READ_A(STEP_OF(slice + 1u))
    }
    barrier();
#else
#if TILE_along_k
#define READ_B(step) \
    { \
        uint v = t.begin / 8u + (step) * (STEP / 8u) + quad; \
        if (ENDS_INSIDE) v = min(v, (t.end - 1u) / 8u); \
        [[unroll]] for (uint i = 0u; i < B_READS; ++i) b[i] = b_vectors[b_from[i] + v - quad]; \
    }
#define FILL_COLUMNS(z, j, n) \
    FILL(z, b[2u * j][2u * n], b[2u * j][2u * n + 1u], b[2u * j + 1u][2u * n], b[2u * j + 1u][2u * n + 1u])
#else
#define READ_B(step) \
    { \
        uint k = t.begin + (step) * STEP + quad * 8u; \
        if (ENDS_INSIDE) k = min(k, t.end - 8u); \
        [[unroll]] for (uint i = 0u; i < B_READS; ++i) b[i] = b_pairs[b_from + (k + i) * b_line]; \
    }
#define FILL_COLUMNS(z, j, n) \
    FILL(z, LOW(b[4u * n][j], b[4u * n + 1u][j]), LOW(b[4u * n + 2u][j], b[4u * n + 3u][j]), \
         HIGH(b[4u * n][j], b[4u * n + 1u][j]), HIGH(b[4u * n + 2u][j], b[4u * n + 3u][j]))
#endif
    uint steps = (t.end - t.begin - 1u) / STEP + 1u;
    for (uint step = member; step < steps; step += SUBGROUPS_K) {
        READ_A(step)
        READ_B(step)
        END_A(step)
        if (ENDS_INSIDE && t.begin + step * STEP + quad * 8u >= t.end)
            [[unroll]] for (uint i = 0u; i < B_READS; ++i) b[i] = BVector(0u);
        MULTIPLY(FILL_COLUMNS)
    }
#endif

    // Vector q of an invocation: four neighbours of its row r, which is 2 quad + r % 2 + r / 2 * 8 of 16.
#define FOUR(i, r, q) \
    vec4(sums[i][2u * (q)][r], sums[i][2u * (q)][4u + (r)], \
         sums[i][2u * (q) + 1u][r], sums[i][2u * (q) + 1u][4u + (r)])
#if TILE_shared
#define HOLD_SUMS(i) \
    [[unroll]] for (uint j = 0u; j < ACROSS; ++j) \
        [[unroll]] for (uint e = 0u; e < 8u; ++e) { \
            uint r = quad * 2u + e % 2u + e / 2u % 2u * 8u, c = j * 16u + e / 4u * 8u + row; \
            s_memory[gl_SubgroupID * STRIP + r * SUM_PITCH + c / 4u][c % 4u] = \
                floatBitsToUint(sums[i][j][e]); \
        }
    // The place of four neighbours of a row.
#define PLACE(r, four) ((r) * SUM_PITCH + (four))
#else
#define HOLD_SUMS(i) \
    [[unroll]] for (uint r = 0u; r < 4u; ++r) \
        [[unroll]] for (uint q = 0u; q < FOURS; ++q) \
            s_memory[gl_SubgroupID * STRIP + (r * FOURS + q) * SUM_PITCH + lane + lane / 8u] = \
                floatBitsToUint(FOUR(i, r, q));
#define HOLDER(r, four) ((four) / FOURS * 4u + (r) % 8u / 2u)
#define PLACE(r, four) \
    ((((r) % 2u + (r) / 8u * 2u) * FOURS + (four) % FOURS) * SUM_PITCH + HOLDER(r, four) + \
     HOLDER(r, four) / 8u)
#endif
    // Fragments are not a loop: if a compiler does not unroll it, all sums go to memory.
#define STORE_ROWS(i) \
    if (i < DOWN && SUBGROUPS_K == 1u) { \
        [[unroll]] for (uint r = 0u; r < 4u; ++r) \
            [[unroll]] for (uint q = 0u; q < FOURS; ++q) \
                finish_four(t, part_row + i * 16u + quad * 2u + r % 2u + r / 2u * 8u, \
                            t.column + (row * FOURS + q) * 4u, FOUR(min(i, DOWN - 1u), r, q)); \
    } else if (i < DOWN) { \
        if (i > 0u) barrier(); \
        HOLD_SUMS(min(i, DOWN - 1u)) \
        barrier(); \
        [[dont_unroll]] for (uint n = member * 32u + lane; n < 64u * ACROSS; n += 32u * SUBGROUPS_K) { \
            uint r = n / (4u * ACROSS), four = n % (4u * ACROSS); \
            uint at = part * SUBGROUPS_K * STRIP + PLACE(r, four); \
            vec4 found = uintBitsToFloat(s_memory[at]); \
            [[unroll]] for (uint d = 1u; d < SUBGROUPS_K; ++d) \
                found += uintBitsToFloat(s_memory[at + d * STRIP]); \
            finish_four(t, part_row + i * 16u + r, t.column + four * 4u, found); \
        } \
    }
    STORE_ROWS(0u)
    STORE_ROWS(1u)
    STORE_ROWS(2u)
    STORE_ROWS(3u)
    add_parts(t);
}
