//@ op DML_OPERATOR_RNN DML_OPERATOR_GRU DML_OPERATOR_LSTM
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Computes the part of all gates that does not depend on the state, for all steps: x W^T + biases, in
// float32. A workgroup of 16 x 16 invocations computes 64 x 64 elements of one direction, 4 x 4 each.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool BIAS = false;
layout(constant_id = 3) const bool VECTORS = false;  // rows of x and w are whole vectors
layout(push_constant) uniform Push {
    uint directions;
    uint batches;
    uint rows;     // steps * batches
    uint columns;  // of all gates
    uint inputs;
    uint biased;   // columns that also have the recurrence's bias
    uint x_offset;
    uint w_offset;
    uint bias_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/params.glsl"
#include "include/typed.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(w, 1, TYPE)
INPUT_TENSOR(bias, 2, TYPE)
OUTPUT_TENSOR(y, 3, 36u)

const uint CHUNK = 16u;
const uint PITCH = 17u;  // vectors of 64 elements, and one of padding against bank conflicts
shared vec4 s_tile[2u * CHUNK * PITCH];

#define LOAD4(x) \
    vec4 x##_four(uint at, uint stride, uint there) { \
        if (VECTORS && x##_offset % 4u == 0u) return uintBitsToFloat(x##_vectors[at / 4u]); \
        vec4 result = vec4(0.0); \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) \
            if (i < there) result[i] = x##_float(at + i * stride); \
        return result; \
    }
LOAD4(x)
LOAD4(w)

void put(uint first, uint row, uint part, vec4 x) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        s_tile[(first + 4u * part + i) * PITCH + row / 4u][row % 4u] = x[i];
}

void main() {
    const uint i = gl_LocalInvocationIndex, tx = i % 16u, ty = i / 16u;
    uint across = (columns + 63u) / 64u, down = (rows + 63u) / 64u;
    uint group = group_index();
    uint column = group % across * 64u, row = group / across % down * 64u;
    uint direction = group / across / down;
    if (direction >= directions) return;

    uint m = row + i / 4u, n = column + i / 4u;
    uint x_at = x_offset + min(m, rows - 1u) / batches * param(0u)
                + min(m, rows - 1u) % batches * param(1u);
    uint w_at = w_offset + direction * param(3u) + n * param(4u);
    vec4 sum[4];
    [[unroll]] for (uint r = 0u; r < 4u; ++r) sum[r] = vec4(0.0);
    for (uint first = 0u; first < inputs; first += CHUNK) {
        uint k = first + 4u * (i % 4u);
        uint there = k < inputs ? min(4u, inputs - k) : 0u;
        vec4 a = vec4(0.0), b = vec4(0.0);
        if (there > 0u && m < rows) a = x_four(x_at + k * param(2u), param(2u), there);
        if (there > 0u && n < columns) b = w_four(w_at + k * param(5u), param(5u), there);
        barrier();
        put(0u, i / 4u, i % 4u, a);
        put(CHUNK, i / 4u, i % 4u, b);
        barrier();
        [[unroll]] for (uint e = 0u; e < CHUNK; ++e) {
            vec4 p = s_tile[e * PITCH + ty], q = s_tile[(CHUNK + e) * PITCH + tx];
            [[unroll]] for (uint r = 0u; r < 4u; ++r) sum[r] += p[r] * q;
        }
    }

    [[unroll]] for (uint c = 0u; c < 4u; ++c) {
        uint to = column + 4u * tx + c;
        if (to >= columns) continue;
        float more = 0.0;
        if (BIAS) {
            uint at = bias_offset + direction * param(6u);
            more = bias_float(at + to * param(7u));
            if (to < biased) more += bias_float(at + (columns + to) * param(7u));
        }
        [[unroll]] for (uint r = 0u; r < 4u; ++r) {
            uint from = row + 4u * ty + r;
            if (from < rows)
                y_words[y_offset + (direction * rows + from) * columns + to] =
                    floatBitsToUint(sum[r][c] + more);
        }
    }
}
