//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT DML_OPERATOR_MATRIX_MULTIPLY_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY
#version 450
#extension GL_GOOGLE_include_directive : require
const uint INVOCATIONS = 64u;
layout(local_size_x = INVOCATIONS) in;
const uint TILE_ROWS = 1u;
const uint TILE_COLUMNS = 2u * INVOCATIONS;
#define PARTIAL_BINDING 0
#include "include/matrix_multiply_integer_to_float.glsl"

// Finishes the sums of several dispatches of a long K. An invocation takes two neighbouring columns.
void main() {
    uint batch, row, column;
    if (!find_tile(batch, row, column)) return;
    finish_pair(batch, row, column + 2u * gl_LocalInvocationIndex, uvec2(0u), uvec2(0u));
}
