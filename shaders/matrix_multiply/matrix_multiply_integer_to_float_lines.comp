//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT DML_OPERATOR_MATRIX_MULTIPLY_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
const uint INVOCATIONS = 256u;
layout(local_size_x = INVOCATIONS) in;
#include "include/grid.glsl"
#include "include/bytes.glsl"

// Prepares a matrix of 8-bit elements for the matrix units: its lines (rows of A, columns of B)
// one after another, each with the depth contiguous and filled up with zeros to a multiple of 16,
// as signed numbers. And sums of the lines, each in parts of `chunk` elements of the depth.

layout(binding = 0) readonly buffer Matrix { uint matrix[]; };
layout(binding = 1) readonly buffer MatrixVectors { uvec4 matrix_vectors[]; };
layout(binding = 2) writeonly buffer Prepared { uvec4 prepared[]; };
layout(binding = 3) writeonly buffer Sums { int sums[]; };

layout(push_constant) uniform Push {
    uint batches;
    uint lines;
    uint depth;
    uint chunk;       // a multiple of BLOCK
    uint strides[3];  // batch, line, depth
    uint pitch;       // of prepared lines: a multiple of 16, at least the depth
    uint is_signed;
    uint keeps_sums;
    uint matrix_offset;
    uint prepared_offset;
    uint sums_offset;
};

// A workgroup goes through blocks of 128 lines x 128 elements, 16 elements to an access.
const uint BLOCK = 128u;
const uint VECTORS = BLOCK / 16u;
const uint EACH = BLOCK * VECTORS / INVOCATIONS;
// One more word in a line than there are elements for: no bank conflicts.
const uint PITCH = BLOCK / 4u + 1u;
shared uint s_block[BLOCK * PITCH];
shared int s_sums[BLOCK];

NEIGHBOURS(neighbours, matrix)

// 16 elements in their order, of which ``count`` exist.
uvec4 elements(uint index, uint count) {
    if (count >= 16u && index % 16u == 0u) return matrix_vectors[index / 16u];
    uvec4 x = uvec4(0u);
    [[unroll]] for (uint w = 0u; w < 4u; ++w)
        if (count > w * 4u) x[w] = neighbours(index + w * 4u, count - w * 4u);
    return x;
}

// The part of a block that an invocation turns around: 16 lines x 4 elements of the depth.
uint across_line() {
    return (gl_LocalInvocationIndex / 64u * 2u + gl_LocalInvocationIndex % 2u) * 16u;
}
uint across_depth() { return gl_LocalInvocationIndex / 2u % 32u * 4u; }

// Whole vectors. Beyond the edges stands what is near: none of it is kept.
void read_vectors(uint from, uint begin, uint end, uint line, out uvec4 read[4]) {
    uint at = from + min(line + across_line(), lines - 16u);
    [[unroll]] for (uint e = 0u; e < 4u; ++e)
        read[e] = matrix_vectors[(at + min(begin + across_depth() + e, end - 1u) * strides[2]) /
                                 16u];
}

void read_parts(uint from, uint begin, uint end, uint line, out uvec4 read[4]) {
    uint x = line + across_line(), y = begin + across_depth();
    [[unroll]] for (uint e = 0u; e < 4u; ++e)
        read[e] = y + e < end && x < lines
            ? elements(from + x + (y + e) * strides[2], lines - x) : uvec4(0u);
}

void turn_around(uvec4 read[4]) {
    barrier();
    [[unroll]] for (uint c = 0u; c < 4u; ++c) {
        uvec4 turned = transposed(uvec4(read[0][c], read[1][c], read[2][c], read[3][c]));
        [[unroll]] for (uint w = 0u; w < 4u; ++w)
            s_block[(across_line() + c * 4u + w) * PITCH + across_depth() / 4u] = turned[w];
    }
    barrier();
}

uvec4 read_along(uint from, uint begin, uint end, uint line) {
    uint index = from + line * strides[1] + begin * strides[2];
    uint count = begin < end ? end - begin : 0u;
    if (strides[2] == 1u) return elements(index, count);
    uvec4 x = uvec4(0u);
    for (uint e = 0u; e < min(count, 16u); ++e)
        x[e / 4u] |= (neighbours(index + e * strides[2], 1u) & 0xFFu) << (e % 4u * 8u);
    return x;
}

// Writes a block of prepared lines and adds to their sums.
void write_lines(bool across, uint batch, uint from, uint begin, uint end, uint filled, uint line,
                 inout int sum[EACH]) {
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        uint vector = gl_LocalInvocationIndex + i * INVOCATIONS;
        uint my_line = vector / VECTORS;
        uint at = vector % VECTORS * 16u;
        if (line + my_line >= lines || begin + at >= filled) continue;
        uint word = my_line * PITCH + at / 4u;
        uvec4 x = across ? uvec4(s_block[word], s_block[word + 1u], s_block[word + 2u],
                                 s_block[word + 3u])
                         : read_along(from, begin + at, end, line + my_line);
        if (is_signed == 0u) x ^= 0x80808080u;
        uint count = begin + at < end ? end - begin - at : 0u;
        if (count < 16u)
            [[unroll]] for (uint w = 0u; w < 4u; ++w)
                x[w] &= first_bytes(count > w * 4u ? count - w * 4u : 0u);
        prepared[(prepared_offset + (batch * lines + line + my_line) * pitch + begin + at) /
                 16u] = x;
        sum[i] += byte_sum(x.x) + byte_sum(x.y) + byte_sum(x.z) + byte_sum(x.w);
    }
}

void main() {
    uint blocks = (lines - 1u) / BLOCK + 1u;
    uint chunks = (depth - 1u) / chunk + 1u;
    uint group = group_index();
    uint batch = group / (blocks * chunks);
    if (batch >= batches) return;
    uint part = group / blocks % chunks;
    uint line = group % blocks * BLOCK;
    uint from = matrix_offset + batch * strides[0];
    // The last chunk fills its lines up.
    uint end = min(depth, (part + 1u) * chunk);
    uint filled = part + 1u < chunks ? end : pitch;
    bool across = strides[1] == 1u && strides[2] != 1u;

    if (gl_LocalInvocationIndex < BLOCK) s_sums[gl_LocalInvocationIndex] = 0;
    int sum[EACH];
    [[unroll]] for (uint i = 0u; i < EACH; ++i) sum[i] = 0;
    uint begin = part * chunk;
    if (!across) {
        for (; begin < filled; begin += BLOCK)
            write_lines(false, batch, from, begin, end, filled, line, sum);
    } else if (lines % 16u == 0u && from % 16u == 0u && strides[2] % 16u == 0u) {
        // The next block is on its way while this one is written.
        uvec4 read[4];
        read_vectors(from, begin, end, line, read);
        for (; begin < filled; begin += BLOCK) {
            turn_around(read);
            read_vectors(from, begin + BLOCK, end, line, read);
            write_lines(true, batch, from, begin, end, filled, line, sum);
        }
    } else {
        for (; begin < filled; begin += BLOCK) {
            uvec4 read[4];
            read_parts(from, begin, end, line, read);
            turn_around(read);
            write_lines(true, batch, from, begin, end, filled, line, sum);
        }
    }
    if (keeps_sums == 0u) return;
    barrier();
    [[unroll]] for (uint i = 0u; i < EACH; ++i)
        atomicAdd(s_sums[(gl_LocalInvocationIndex + i * INVOCATIONS) / VECTORS], sum[i]);
    barrier();
    uint mine = gl_LocalInvocationIndex;
    if (mine < BLOCK && line + mine < lines)
        sums[sums_offset + (part * batches + batch) * lines + line + mine] = s_sums[mine];
}
