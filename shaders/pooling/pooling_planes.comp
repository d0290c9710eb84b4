//@ op DML_OPERATOR_AVERAGE_POOLING DML_OPERATOR_AVERAGE_POOLING1 DML_OPERATOR_MAX_POOLING DML_OPERATOR_MAX_POOLING1 DML_OPERATOR_MAX_POOLING2
//@ variants OP: average max ; LAYOUT: first last
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Pooling of planes of floats with small windows. Rows of a window are reduced first, and each read
// serves several outputs. Channels first: an invocation computes EACH neighbours of ROWS rows. Two
// FLOAT16 neighbours are a word. Channels last: it computes a vector of channels for ROWS x EACH
// outputs.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint WINDOW_Y = 3u;
layout(constant_id = 3) const uint WINDOW_X = 3u;
layout(constant_id = 4) const uint STRIDE_Y = 1u;
layout(constant_id = 5) const uint STRIDE_X = 1u;
layout(constant_id = 6) const bool INCLUDE_PADDING = false;
layout(constant_id = 7) const bool ODD = false;  // whether a window begins inside a word
layout(constant_id = 8) const uint EACH = 1u;    // up to 2
layout(push_constant) uniform Push {
    uint batches;
    uint channels;  // or vectors of them
    int x_sizes[2];  // y, x
    uint y_sizes[2];
    int padding[2];
    int padded_ends[2];
    uint x_strides[4];  // batch, channel, y, x
    uint y_strides[4];
    uint x_offset;
    uint y_offset;
};
#include "include/grid.glsl"
#include "include/typed.glsl"
#include "include/float_bits.glsl"
INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, TYPE)
#if defined(LAYOUT_first)
const uint ROWS = 4u;
const uint LANES = 1u;
#else
const uint ROWS = 2u;
const uint LANES = 8u;
#endif
const uint PER_VECTOR = BYTES_OF(TYPE) == 2u ? 8u : 4u;
const uint SPAN = (EACH - 1u) * STRIDE_X + WINDOW_X;
const uint LINES = (ROWS - 1u) * STRIDE_Y + WINDOW_Y;

#if defined(OP_max)
float nothing() { return infinity(0x80000000u); }
float merged(float a, float b) { return b > a || is_nan(b) ? b : a; }
#else
float nothing() { return 0.0; }
float merged(float a, float b) { return a + b; }
#endif

vec2 halves(uint word) { return vec2(half_to_float(word & 0xFFFFu), half_to_float(word >> 16)); }
uint word_of(float a, float b) { return float_to_half(a) | float_to_half(b) << 16; }

// The elements of a window that count, along an axis.
int counted(int start, int window, int axis) {
    if (INCLUDE_PADDING) return min(window, padded_ends[axis] - start);
    return max(min(start + window, x_sizes[axis]) - max(start, 0), 0);
}

void main() {
    uint index = invocation_index();
#if defined(LAYOUT_last)
    uint channel = index % channels;
    index /= channels;
#endif
    uint across = (y_sizes[1] - 1u) / EACH + 1u, down = (y_sizes[0] - 1u) / ROWS + 1u;
    uint next = index / across;
    uint ox = (index - next * across) * EACH;
    index = next / down;
    uint oy = (next - index * down) * ROWS;
#if defined(LAYOUT_first)
    next = index / channels;
    uint channel = index - next * channels;
    index = next;
#endif
    if (index >= batches) return;
    uint from = x_offset + index * x_strides[0] + channel * x_strides[1];
    int left = int(ox * STRIDE_X) - padding[1], top = int(oy * STRIDE_Y) - padding[0];

    float made[ROWS][2][LANES];
    [[unroll]] for (uint q = 0u; q < ROWS; ++q)
        [[unroll]] for (uint e = 0u; e < 2u; ++e)
            [[unroll]] for (uint l = 0u; l < LANES; ++l) made[q][e][l] = nothing();
    [[unroll]] for (uint r = 0u; r < LINES; ++r) {
        int iy = top + int(r);
        bool row_inside = uint(iy) < uint(x_sizes[0]);
        uint row = from + uint(iy) * x_strides[2];
        float line[2][LANES];
        [[unroll]] for (uint e = 0u; e < 2u; ++e)
            [[unroll]] for (uint l = 0u; l < LANES; ++l) line[e][l] = nothing();
#if defined(LAYOUT_first)
        const uint SHIFT = ODD ? 1u : 0u;
        const uint WORDS = EACH == 2u ? (SPAN + SHIFT + 1u) / 2u : SPAN;
        [[unroll]] for (uint v = 0u; v < WORDS; ++v) {
            vec2 two;
            int at = EACH == 2u ? left - int(SHIFT) + 2 * int(v) : left + int(v);
            bool inside = row_inside && uint(at) < uint(x_sizes[1]);
            if (EACH == 2u) two = halves(x_words[inside ? (row + uint(at)) / 2u : 0u]);
            else two.x = x_float(inside ? row + uint(at) * x_strides[3] : 0u);
            [[unroll]] for (uint i = 0u; i < EACH; ++i) {
                if (EACH * v + i < SHIFT) continue;
                uint k = EACH * v + i - SHIFT;
                float x = inside && at + int(i) < x_sizes[1] ? two[i] : nothing();
                [[unroll]] for (uint e = 0u; e < EACH; ++e)
                    if (k >= e * STRIDE_X && k - e * STRIDE_X < WINDOW_X)
                        line[e][0] = merged(line[e][0], x);
            }
        }
#else
        [[unroll]] for (uint k = 0u; k < SPAN; ++k) {
            int at = left + int(k);
            bool inside = row_inside && uint(at) < uint(x_sizes[1]);
            uvec4 vector = x_vectors[inside ? (row + uint(at) * x_strides[3]) / PER_VECTOR : 0u];
            [[unroll]] for (uint l = 0u; l < PER_VECTOR; ++l) {
                float x = BYTES_OF(TYPE) == 2u ? halves(vector[l / 2u & 3u])[l % 2u]
                                               : uintBitsToFloat(vector[l & 3u]);
                x = inside ? x : nothing();
                [[unroll]] for (uint e = 0u; e < EACH; ++e)
                    if (k >= e * STRIDE_X && k - e * STRIDE_X < WINDOW_X)
                        line[e][l] = merged(line[e][l], x);
            }
        }
#endif
        [[unroll]] for (uint q = 0u; q < ROWS; ++q)
            if (r >= q * STRIDE_Y && r - q * STRIDE_Y < WINDOW_Y)
                [[unroll]] for (uint e = 0u; e < EACH; ++e)
                    [[unroll]] for (uint l = 0u; l < LANES; ++l)
                        made[q][e][l] = merged(made[q][e][l], line[e][l]);
    }

    uint to = y_offset + index * y_strides[0] + channel * y_strides[1];
    [[unroll]] for (uint q = 0u; q < ROWS; ++q) {
        if (oy + q >= y_sizes[0]) continue;
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
#if defined(OP_average)
            int n = counted(top + int(q * STRIDE_Y), int(WINDOW_Y), 0) *
                    counted(left + int(e * STRIDE_X), int(WINDOW_X), 1);
            [[unroll]] for (uint l = 0u; l < LANES; ++l)
                made[q][e][l] = n == 0 ? 0.0 : made[q][e][l] / float(n);
#endif
        }
        uint at = to + (oy + q) * y_strides[2] + ox * y_strides[3];
#if defined(LAYOUT_first)
        if (EACH == 2u) y_words[at / 2u] = word_of(made[q][0][0], made[q][1][0]);
        else y_store_float(at, made[q][0][0]);
#else
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            if (ox + e >= y_sizes[1]) continue;
            uvec4 bits;
            [[unroll]] for (uint w = 0u; w < 4u; ++w)
                bits[w] = BYTES_OF(TYPE) == 2u
                    ? word_of(made[q][e][2u * w & 7u], made[q][e][(2u * w + 1u) & 7u])
                    : floatBitsToUint(made[q][e][w]);
            y_vectors[(at + e * y_strides[3]) / PER_VECTOR] = bits;
        }
#endif
    }
}
