//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT DML_OPERATOR_MATRIX_MULTIPLY_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY
//@ variants PATH: core dot
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef PATH_dot
#extension GL_EXT_spirv_intrinsics : require
#endif
const uint INVOCATIONS = 256u;
layout(local_size_x = INVOCATIONS) in;
const uint TILE_ROWS = 64u;
const uint TILE_COLUMNS = 64u;
const uint TILE_WORDS = 16u;
#include "include/matrix_multiply_integer_to_float.glsl"
#include "include/packed_k.glsl"

// A workgroup computes a 64 x 64 tile of the output, an invocation 4 x 4 of it, four products at once.
// The first invocations also sum one row of A or column of B each.
const uint BLOCK = 4u;

#ifdef PATH_dot
#include "include/dot_product.glsl"
#else
int dot_product(uint x_word, uint y_word) {
    int x = int(x_word);
    int y = int(y_word);
    return (x << 24 >> 24) * (y << 24 >> 24) + (x << 16 >> 24) * (y << 16 >> 24) +
           (x << 8 >> 24) * (y << 8 >> 24) + (x >> 24) * (y >> 24);
}
#endif

// A word of padding in each line avoids bank conflicts.
shared uint s_lines[LINES][TILE_WORDS + 1u];

void load_lines(Lines lines, uint to, uint begin) {
    if (lines.line_stride == 1u && lines.k_stride != 1u) {
        // Neighbouring lines are contiguous, so 4 x 4 elements are read and transposed.
        uint word = gl_LocalInvocationIndex / TILE_WORDS;
        uint line = gl_LocalInvocationIndex % TILE_WORDS * 4u;
        uvec4 words = uvec4(0u);
        for (uint e = 0u; e < 4u; ++e) {
            uint at = word * 4u + e;
            if (at < K - begin && line < lines.count)
                words[e] = neighbours(lines.of_a,
                                      lines.offset + line + (begin + at) * lines.k_stride,
                                      lines.count - line);
        }
        words = transposed(words);
        for (uint e = 0u; e < 4u; ++e) s_lines[to + line + e][word] = words[e];
        return;
    }
    for (uint e = gl_LocalInvocationIndex; e < 64u * TILE_WORDS; e += INVOCATIONS) {
        uint line = e / TILE_WORDS;
        uint word = e % TILE_WORDS;
        uint at = word * 4u;
        uint count = at < K - begin ? K - begin - at : 0u;
        s_lines[to + line][word] = packed_elements(lines, line, begin + at, count);
    }
}

void main() {
    uint batch, row, column;
    if (!find_tile(batch, row, column)) return;
    Lines a_lines = rows_from(batch, row);
    Lines b_lines = columns_from(batch, column);
    uint my_row = gl_LocalInvocationIndex / 16u * BLOCK;
    uint my_column = gl_LocalInvocationIndex % 16u * 2u;  // two columns, and two more 32 columns further
    uint my_line = gl_LocalInvocationIndex;

    int products[BLOCK][BLOCK];
    [[unroll]] for (uint i = 0u; i < BLOCK; ++i)
        [[unroll]] for (uint j = 0u; j < BLOCK; ++j) products[i][j] = 0;
    int line_sum = 0;

    uint tiles = (K - 1u) / (4u * TILE_WORDS) + 1u;
    for (uint tile = 0u; tile < tiles; ++tile) {
        barrier();
        load_lines(a_lines, 0u, tile * 4u * TILE_WORDS);
        load_lines(b_lines, TILE_ROWS, tile * 4u * TILE_WORDS);
        barrier();
        for (uint w = 0u; w < TILE_WORDS; ++w) {
            uint x[BLOCK], y[BLOCK];
            [[unroll]] for (uint i = 0u; i < BLOCK; ++i) x[i] = s_lines[my_row + i][w];
            [[unroll]] for (uint j = 0u; j < BLOCK; ++j)
                y[j] = s_lines[TILE_ROWS + my_column + j % 2u + j / 2u * 32u][w];
            [[unroll]] for (uint i = 0u; i < BLOCK; ++i)
                [[unroll]] for (uint j = 0u; j < BLOCK; ++j)
                    products[i][j] += dot_product(x[i], y[j]);
        }
        if (HAS_CORRECTION && my_line < LINES)
            for (uint w = 0u; w < TILE_WORDS; ++w) line_sum += byte_sum(s_lines[my_line][w]);
    }
    if (my_line < LINES) keep_line(my_line, row, column, line_sum);
    barrier();
    [[unroll]] for (uint i = 0u; i < BLOCK; ++i)
        [[unroll]] for (uint j = 0u; j < BLOCK; j += 2u)
            finish_products(batch, row, column, my_row + i, my_column + j * 16u, products[i][j],
                            products[i][j + 1u]);
}
