//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT DML_OPERATOR_MATRIX_MULTIPLY_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
const uint INVOCATIONS = 256u;
layout(local_size_x = INVOCATIONS) in;
#include "include/grid.glsl"
#include "include/bytes.glsl"

// Repacks a matrix of 8-bit elements for matrix units, and sums its rows: those of A, or of B transposed.
// K becomes contiguous and is padded with zeros to a multiple of 16. Elements become signed. A sum has a
// part for each `chunk` elements of K.

layout(binding = 0) readonly buffer Matrix { uint matrix[]; };
layout(binding = 1) readonly buffer MatrixVectors { uvec4 matrix_vectors[]; };
layout(binding = 2) writeonly buffer Repacked { uvec4 repacked[]; };
layout(binding = 3) writeonly buffer Sums { int sums[]; };

layout(push_constant) uniform Push {
    uint batches;
    uint rows;
    uint K;
    uint chunk;       // a multiple of BLOCK
    uint strides[3];  // batch, row, K
    uint pitch;       // bytes from repacked row to row: a multiple of 16
    uint is_signed;
    uint keeps_sums;
    uint matrix_offset;
    uint repacked_offset;
    uint sums_offset;
};

// A workgroup repacks blocks of 128 rows x 128 elements of K, in vectors of 16 elements.
const uint BLOCK = 128u;
const uint VECTORS = BLOCK / 16u;
const uint EACH = BLOCK * VECTORS / INVOCATIONS;
// A word of padding in each row avoids bank conflicts.
const uint PITCH = BLOCK / 4u + 1u;
shared uint s_block[BLOCK * PITCH];
shared int s_sums[BLOCK];

NEIGHBOURS(neighbours, matrix)

// 16 elements, of which ``count`` exist.
uvec4 elements(uint index, uint count) {
    if (count >= 16u && index % 16u == 0u) return matrix_vectors[index / 16u];
    uvec4 x = uvec4(0u);
    [[unroll]] for (uint w = 0u; w < 4u; ++w)
        if (count > w * 4u) x[w] = neighbours(index + w * 4u, count - w * 4u);
    return x;
}

// The part of a block that an invocation transposes: 16 rows x 4 elements of K.
uint block_row() {
    return (gl_LocalInvocationIndex / 64u * 2u + gl_LocalInvocationIndex % 2u) * 16u;
}
uint block_k() { return gl_LocalInvocationIndex / 2u % 32u * 4u; }

// Reads whole vectors. Positions beyond the edges are clamped, and their vectors are dropped.
void read_vectors(uint from, uint begin, uint end, uint row, out uvec4 read[4]) {
    uint at = from + min(row + block_row(), rows - 16u);
    [[unroll]] for (uint e = 0u; e < 4u; ++e)
        read[e] = matrix_vectors[(at + min(begin + block_k() + e, end - 1u) * strides[2]) /
                                 16u];
}

void read_parts(uint from, uint begin, uint end, uint row, out uvec4 read[4]) {
    uint x = row + block_row(), y = begin + block_k();
    [[unroll]] for (uint e = 0u; e < 4u; ++e)
        read[e] = y + e < end && x < rows
            ? elements(from + x + (y + e) * strides[2], rows - x) : uvec4(0u);
}

void transpose_block(uvec4 read[4]) {
    barrier();
    [[unroll]] for (uint c = 0u; c < 4u; ++c) {
        uvec4 words_of_rows = transposed(uvec4(read[0][c], read[1][c], read[2][c], read[3][c]));
        [[unroll]] for (uint w = 0u; w < 4u; ++w)
            s_block[(block_row() + c * 4u + w) * PITCH + block_k() / 4u] = words_of_rows[w];
    }
    barrier();
}

uvec4 read_row(uint from, uint begin, uint end, uint row) {
    uint index = from + row * strides[1] + begin * strides[2];
    uint count = begin < end ? end - begin : 0u;
    if (strides[2] == 1u) return elements(index, count);
    uvec4 x = uvec4(0u);
    for (uint e = 0u; e < min(count, 16u); ++e)
        x[e / 4u] |= (neighbours(index + e * strides[2], 1u) & 0xFFu) << (e % 4u * 8u);
    return x;
}

// Writes a block of repacked rows and adds to their sums.
void write_rows(bool transposes, uint batch, uint from, uint begin, uint end, uint filled, uint row,
                 inout int sum[EACH]) {
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        uint vector = gl_LocalInvocationIndex + i * INVOCATIONS;
        uint my_row = vector / VECTORS;
        uint at = vector % VECTORS * 16u;
        if (row + my_row >= rows || begin + at >= filled) continue;
        uint word = my_row * PITCH + at / 4u;
        uvec4 x = transposes ? uvec4(s_block[word], s_block[word + 1u], s_block[word + 2u],
                                 s_block[word + 3u])
                         : read_row(from, begin + at, end, row + my_row);
        if (is_signed == 0u) x ^= 0x80808080u;
        uint count = begin + at < end ? end - begin - at : 0u;
        if (count < 16u)
            [[unroll]] for (uint w = 0u; w < 4u; ++w)
                x[w] &= first_bytes(count > w * 4u ? count - w * 4u : 0u);
        repacked[(repacked_offset + (batch * rows + row + my_row) * pitch + begin + at) /
                 16u] = x;
        sum[i] += byte_sum(x.x) + byte_sum(x.y) + byte_sum(x.z) + byte_sum(x.w);
    }
}

void main() {
    uint blocks = (rows - 1u) / BLOCK + 1u;
    uint chunks = (K - 1u) / chunk + 1u;
    uint group = group_index();
    uint batch = group / (blocks * chunks);
    if (batch >= batches) return;
    uint part = group / blocks % chunks;
    uint row = group % blocks * BLOCK;
    uint from = matrix_offset + batch * strides[0];
    // The last chunk also writes the padding.
    uint end = min(K, (part + 1u) * chunk);
    uint filled = part + 1u < chunks ? end : pitch;
    bool transposes = strides[1] == 1u && strides[2] != 1u;

    if (gl_LocalInvocationIndex < BLOCK) s_sums[gl_LocalInvocationIndex] = 0;
    int sum[EACH];
    [[unroll]] for (uint i = 0u; i < EACH; ++i) sum[i] = 0;
    uint begin = part * chunk;
    if (!transposes) {
        for (; begin < filled; begin += BLOCK)
            write_rows(false, batch, from, begin, end, filled, row, sum);
    } else if (rows % 16u == 0u && from % 16u == 0u && strides[2] % 16u == 0u) {
        // The next block is read while this one is written.
        uvec4 read[4];
        read_vectors(from, begin, end, row, read);
        for (; begin < filled; begin += BLOCK) {
            transpose_block(read);
            read_vectors(from, begin + BLOCK, end, row, read);
            write_rows(true, batch, from, begin, end, filled, row, sum);
        }
    } else {
        for (; begin < filled; begin += BLOCK) {
            uvec4 read[4];
            read_parts(from, begin, end, row, read);
            transpose_block(read);
            write_rows(true, batch, from, begin, end, filled, row, sum);
        }
    }
    if (keeps_sums == 0u) return;
    barrier();
    [[unroll]] for (uint i = 0u; i < EACH; ++i)
        atomicAdd(s_sums[(gl_LocalInvocationIndex + i * INVOCATIONS) / VECTORS], sum[i]);
    barrier();
    uint mine = gl_LocalInvocationIndex;
    if (mine < BLOCK && row + mine < rows)
        sums[sums_offset + (part * batches + batch) * rows + row + mine] = s_sums[mine];
}
