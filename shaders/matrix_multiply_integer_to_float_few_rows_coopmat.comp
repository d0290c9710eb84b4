//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT
//@ variants B: along along32 across32 across64
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

// Subgroups of 32 take turns along the depth, each through slices in shared memory of its own: none
// waits for another before the end.
const uint TILE_ROWS = 16u;
// Slices of VECTORS along the depth, AHEAD of them on their way at a time.
#if defined(B_along)
#define ALONG
const uint TILE_COLUMNS = 16u, SUBGROUPS = 4u, VECTORS = 8u, AHEAD = 2u;
#elif defined(B_along32)
#define ALONG
const uint TILE_COLUMNS = 32u, SUBGROUPS = 2u, VECTORS = 4u, AHEAD = 4u;
#elif defined(B_across32)
const uint TILE_COLUMNS = 32u, SUBGROUPS = 8u, VECTORS = 4u, AHEAD = 2u;
#else
const uint TILE_COLUMNS = 64u, SUBGROUPS = 8u, VECTORS = 2u, AHEAD = 2u;
#endif
const uint INVOCATIONS = SUBGROUPS * 32u;
layout(local_size_x = INVOCATIONS) in;
#include "include/few_rows.glsl"

const uint FRAGMENT = 16u;
const uint FRAGMENT_VECTORS = 2u;
const int ACROSS = int(TILE_COLUMNS / FRAGMENT);
#define Product coopmat<int, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseAccumulator>
#define RowFragment coopmat<int8_t, gl_ScopeSubgroup, FRAGMENT, 32, gl_MatrixUseA>
#define ColumnFragment coopmat<int8_t, gl_ScopeSubgroup, 32, FRAGMENT, gl_MatrixUseB>

// A slice: VECTORS of each line, rows of A before columns of B. One vector more apart, eight lines
// meet all banks. In the end the products pass through here, four of a row to a vector.
const uint PITCH = VECTORS + 1u;
const uint LINES = TILE_ROWS + TILE_COLUMNS;
const uint SLICE = LINES * PITCH;
const uint PRODUCTS = TILE_ROWS * TILE_COLUMNS / 4u;
shared uvec4 s_slices[SUBGROUPS * (SLICE > PRODUCTS ? SLICE : PRODUCTS)];
shared int s_sums[LINES];

// Vectors of an invocation along the lines: LINE_STEP lines apart.
const uint LINE_STEP = 32u / VECTORS;
const int ROW_READS = int(TILE_ROWS / LINE_STEP);
const int COLUMN_READS = int(TILE_COLUMNS / LINE_STEP);
// In a row-major B an invocation takes 16 rows of four columns. Their lines lie apart, so that
// invocations that store together meet different banks.
const uint QUADS = TILE_COLUMNS / 4u;

uint line_of(uint column) {
#ifdef ALONG
    return TILE_ROWS + column;
#else
    return TILE_ROWS + column % 4u * QUADS + column / 4u;
#endif
}

// What element (i, j) of the tile at (row, column) is.
uvec2 sum_of(uint row, uint column, uint i, uint j) {
    uint line = line_of(j);
    uint at = i * TILE_COLUMNS + line - TILE_ROWS;
    int sum = 0;
    [[unroll]] for (uint s = 0u; s < SUBGROUPS; ++s)
        sum += int(s_slices[s * PRODUCTS + at / 4u][at % 4u]);
    if (HAS_CORRECTION) {
        int p = lowered_zero_point(true, row + i);
        int q = lowered_zero_point(false, column + j);
        sum -= q * (s_sums[i] - int(depth) * p) + p * s_sums[line];
    }
    return widen(sum);
}

void main() {
    const uint row = 0u;
    uint batch, column;
    if (!find_columns(batch, column)) return;
    uint lane = gl_SubgroupInvocationID;
    uint slice = gl_SubgroupID * SLICE;
    // Eight invocations store together: where a line has four vectors, they take two lines whose
    // banks complete one another.
    uint my_vector = lane % VECTORS;
    uint my_line = VECTORS == 4u ? lane / 4u % 2u * 4u + lane / 8u : lane / VECTORS;
    uint vectors = depth / 16u;
    uint at = gl_SubgroupID * VECTORS;
    const uint STEP = SUBGROUPS * VECTORS;

    uint a_from[ROW_READS];
    [[unroll]] for (int i = 0; i < ROW_READS; ++i)
        a_from[i] = row_begin(batch, row + my_line + uint(i) * LINE_STEP);
    uvec4 a_next[AHEAD][ROW_READS], b_next[AHEAD][COLUMN_READS];
    // Past the end the last vectors are read again, and count as 0 when they are stored.
#ifdef ALONG
    uint b_vector = my_vector;
    uint b_from[COLUMN_READS];
    [[unroll]] for (int i = 0; i < COLUMN_READS; ++i)
        b_from[i] = column_begin(batch, column + my_line + uint(i) * LINE_STEP);
#define READ_B(ahead, first) \
    [[unroll]] for (int i = 0; i < COLUMN_READS; ++i) \
        b_next[ahead][i] = b_vectors[b_from[i] + min((first) + b_vector, vectors - 1u)];
#else
    uint b_vector = lane / QUADS;
    uint my_quad = lane % QUADS;
    uint b_from = columns_begin(batch, column + my_quad * 4u) / 4u;
    uint b_step = b_strides[1] / 4u;
#define READ_B(ahead, first) \
    [[unroll]] for (uint e = 0u; e < 16u; ++e) \
        b_next[ahead][e / 4u][e % 4u] = \
            b[b_from + (min((first) + b_vector, vectors - 1u) * 16u + e) * b_step];
#endif
#define READ(ahead, first) \
    READ_B(ahead, first) \
    [[unroll]] for (int i = 0; i < ROW_READS; ++i) \
        a_next[ahead][i] = a_vectors[a_from[i] + min((first) + my_vector, vectors - 1u)];
    [[unroll]] for (uint ahead = 0u; ahead < AHEAD; ++ahead) { READ(ahead, at + ahead * STEP) }

    for (uint i = gl_LocalInvocationIndex; i < LINES; i += INVOCATIONS) s_sums[i] = 0;
    Product products[ACROSS];
    [[unroll]] for (int j = 0; j < ACROSS; ++j) products[j] = Product(0);
    int a_sums[ROW_READS], b_sums[COLUMN_READS];
    [[unroll]] for (int i = 0; i < ROW_READS; ++i) a_sums[i] = 0;
    [[unroll]] for (int i = 0; i < COLUMN_READS; ++i) b_sums[i] = 0;
    for (; at < vectors; at += AHEAD * STEP) {
        [[unroll]] for (uint ahead = 0u; ahead < AHEAD; ++ahead) {
            uint first = at + ahead * STEP;
            bool has_a = first + my_vector < vectors, has_b = first + b_vector < vectors;
            [[unroll]] for (int i = 0; i < ROW_READS; ++i) {
                uvec4 x = has_a ? a_next[ahead][i] ^ A_MASK : uvec4(0u);
                s_slices[slice + (my_line + uint(i) * LINE_STEP) * PITCH + my_vector] = x;
                if (ROW_SUMS) a_sums[i] += dot_product(x, uvec4(ONES));
            }
#ifndef ALONG
            uvec4 quads[4];
            [[unroll]] for (int i = 0; i < 4; ++i) quads[i] = transposed(b_next[ahead][i]);
#endif
            [[unroll]] for (int i = 0; i < COLUMN_READS; ++i) {
#ifdef ALONG
                uint line = TILE_ROWS + my_line + uint(i) * LINE_STEP;
                uvec4 y = b_next[ahead][i];
#else
                uint line = TILE_ROWS + uint(i) * QUADS + my_quad;
                uvec4 y = uvec4(quads[0][i], quads[1][i], quads[2][i], quads[3][i]);
#endif
                y = has_b ? y ^ B_MASK : uvec4(0u);
                s_slices[slice + line * PITCH + b_vector] = y;
                if (COLUMN_SUMS) b_sums[i] += dot_product(y, uvec4(ONES));
            }
            subgroupBarrier();
            READ(ahead, first + AHEAD * STEP)
            [[unroll]] for (uint k = 0u; k < VECTORS; k += FRAGMENT_VECTORS) {
                RowFragment x;
                coopMatLoad(x, s_slices, slice + k, PITCH, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int j = 0; j < ACROSS; ++j) {
                    ColumnFragment y;
                    coopMatLoad(y, s_slices, slice + (TILE_ROWS + uint(j) * FRAGMENT) * PITCH + k,
                                PITCH, gl_CooperativeMatrixLayoutColumnMajor);
                    products[j] = coopMatMulAdd(x, y, products[j]);
                }
            }
            subgroupBarrier();
        }
    }

    barrier();
    if (ROW_SUMS)
        [[unroll]] for (int i = 0; i < ROW_READS; ++i)
            atomicAdd(s_sums[my_line + uint(i) * LINE_STEP], a_sums[i]);
    if (COLUMN_SUMS)
        [[unroll]] for (int i = 0; i < COLUMN_READS; ++i)
#ifdef ALONG
            atomicAdd(s_sums[TILE_ROWS + my_line + uint(i) * LINE_STEP], b_sums[i]);
#else
            atomicAdd(s_sums[TILE_ROWS + uint(i) * QUADS + my_quad], b_sums[i]);
#endif
    [[unroll]] for (int j = 0; j < ACROSS; ++j)
        coopMatStore(products[j], s_slices,
                     gl_SubgroupID * PRODUCTS + uint(j) * FRAGMENT / 4u, TILE_COLUMNS / 4u,
                     gl_CooperativeMatrixLayoutRowMajor);
    barrier();
    for (uint first = gl_LocalInvocationIndex * 2u; first < TILE_ROWS * TILE_COLUMNS;
         first += INVOCATIONS * 2u) {
        uint i = first / TILE_COLUMNS, j = first % TILE_COLUMNS;
        finish_pair(batch, row + i, column + j, sum_of(row, column, i, j),
                    sum_of(row, column, i, j + 1u));
    }
}
