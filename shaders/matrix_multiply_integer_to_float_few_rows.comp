//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT
//@ variants B: along across; ROWS: r1 r4 r8
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require

// For the few rows of A that a vector makes, all that counts is how fast B is read: every
// invocation has several vectors of 16 elements on their way, and A comes out of the cache.
#if defined(ROWS_r1)
const uint TILE_ROWS = 1u;
#elif defined(ROWS_r4)
const uint TILE_ROWS = 4u;
#else
const uint TILE_ROWS = 8u;
#endif
const uint INVOCATIONS = 256u;
layout(local_size_x = INVOCATIONS) in;
#ifdef B_along
const uint TILE_COLUMNS = 8u;
#else
const uint TILE_COLUMNS = 32u;
#endif
#define SPECIALIZED
#include "include/matrix_multiply_integer_to_float.glsl"
#include "include/bytes.glsl"
#include "include/lowered.glsl"
#include "include/dot_product.glsl"

layout(binding = 9) readonly buffer AVectors { uvec4 a_vectors[]; };
layout(binding = 10) readonly buffer BVectors { uvec4 b_vectors[]; };

const uint A_MASK = A_SIGNED ? 0u : 0x80808080u;
const uint B_MASK = B_SIGNED ? 0u : 0x80808080u;

// Rows past the last repeat it.
uint row_offset(uint batch, uint row) {
    return a_offset + batch * a_strides[0] + min(row, rows - 1u) * a_strides[1];
}

// An invocation's part of a sum, less its part of what zero points p and q take away.
int corrected(int product, int row_sum, int column_sum, uint count, int p, int q) {
    return HAS_CORRECTION ? product - q * (row_sum - int(count) * p) - p * column_sum : product;
}

#ifdef B_along
// A team of 32 invocations takes a column; they lie along the depth.
const uint TEAM = 32u;
const uint UNROLLED = TILE_ROWS == 1u ? 8u : 4u;
shared int s_parts[TILE_ROWS][TILE_COLUMNS * (TEAM + 1u)];

void main() {
    uint batch, row, column;
    if (!find_tile(batch, row, column)) return;
    uint team = gl_LocalInvocationIndex / TEAM;
    uint lane = gl_LocalInvocationIndex % TEAM;
    uint vectors = depth / 16u;
    uint a_from[TILE_ROWS];
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) a_from[r] = row_offset(batch, row + r) / 16u;
    uint b_from = (b_offset + batch * b_strides[0] +
                   min(column + team, columns - 1u) * b_strides[2]) / 16u;
    // What the end needs is on its way from the beginning.
    uint pair = min(gl_LocalInvocationIndex, TILE_ROWS * TILE_COLUMNS / 2u - 1u);
    uint my_row = pair / (TILE_COLUMNS / 2u);
    uint my_column = pair % (TILE_COLUMNS / 2u) * 2u;
    Finish finish = finish_at(batch, row + my_row, column + my_column);
    Finish next_finish = finish_at(batch, row + my_row, column + my_column + 1u);
    int p[TILE_ROWS];
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r)
        p[r] = HAS_CORRECTION ? lowered_zero_point(true, row + r) : 0;
    int q = HAS_CORRECTION ? lowered_zero_point(false, column + team) : 0;

    int products[TILE_ROWS], row_sums[TILE_ROWS];
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) products[r] = row_sums[r] = 0;
    int column_sum = 0;
    uint at = lane;
#define ADD(vector, place) \
    { \
        uvec4 y = (vector) ^ B_MASK; \
        if (COLUMN_SUMS) column_sum += dot_product(y, uvec4(ONES)); \
        [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) { \
            uvec4 x = a_vectors[a_from[r] + place] ^ A_MASK; \
            products[r] += dot_product(x, y); \
            if (ROW_SUMS) row_sums[r] += dot_product(x, uvec4(ONES)); \
        } \
    }
    for (; at + (UNROLLED - 1u) * TEAM < vectors; at += UNROLLED * TEAM) {
        uvec4 read[UNROLLED];
        [[unroll]] for (uint u = 0u; u < UNROLLED; ++u) read[u] = b_vectors[b_from + at + u * TEAM];
        [[unroll]] for (uint u = 0u; u < UNROLLED; ++u) ADD(read[u], at + u * TEAM)
    }
    for (; at < vectors; at += TEAM) ADD(b_vectors[b_from + at], at)
    uint count = (at - lane) / TEAM * 16u;
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r)
        s_parts[r][team * (TEAM + 1u) + lane] =
            corrected(products[r], row_sums[r], column_sum, count, p[r], q);
    barrier();
    if (gl_LocalInvocationIndex > pair) return;
    int sum = 0, next = 0;
    for (uint i = 0u; i < TEAM; ++i) {
        sum += s_parts[my_row][my_column * (TEAM + 1u) + i];
        next += s_parts[my_row][(my_column + 1u) * (TEAM + 1u) + i];
    }
    finish_pair(batch, row + my_row, column + my_column, widen(sum), widen(next), finish,
                next_finish);
}
#else
// A pair of invocations takes 32 columns of four rows of B at a time, and turns them around; 128
// pairs share the depth.
const uint TEAMS = INVOCATIONS / 2u;
const uint UNROLLED = TILE_ROWS == 1u ? 2u : 1u;
const uint PITCH = TILE_COLUMNS + 1u;
shared int s_parts[TEAMS * PITCH];

void main() {
    uint batch, row, column;
    if (!find_tile(batch, row, column)) return;
    uint team = gl_LocalInvocationIndex / 2u;
    uint my_column = gl_LocalInvocationIndex % 2u * 16u;
    uint a_from[TILE_ROWS];
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) a_from[r] = row_offset(batch, row + r) / 4u;
    // Vectors past the last column repeat the last.
    uint b_from = (b_offset + batch * b_strides[0] + min(column + my_column, columns - 16u)) / 16u;
    uint b_step = b_strides[1] / 16u;
    int products[TILE_ROWS][16], column_sums[16], row_sums[TILE_ROWS];
    [[unroll]] for (uint c = 0u; c < 16u; ++c) {
        column_sums[c] = 0;
        [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) products[r][c] = 0;
    }
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) row_sums[r] = 0;
    uint quads = depth / 4u;
    uint at = team;
    uvec4 next_y[UNROLLED][4];
    // What is read next is on its way while this is multiplied; past the end the last is read again.
#define READ_NEXT \
    [[unroll]] for (uint u = 0u; u < UNROLLED; ++u) \
        [[unroll]] for (uint e = 0u; e < 4u; ++e) \
            next_y[u][e] = b_vectors[b_from + (min(at + u * TEAMS, quads - 1u) * 4u + e) * b_step];
    READ_NEXT
    int p[TILE_ROWS];
    int q[16];
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r)
        p[r] = HAS_CORRECTION ? lowered_zero_point(true, row + r) : 0;
    [[unroll]] for (uint c = 0u; c < 16u; ++c)
        q[c] = ROW_SUMS ? lowered_zero_point(false, column + my_column + c) : 0;
    uint count = 0u;
    while (at < quads) {
        uint place = at;
        uvec4 y[UNROLLED][4] = next_y;
        at += UNROLLED * TEAMS;
        READ_NEXT
        [[unroll]] for (uint u = 0u; u < UNROLLED; ++u) {
            bool exists = place + u * TEAMS < quads;
            count += exists ? 4u : 0u;
            uint x[TILE_ROWS];
            [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) {
                x[r] = a[a_from[r] + min(place + u * TEAMS, quads - 1u)];
                x[r] = exists ? x[r] ^ A_MASK : 0u;
                if (ROW_SUMS) row_sums[r] += dot_product(x[r], ONES);
            }
            [[unroll]] for (uint w = 0u; w < 4u; ++w) {
                uvec4 turned =
                    transposed(uvec4(y[u][0][w], y[u][1][w], y[u][2][w], y[u][3][w])) ^ B_MASK;
                [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                    if (COLUMN_SUMS && exists)
                        column_sums[w * 4u + c] += dot_product(turned[c], ONES);
                    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r)
                        products[r][w * 4u + c] += dot_product(x[r], turned[c]);
                }
            }
        }
    }
    [[unroll]] for (uint r = 0u; r < TILE_ROWS; ++r) {
        barrier();
        [[unroll]] for (uint c = 0u; c < 16u; ++c)
            s_parts[team * PITCH + my_column + c] =
                corrected(products[r][c], row_sums[r], column_sums[c], count, p[r], q[c]);
        barrier();
        // Eight invocations take a column.
        uint mine = gl_LocalInvocationIndex % TILE_COLUMNS;
        uint part = gl_LocalInvocationIndex / TILE_COLUMNS;
        int sum = 0;
        for (uint i = part; i < TEAMS; i += INVOCATIONS / TILE_COLUMNS)
            sum += s_parts[i * PITCH + mine];
        barrier();
        s_parts[part * PITCH + mine] = sum;
        barrier();
        if (gl_LocalInvocationIndex < TILE_COLUMNS / 2u) {
            uint pair = gl_LocalInvocationIndex * 2u;
            int left = 0, right = 0;
            for (uint i = 0u; i < INVOCATIONS / TILE_COLUMNS; ++i) {
                left += s_parts[i * PITCH + pair];
                right += s_parts[i * PITCH + pair + 1u];
            }
            finish_pair(batch, row + r, column + pair, widen(left), widen(right));
        }
    }
}
#endif
