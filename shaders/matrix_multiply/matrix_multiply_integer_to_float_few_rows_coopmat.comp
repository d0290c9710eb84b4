//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT DML_OPERATOR_MATRIX_MULTIPLY_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY
//@ variants B: k_contiguous k_contiguous8 n_contiguous
//@ glslang >= 14
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require

// Subgroups of 32 split K. Each has its own shared memory for 16 lines: rows of A, then 16 columns of B
// at a time. So no subgroup waits for another before the end, and many fit a multiprocessor.
const uint TILE_ROWS = 16u;
#define ROW_TILES
// A slice has VECTORS along K. AHEAD slices are read at a time.
#if defined(B_k_contiguous)
#define K_CONTIGUOUS
const uint TILE_COLUMNS = 32u, SUBGROUPS = 4u, VECTORS = 8u, AHEAD = 1u;
#elif defined(B_k_contiguous8)
#define K_CONTIGUOUS
const uint TILE_COLUMNS = 32u, SUBGROUPS = 8u, VECTORS = 8u, AHEAD = 1u;
#else
const uint TILE_COLUMNS = 32u, SUBGROUPS = 8u, VECTORS = 4u, AHEAD = 2u;
#endif
const uint INVOCATIONS = SUBGROUPS * 32u;
layout(local_size_x = INVOCATIONS) in;
#include "include/few_rows.glsl"

const uint FRAGMENT = 16u;
const int ACROSS = int(TILE_COLUMNS / FRAGMENT);
// Fragments in a slice, of two vectors each.
const uint FRAGMENTS = VECTORS / 2u;
#define Product coopmat<int, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseAccumulator>
#define RowFragment coopmat<int8_t, gl_ScopeSubgroup, FRAGMENT, 32, gl_MatrixUseA>
#define ColumnFragment coopmat<int8_t, gl_ScopeSubgroup, 32, FRAGMENT, gl_MatrixUseB>

// VECTORS of each line. A vector of padding avoids bank conflicts. At the end it holds the products, four
// of a row to a vector.
const uint PITCH = VECTORS + 1u;
const uint SLICE = FRAGMENT * PITCH;
const uint PRODUCTS = TILE_ROWS * TILE_COLUMNS / 4u;
const uint ROOM = SLICE > PRODUCTS ? SLICE : PRODUCTS;
shared uvec4 s_slices[SUBGROUPS * ROOM];
// Sums of rows of A, then of columns of B.
shared int s_sums[TILE_ROWS + TILE_COLUMNS];

// An invocation's vectors along 16 lines are LINE_STEP lines apart.
const uint LINE_STEP = 32u / VECTORS;
const int READS = int(FRAGMENT / LINE_STEP);
// In a row-major B an invocation takes 16 rows of four columns. Their lines are not neighbours, so that
// invocations that store together use different banks.
const uint QUADS = TILE_COLUMNS / 4u;
const int QUAD_LINES = int(FRAGMENT / QUADS);

// The position of a column among the lines.
uint line_of(uint column) {
#ifdef K_CONTIGUOUS
    return column;
#else
    return column % 4u * QUADS + column / 4u;
#endif
}

// The sum at (i, j) of the tile.
int sum_of(Part p, uint i, uint j) {
    uint at = i * TILE_COLUMNS + line_of(j);
    int sum = 0;
    [[unroll]] for (uint s = 0u; s < SUBGROUPS; ++s)
        sum += int(s_slices[s * PRODUCTS + at / 4u][at % 4u]);
    if (HAS_CORRECTION) {
        int a_zero = lowered_zero_point(true, p.row + i);
        int b_zero = lowered_zero_point(false, p.column + j);
        int count = int(p.end - p.begin) * 16;
        sum -= b_zero * (s_sums[i] - count * a_zero) + a_zero * s_sums[TILE_ROWS + line_of(j)];
    }
    return sum;
}

void main() {
    Part p;
    if (!find_part(p)) return;
    uint lane = gl_SubgroupInvocationID;
    uint slice = gl_SubgroupID * ROOM;
    // Eight invocations store together. If a line has four vectors, they take two lines with
    // different banks.
    uint my_vector = lane % VECTORS;
    uint my_line = VECTORS == 4u ? lane / 4u % 2u * 4u + lane / 8u : lane / VECTORS;
    uint last = p.end - 1u;
    uint at = p.begin + gl_SubgroupID * VECTORS;
    const uint STEP = SUBGROUPS * VECTORS;

    uint a_from[READS];
    [[unroll]] for (int i = 0; i < READS; ++i)
        a_from[i] = row_begin(p.batch, p.row + my_line + uint(i) * LINE_STEP);
    uvec4 a_next[AHEAD][READS];
    // Past the end the last vectors are read again, and stored as 0.
#ifdef K_CONTIGUOUS
    uint b_vector = my_vector;
    const int B_READS = ACROSS * READS;
    uint b_from[B_READS];
    [[unroll]] for (int i = 0; i < B_READS; ++i)
        b_from[i] = column_begin(p.batch, p.column + my_line + uint(i) * LINE_STEP);
#define READ_B(ahead, first) \
    [[unroll]] for (int i = 0; i < B_READS; ++i) \
        b_next[ahead][i] = b_vectors[b_from[i] + min((first) + b_vector, last)];
#else
    uint b_vector = lane / QUADS;
    uint my_quad = lane % QUADS;
    const int B_READS = 4;
    uint b_from = columns_begin(p.batch, p.column + my_quad * 4u, 4u) / 4u;
    uint b_step = b_strides[1] / 4u;
#define READ_B(ahead, first) \
    [[unroll]] for (uint e = 0u; e < 16u; ++e) \
        b_next[ahead][e / 4u][e % 4u] = \
            b[b_from + (min((first) + b_vector, last) * 16u + e) * b_step];
#endif
    uvec4 b_next[AHEAD][B_READS];
#define READ(ahead, first) \
    READ_B(ahead, first) \
    [[unroll]] for (int i = 0; i < READS; ++i) \
        a_next[ahead][i] = a_vectors[a_from[i] + min((first) + my_vector, last)];
    [[unroll]] for (uint ahead = 0u; ahead < AHEAD; ++ahead) { READ(ahead, at + ahead * STEP) }
    FinishPair finish[PAIRS];
    find_finish(p, finish);

    for (uint i = gl_LocalInvocationIndex; i < TILE_ROWS + TILE_COLUMNS; i += INVOCATIONS)
        s_sums[i] = 0;
    Product products[ACROSS];
    [[unroll]] for (int j = 0; j < ACROSS; ++j) products[j] = Product(0);
    int a_sums[READS], b_sums[B_READS];
    [[unroll]] for (int i = 0; i < READS; ++i) a_sums[i] = 0;
    [[unroll]] for (int i = 0; i < B_READS; ++i) b_sums[i] = 0;
    // Stores and multiplies a slice, then reads the next one into the same registers. Vectors of B past
    // the end are multiplied by zeros of A, but must not be summed.
#ifdef K_CONTIGUOUS
#define SWAP(vectors)
#define PUT(vectors, j) \
    [[unroll]] for (int i = 0; i < READS; ++i) \
        s_slices[slice + (my_line + uint(i) * LINE_STEP) * PITCH + my_vector] = \
            vectors[j * READS + i];
// Not a loop of one pass, which takes 138 registers instead of 124 on an H200.
#define MULTIPLY_ALL(read) MULTIPLY(0, read(0))
#else
#define SWAP(vectors) \
    [[unroll]] for (int i = 0; i < 4; ++i) vectors[i] = transposed(vectors[i]); \
    vectors = uvec4[4](uvec4(vectors[0][0], vectors[1][0], vectors[2][0], vectors[3][0]), \
                       uvec4(vectors[0][1], vectors[1][1], vectors[2][1], vectors[3][1]), \
                       uvec4(vectors[0][2], vectors[1][2], vectors[2][2], vectors[3][2]), \
                       uvec4(vectors[0][3], vectors[1][3], vectors[2][3], vectors[3][3]));
#define PUT(vectors, j) \
    [[unroll]] for (int i = 0; i < QUAD_LINES; ++i) \
        s_slices[slice + (uint(i) * QUADS + my_quad) * PITCH + b_vector] = \
            vectors[j * QUAD_LINES + i];
#define MULTIPLY_ALL(read) \
    [[unroll]] for (uint ahead = 0u; ahead < AHEAD; ++ahead) MULTIPLY(ahead, read(ahead))
#endif
#define MULTIPLY(ahead, read) \
    { \
        uint first = at + ahead * STEP; \
        bool has_a = first + my_vector < p.end, has_b = first + b_vector < p.end; \
        [[unroll]] for (int i = 0; i < READS; ++i) { \
            uvec4 x = has_a ? a_next[ahead][i] ^ A_MASK : uvec4(0u); \
            s_slices[slice + (my_line + uint(i) * LINE_STEP) * PITCH + my_vector] = x; \
            if (ROW_SUMS) a_sums[i] += dot_product(x, uvec4(ONES)); \
        } \
        subgroupBarrier(); \
        RowFragment rows_of_a[FRAGMENTS]; \
        [[unroll]] for (uint k = 0u; k < FRAGMENTS; ++k) \
            coopMatLoad(rows_of_a[k], s_slices, slice + k * 2u, PITCH, \
                        gl_CooperativeMatrixLayoutRowMajor); \
        subgroupBarrier(); \
        uvec4 vectors[B_READS] = b_next[ahead]; \
        SWAP(vectors) \
        [[unroll]] for (int i = 0; i < B_READS; ++i) { \
            vectors[i] ^= B_MASK; \
            if (COLUMN_SUMS) b_sums[i] += dot_product(vectors[i], uvec4(has_b ? ONES : 0u)); \
        } \
        [[unroll]] for (int j = 0; j < ACROSS; ++j) { \
            PUT(vectors, j) \
            subgroupBarrier(); \
            if (j == ACROSS - 1) { read } \
            [[unroll]] for (uint k = 0u; k < FRAGMENTS; ++k) { \
                ColumnFragment columns_of_b; \
                coopMatLoad(columns_of_b, s_slices, slice + k * 2u, PITCH, \
                            gl_CooperativeMatrixLayoutColumnMajor); \
                products[j] = coopMatMulAdd(rows_of_a[k], columns_of_b, products[j]); \
            } \
            subgroupBarrier(); \
        } \
    }
#define READ_NEXT(ahead) READ(ahead, first + AHEAD * STEP)
#define READ_NONE(ahead)
    if (at < p.end) {
        for (; at + AHEAD * STEP < p.end; at += AHEAD * STEP) MULTIPLY_ALL(READ_NEXT)
        MULTIPLY_ALL(READ_NONE)
    }

    barrier();
    if (ROW_SUMS)
        [[unroll]] for (int i = 0; i < READS; ++i)
            atomicAdd(s_sums[my_line + uint(i) * LINE_STEP], a_sums[i]);
    if (COLUMN_SUMS)
        [[unroll]] for (int i = 0; i < B_READS; ++i)
#ifdef K_CONTIGUOUS
            atomicAdd(s_sums[TILE_ROWS + my_line + uint(i) * LINE_STEP], b_sums[i]);
#else
            atomicAdd(s_sums[TILE_ROWS + uint(i) * QUADS + my_quad], b_sums[i]);
#endif
    [[unroll]] for (int j = 0; j < ACROSS; ++j)
        coopMatStore(products[j], s_slices,
                     gl_SubgroupID * PRODUCTS + uint(j) * FRAGMENT / 4u, TILE_COLUMNS / 4u,
                     gl_CooperativeMatrixLayoutRowMajor);
    barrier();
    ivec2 sums[PAIRS];
    [[unroll]] for (uint i = 0u; i < PAIRS; ++i) {
        uint row = min(row_of_pair(p, i) - p.row, TILE_ROWS - 1u), column = column_of_pair(i);
        sums[i] = ivec2(sum_of(p, row, column), sum_of(p, row, column + 1u));
    }
    finish_sums(p, sums, finish);
}
