//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT DML_OPERATOR_MATRIX_MULTIPLY_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY
//@ variants ROWS: r16 r32
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

// A row-major B is read fastest if a subgroup reads 128 bytes of a row at once. So each subgroup reads 16
// rows of 128 columns of the workgroup's next slice of K, and transposes them into shared memory. From
// there it multiplies 16 columns by the whole slice, so that no sums are added up within the workgroup.
#ifdef ROWS_r16
const uint TILE_ROWS = 16u;
#else
const uint TILE_ROWS = 32u;
#define ROW_TILES
#endif
const uint TILE_COLUMNS = 128u;
const uint SUBGROUPS = 8u;
const uint INVOCATIONS = SUBGROUPS * 32u;
layout(local_size_x = INVOCATIONS) in;
#define SPLIT_VECTORS 16u
#include "include/few_rows.glsl"
layout(binding = 8) readonly buffer APairs { uvec2 a_pairs[]; };

const uint FRAGMENT = 16u;
const uint DOWN = TILE_ROWS / FRAGMENT;
#define Product coopmat<int, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseAccumulator>
#define RowFragment coopmat<int8_t, gl_ScopeSubgroup, FRAGMENT, 32, gl_MatrixUseA>
#define ColumnFragment coopmat<int8_t, gl_ScopeSubgroup, 32, FRAGMENT, gl_MatrixUseB>

// A vector of K for each subgroup; two slices are read at a time.
const uint VECTORS = SUBGROUPS;
const uint AHEAD = 2u;
// Rows of A before columns of B. A vector of padding avoids bank conflicts.
const uint PITCH = VECTORS + 1u;
const uint SUM_PITCH = TILE_COLUMNS / 4u + 1u;  // at the end shared memory holds the sums
shared uvec4 s_slice[(TILE_ROWS + TILE_COLUMNS) * PITCH];
// Sums of rows of A, then of columns of B.
shared int s_sums[TILE_ROWS + TILE_COLUMNS];

// An invocation reads 16 columns of four rows. Their lines are not neighbours, so that invocations that
// store together use different banks.
const uint COLUMNS = 16u;
const uint GROUPS = TILE_COLUMNS / COLUMNS;

// The position of a column among the rows and columns that are stored (lines).
uint line_of(uint column) { return column % COLUMNS * GROUPS + column / COLUMNS; }

// The sum at (i, j) of the tile.
int sum_of(Part p, uint i, uint j) {
    uint at = line_of(j);
    int sum = int(s_slice[i * SUM_PITCH + at / 4u][at % 4u]);
    if (HAS_CORRECTION) {
        int a_zero = lowered_zero_point(true, p.row + i);
        int b_zero = lowered_zero_point(false, p.column + j);
        int count = int(p.end - p.begin) * 16;
        sum -= b_zero * (s_sums[i] - count * a_zero) + a_zero * s_sums[TILE_ROWS + j];
    }
    return sum;
}

void main() {
    Part p;
    if (!find_part(p)) return;
    uint me = gl_LocalInvocationIndex;
    uint part = gl_SubgroupID, group = me % GROUPS, quad = me % 32u / GROUPS;
    uint last = p.end - 1u;

    // Each invocation reads half a vector of A, of every 16th row.
    uint a_half = me % (2u * VECTORS), a_line = me / (2u * VECTORS);
    uint a_from[DOWN];
    [[unroll]] for (uint d = 0u; d < DOWN; ++d)
        a_from[d] = row_begin(p.batch, p.row + a_line + d * FRAGMENT) * 2u + a_half % 2u;
    uint b_from = columns_begin(p.batch, p.column + group * COLUMNS, COLUMNS) / COLUMNS;
    uint b_step = b_strides[1] / COLUMNS;
    uvec2 a_next[AHEAD][DOWN];
    uvec4 b_next[AHEAD][4];
    // Four words are transposed at a time. Then each has four rows of a column. Past the end the last
    // vectors are read again, and stored as 0.
#define READ(ahead, first) \
    { \
        uint from = b_from + (min((first) + part, last) * 16u + quad * 4u) * b_step; \
        [[unroll]] for (uint e = 0u; e < 4u; ++e) { \
            uvec4 columns_of_row = b_vectors[from + e * b_step]; \
            [[unroll]] for (uint j = 0u; j < 4u; ++j) b_next[ahead][j][e] = columns_of_row[j]; \
        } \
        [[unroll]] for (uint d = 0u; d < DOWN; ++d) \
            a_next[ahead][d] = a_pairs[a_from[d] + min((first) + a_half / 2u, last) * 2u]; \
    }
    [[unroll]] for (uint ahead = 0u; ahead < AHEAD; ++ahead)
        READ(ahead, p.begin + ahead * VECTORS)
    if (HAS_CORRECTION)
        for (uint i = me; i < TILE_ROWS + TILE_COLUMNS; i += INVOCATIONS) s_sums[i] = 0;
    Product products[DOWN];
    int a_sums[DOWN], b_sums[COLUMNS];
    [[unroll]] for (uint d = 0u; d < DOWN; ++d) {
        products[d] = Product(0);
        a_sums[d] = 0;
    }
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) b_sums[c] = 0;
    // Stores and multiplies a slice, then reads the next one into the same registers. Vectors of B past
    // the end are multiplied by zeros of A, but must not be summed.
#define MULTIPLY(ahead, read) \
    { \
        uint first = at + ahead * VECTORS; \
        uvec2 x[DOWN]; \
        [[unroll]] for (uint d = 0u; d < DOWN; ++d) { \
            x[d] = first + a_half / 2u < p.end ? a_next[ahead][d] ^ A_MASK : uvec2(0u); \
            if (ROW_SUMS) a_sums[d] += dot_product(x[d].x, ONES) + dot_product(x[d].y, ONES); \
        } \
        uvec4 y[4] = b_next[ahead]; \
        uint ones = first + part < p.end ? ONES : 0u; \
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) { \
            if (c % 4u == 0u) y[c / 4u] = transposed(y[c / 4u]) ^ B_MASK; \
            if (COLUMN_SUMS) b_sums[c] += dot_product(y[c / 4u][c % 4u], ones); \
        } \
        barrier(); \
        [[unroll]] for (uint d = 0u; d < DOWN; ++d) { \
            uint a_at = (a_line + d * FRAGMENT) * PITCH + a_half / 2u; \
            s_slice[a_at][a_half % 2u * 2u] = x[d].x; \
            s_slice[a_at][a_half % 2u * 2u + 1u] = x[d].y; \
        } \
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) \
            s_slice[(TILE_ROWS + c * GROUPS + group) * PITCH + part][quad] = y[c / 4u][c % 4u]; \
        read \
        barrier(); \
        [[unroll]] for (uint k = 0u; k < VECTORS; k += 2u) { \
            RowFragment rows_of_a[DOWN]; \
            [[unroll]] for (uint d = 0u; d < DOWN; ++d) \
                coopMatLoad(rows_of_a[d], s_slice, d * FRAGMENT * PITCH + k, PITCH, \
                            gl_CooperativeMatrixLayoutRowMajor); \
            ColumnFragment columns_of_b; \
            coopMatLoad(columns_of_b, s_slice, (TILE_ROWS + part * FRAGMENT) * PITCH + k, PITCH, \
                        gl_CooperativeMatrixLayoutColumnMajor); \
            [[unroll]] for (uint d = 0u; d < DOWN; ++d) \
                products[d] = coopMatMulAdd(rows_of_a[d], columns_of_b, products[d]); \
        } \
    }
    uint at = p.begin;
    // The last slices read nothing ahead.
    for (; at + AHEAD * VECTORS < p.end; at += AHEAD * VECTORS)
        [[unroll]] for (uint ahead = 0u; ahead < AHEAD; ++ahead)
            MULTIPLY(ahead, READ(ahead, at + (ahead + AHEAD) * VECTORS))
    [[unroll]] for (uint ahead = 0u; ahead < AHEAD; ++ahead) MULTIPLY(ahead, )

    barrier();
    if (ROW_SUMS)
        [[unroll]] for (uint d = 0u; d < DOWN; ++d)
            atomicAdd(s_sums[a_line + d * FRAGMENT], a_sums[d]);
    if (COLUMN_SUMS)
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
            atomicAdd(s_sums[TILE_ROWS + group * COLUMNS + c], b_sums[c]);
    [[unroll]] for (uint d = 0u; d < DOWN; ++d)
        coopMatStore(products[d], s_slice, d * FRAGMENT * SUM_PITCH + part * FRAGMENT / 4u,
                     SUM_PITCH, gl_CooperativeMatrixLayoutRowMajor);
    barrier();
    ivec2 sums[PAIRS];
    [[unroll]] for (uint i = 0u; i < PAIRS; ++i) {
        uint row = row_of_pair(p, i) - p.row, column = column_of_pair(i);
        sums[i] = ivec2(sum_of(p, row, column), sum_of(p, row, column + 1u));
    }
    // Read last: earlier, scales would delay the rows of B.
    FinishPair finish[PAIRS];
    find_finish(p, finish);
    finish_sums(p, sums, finish);
}
