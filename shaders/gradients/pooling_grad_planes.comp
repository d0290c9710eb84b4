//@ op DML_OPERATOR_AVERAGE_POOLING_GRAD DML_OPERATOR_MAX_POOLING_GRAD
//@ variants OP: average max ; LAYOUT: first last
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Gradients of pooling of planes of floats with small windows. An invocation computes a block of ROWS x COLUMNS
// gradients, which are multiples of the strides, of one channel or of a vector of contiguous channels. COUNT_Y x
// COUNT_X windows reach into it. The first begins LEAD elements before it.
// For max pooling, bytes say which element of a window is the largest (pooling_planes.comp).
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint WINDOW_Y = 3u;
layout(constant_id = 3) const uint WINDOW_X = 3u;
layout(constant_id = 4) const uint STRIDE_Y = 2u;
layout(constant_id = 5) const uint STRIDE_X = 2u;
layout(constant_id = 6) const bool INCLUDE_PADDING = false;
layout(constant_id = 7) const uint ROWS = 2u;
layout(constant_id = 8) const uint COLUMNS = 4u;  // of a vector if channels come first
layout(constant_id = 9) const uint LEAD_Y = 1u;
layout(constant_id = 10) const uint LEAD_X = 1u;
layout(constant_id = 11) const uint COUNT_Y = 2u;
layout(constant_id = 12) const uint COUNT_X = 3u;
layout(constant_id = 13) const uint WORDS = 1u;     // of a chunk of incoming gradients
layout(constant_id = 14) const uint PHASE = 0u;     // where the first window's lies in its chunk
layout(push_constant) uniform Push {
    uint batches;
    uint channels;      // or vectors of channels
    int x_sizes[2];     // height, width
    int y_sizes[2];
    int padded_ends[2];
    int first[2];       // of the windows that reach into the first block
    int padding[2];
    uint dy_strides[4];  // batch, channel, height, width
    uint dx_strides[4];
    uint winners_strides[4];
    uint dy_offset;
    uint dx_offset;
    uint winners_offset;
};
#include "include/grid.glsl"
#include "include/typed.glsl"
#include "include/float_bits.glsl"
#include "include/chunks.glsl"
#include "include/planes.glsl"
INPUT_TENSOR(dy, 0, TYPE)
layout(binding = 1) readonly buffer Winners { uint winners[]; };  // four in a word
OUTPUT_TENSOR(dx, 2, TYPE)
#if defined(LAYOUT_first)
const uint LANES = 1u;
#define WIDTH COLUMNS
#define WINDOWS COUNT_X
ROW_OF_CHUNKS(dy, 0, TYPE, WORDS, PHASE, COUNT_X)
#else
const uint LANES = VECTOR;
const uint WIDTH = COLUMNS * LANES, WINDOWS = COUNT_X * LANES;
#endif

// The incoming gradients of a row of windows. Those of windows that do not exist are 0.
void gradients_of(uint plane, int wy, int wx, out float made[WINDOWS]) {
    bool there = uint(wy) < uint(y_sizes[0]);
    uint row = plane + uint(wy) * dy_strides[2];
#if defined(LAYOUT_first)
    dy_row(row, wx, y_sizes[1], there, 0u, made);
#else
    [[unroll]] for (uint i = 0u; i < COUNT_X; ++i) {
        bool inside = there && uint(wx + int(i)) < uint(y_sizes[1]);
        uvec4 vector = dy_vectors[inside ? (row + uint(wx + int(i)) * dy_strides[3]) / VECTOR : 0u];
        [[unroll]] for (uint l = 0u; l < LANES; ++l)
            made[i * LANES + l] = inside ? element(vector, l) : 0.0;
    }
#endif
}

// Whether element ``at`` of a block lies in its window ``number``, along an axis.
bool is_in(uint at, uint number, uint lead, uint stride, uint window) {
    return at + lead >= number * stride && at + lead - number * stride < window;
}

#if defined(OP_average)
// The elements of window o that count, along an axis.
float counted(int o, uint stride, uint window, int axis) {
    int start = o * int(stride) - padding[axis], end = start + int(window);
    if (INCLUDE_PADDING) return float(min(end, padded_ends[axis]) - start);
    return float(max(min(end, x_sizes[axis]) - max(start, 0), 0));
}
#endif

void main() {
    Block block = block_at(invocation_index(), uint(x_sizes[0]), uint(x_sizes[1]));
    if (block.batch >= batches) return;
    uint plane = dy_offset + block.batch * dy_strides[0] + block.channel * dy_strides[1];
    int wy = int(block.y * (ROWS / STRIDE_Y)) + first[0], wx = int(block.x * (COLUMNS / STRIDE_X)) + first[1];
    uint oy = block.y * ROWS, ox = block.x * COLUMNS;
    uint to = dx_offset + block.batch * dx_strides[0] + block.channel * dx_strides[1] + oy * dx_strides[2]
              + ox * dx_strides[3];
    float made[ROWS][WIDTH];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r)
        [[unroll]] for (uint e = 0u; e < WIDTH; ++e) made[r][e] = 0.0;

#if defined(OP_average)
    float columns[COUNT_X];
    [[unroll]] for (uint i = 0u; i < COUNT_X; ++i) columns[i] = counted(wx + int(i), STRIDE_X, WINDOW_X, 1);
    [[unroll]] for (uint j = 0u; j < COUNT_Y; ++j) {
        float gradients[WINDOWS];
        gradients_of(plane, wy + int(j), wx, gradients);
        float rows = counted(wy + int(j), STRIDE_Y, WINDOW_Y, 0);
        float line[WIDTH];
        [[unroll]] for (uint e = 0u; e < WIDTH; ++e) line[e] = 0.0;
        [[unroll]] for (uint i = 0u; i < COUNT_X; ++i) {
            float n = rows * columns[i];
            [[unroll]] for (uint l = 0u; l < LANES; ++l) {
                float gradient = n <= 0.0 ? 0.0 : gradients[i * LANES + l] / n;
                [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                    if (is_in(c, i, LEAD_X, STRIDE_X, WINDOW_X)) line[c * LANES + l] += gradient;
            }
        }
        [[unroll]] for (uint r = 0u; r < ROWS; ++r)
            if (is_in(r, j, LEAD_Y, STRIDE_Y, WINDOW_Y))
                [[unroll]] for (uint e = 0u; e < WIDTH; ++e) made[r][e] += line[e];
    }
#else
    uint found = winners_offset + block.batch * winners_strides[0] + block.channel * winners_strides[1];
    [[unroll]] for (uint j = 0u; j < COUNT_Y; ++j) {
        float gradients[WINDOWS];
        gradients_of(plane, wy + int(j), wx, gradients);
        // Of windows that do not exist the gradient is 0.
        uint row = found + uint(clamp(wy + int(j), 0, y_sizes[0] - 1)) * winners_strides[2];
        [[unroll]] for (uint i = 0u; i < COUNT_X; ++i) {
            uint at = row + uint(clamp(wx + int(i), 0, y_sizes[1] - 1)) * winners_strides[3];
            uint words[2];
            [[unroll]] for (uint w = 0u; w < (LANES + 3u) / 4u; ++w) words[w] = winners[at / 4u + w];
            [[unroll]] for (uint l = 0u; l < LANES; ++l) {
                uint winner = words[l / 4u & 1u] >> 8u * (LANES == 1u ? at % 4u : l % 4u) & 255u;
                [[unroll]] for (uint r = 0u; r < ROWS; ++r)
                    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
                        if (!is_in(r, j, LEAD_Y, STRIDE_Y, WINDOW_Y) || !is_in(c, i, LEAD_X, STRIDE_X, WINDOW_X))
                            continue;
                        uint own = (r + LEAD_Y - j * STRIDE_Y) * WINDOW_X + c + LEAD_X - i * STRIDE_X;
                        made[r][c * LANES + l] += winner == own ? gradients[i * LANES + l] : 0.0;
                    }
            }
        }
    }
#endif

    const uint VECTORS = WIDTH / VECTOR;
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        if (oy + r >= uint(x_sizes[0])) continue;
        [[unroll]] for (uint v = 0u; v < VECTORS; ++v) {
#if defined(LAYOUT_last)
            if (ox + v >= uint(x_sizes[1])) continue;
#endif
            uvec4 bits;
            PACK(bits, made[r], v * VECTOR)
            dx_vectors[(to + r * dx_strides[2] + v * dx_strides[3]) / VECTOR] = bits;
        }
    }
}
