//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT DML_OPERATOR_MATRIX_MULTIPLY_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY
//@ variants T: b16 b32 ; TILE:
//@     square(rows=64, columns=64, block_rows=4, block_columns=4)
//@     flat(rows=4, columns=64, block_rows=1, block_columns=2)
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

// A workgroup computes a tile of the output, an invocation BLOCK_ROWS x BLOCK_COLUMNS of it, with 64-bit
// sums. Flat tiles are for few rows. Elements of any strides are copied to shared memory one by one, less
// their zero points (0 beyond the edges).
const uint TILE_ROWS = TILE_rows, BLOCK_ROWS = TILE_block_rows, BLOCK_COLUMNS = TILE_block_columns;
const uint TILE_COLUMNS = TILE_columns;
const uint TILE_K = 16u;
const uint INVOCATIONS = TILE_ROWS / BLOCK_ROWS * TILE_COLUMNS / BLOCK_COLUMNS;
layout(local_size_x = INVOCATIONS) in;
#include "include/elements.glsl"
#include "include/matrix_multiply_integer_to_float.glsl"

#if defined(T_b32)
// A 33-bit difference: the low word, and a word of its sign bits.
#define DIFFERENCE uvec2

uvec2 difference(uint x, uint zero, bool is_signed) {
    uint borrow;
    uint low = usubBorrow(x, zero, borrow);
    uint sign = 0u - borrow;
    if (is_signed) sign += uint(int(x) >> 31) - uint(int(zero) >> 31);
    return uvec2(low, sign);
}

uvec2 multiply_add(uvec2 sum, uvec2 x, uvec2 y) {
    uint high, low;
    umulExtended(x.x, y.x, high, low);
    return add64(sum, uvec2(low, high - (x.y & y.x) - (y.y & x.x)));
}
#else
#define DIFFERENCE int

int difference(uint x, uint zero, bool is_signed) {
    const int bits = int(ELEMENT_BITS);
    if (is_signed) return bitfieldExtract(int(x), 0, bits) - bitfieldExtract(int(zero), 0, bits);
    return int(x) - int(zero);
}

uvec2 multiply_add(uvec2 sum, int x, int y) {
    return add64(sum, multiply64(x, y));
}
#endif

// With a column of padding, invocations that fill a column use different banks.
shared DIFFERENCE s_a[TILE_K][TILE_ROWS + 1u];
shared DIFFERENCE s_b[TILE_K][TILE_COLUMNS + 1u];
shared uint s_a_zero[TILE_ROWS];
shared uint s_b_zero[TILE_COLUMNS];

// Neighbouring invocations read neighbours along the axis of the smaller stride.
uvec2 place_in_tile(uint element, uint width, uint line_stride, uint k_stride) {
    if (k_stride < line_stride) return uvec2(element / TILE_K, element % TILE_K);
    return uvec2(element % width, element / width);
}

void load_zero_points(uint row, uint column) {
    uint i = gl_LocalInvocationIndex;
    if (i < TILE_ROWS) {
        s_a_zero[i] = HAS_A_ZERO && i < rows - row
            ? LOAD_ELEMENT(a_zero, a_zero_offset + (row + i) * a_zero_stride) : 0u;
    }
    if (i < TILE_COLUMNS) {
        s_b_zero[i] = HAS_B_ZERO && i < columns - column
            ? LOAD_ELEMENT(b_zero, b_zero_offset + (column + i) * b_zero_stride) : 0u;
    }
}

void load_tiles(uint batch, uint row, uint column, uint begin) {
    uint from = a_offset + batch * a_strides[0] + row * a_strides[1] + begin * a_strides[2];
    for (uint e = gl_LocalInvocationIndex; e < TILE_ROWS * TILE_K; e += INVOCATIONS) {
        uvec2 at = place_in_tile(e, TILE_ROWS, a_strides[1], a_strides[2]);
        DIFFERENCE x = DIFFERENCE(0);
        if (at.x < rows - row && at.y < K - begin)
            x = difference(LOAD_ELEMENT(a, from + at.x * a_strides[1] + at.y * a_strides[2]),
                           s_a_zero[at.x], A_SIGNED);
        s_a[at.y][at.x] = x;
    }
    from = b_offset + batch * b_strides[0] + begin * b_strides[1] + column * b_strides[2];
    for (uint e = gl_LocalInvocationIndex; e < TILE_COLUMNS * TILE_K; e += INVOCATIONS) {
        uvec2 at = place_in_tile(e, TILE_COLUMNS, b_strides[2], b_strides[1]);
        DIFFERENCE x = DIFFERENCE(0);
        if (at.x < columns - column && at.y < K - begin)
            x = difference(LOAD_ELEMENT(b, from + at.x * b_strides[2] + at.y * b_strides[1]),
                           s_b_zero[at.x], B_SIGNED);
        s_b[at.y][at.x] = x;
    }
}

void main() {
    uint batch, row, column;
    if (!find_tile(batch, row, column)) return;
    // An invocation takes pairs of neighbouring columns. The pairs of all invocations alternate.
    const uint across = TILE_COLUMNS / BLOCK_COLUMNS;
    uint my_row = gl_LocalInvocationIndex / across * BLOCK_ROWS;
    uint my_column = gl_LocalInvocationIndex % across * 2u;

    uvec2 sums[BLOCK_ROWS][BLOCK_COLUMNS];
    [[unroll]] for (uint i = 0u; i < BLOCK_ROWS; ++i)
        [[unroll]] for (uint j = 0u; j < BLOCK_COLUMNS; ++j) sums[i][j] = uvec2(0u);

    load_zero_points(row, column);
    uint tiles = (K - 1u) / TILE_K + 1u;
    for (uint tile = 0u; tile < tiles; ++tile) {
        barrier();
        load_tiles(batch, row, column, tile * TILE_K);
        barrier();
        for (uint k = 0u; k < TILE_K; ++k) {
            DIFFERENCE x[BLOCK_ROWS], y[BLOCK_COLUMNS];
            [[unroll]] for (uint i = 0u; i < BLOCK_ROWS; ++i) x[i] = s_a[k][my_row + i];
            [[unroll]] for (uint j = 0u; j < BLOCK_COLUMNS; ++j)
                y[j] = s_b[k][my_column + j % 2u + j / 2u * 2u * across];
            [[unroll]] for (uint i = 0u; i < BLOCK_ROWS; ++i)
                [[unroll]] for (uint j = 0u; j < BLOCK_COLUMNS; ++j)
                    sums[i][j] = multiply_add(sums[i][j], x[i], y[j]);
        }
    }
    [[unroll]] for (uint i = 0u; i < BLOCK_ROWS; ++i)
        [[unroll]] for (uint j = 0u; j < BLOCK_COLUMNS; j += 2u)
            finish_pair(batch, row + my_row + i, column + my_column + j * across, sums[i][j],
                        sums[i][j + 1u]);
}
