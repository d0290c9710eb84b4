//@ op DML_OPERATOR_RESAMPLE_GRAD DML_OPERATOR_RESAMPLE_GRAD1
//@ variants LAYOUT: first last
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Gradients of linear resampling of two axes by whole factors, if all elements have the same weights. TAPS
// outputs read element i, from SCALE * i - BEFORE on. Outputs beyond an edge are those mirrored at it.
// An invocation computes ROWS x COLUMNS gradients of one channel, or of a vector of contiguous channels.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint ROWS = 2u;     // up to 4
layout(constant_id = 3) const uint COLUMNS = 4u;  // of a vector if channels come first
layout(constant_id = 4) const uint SCALE_Y = 2u;
layout(constant_id = 5) const uint SCALE_X = 2u;
layout(constant_id = 6) const uint TAPS_Y = 4u;
layout(constant_id = 7) const uint TAPS_X = 4u;
layout(constant_id = 8) const uint BEFORE_Y = 1u;
layout(constant_id = 9) const uint BEFORE_X = 1u;
layout(push_constant) uniform Push {
    uint batches;
    uint channels;        // or vectors of channels
    uint x_sizes[2];      // of the gradients that are made: height, width
    int y_sizes[2];
    uint dx_strides[4];   // batch, channel, height, width
    uint dy_strides[4];
    float weights_y[8];
    float weights_x[8];
    uint dy_offset;
    uint dx_offset;
};
#include "include/grid.glsl"
#include "include/typed.glsl"
#include "include/planes.glsl"
INPUT_TENSOR(dy, 0, TYPE)
OUTPUT_TENSOR(dx, 1, TYPE)
const uint SPAN = (COLUMNS - 1u) * SCALE_X + TAPS_X;
const uint LINES = (ROWS - 1u) * SCALE_Y + TAPS_Y;
#if defined(LAYOUT_first)
const uint LANES = 1u;
#else
const uint LANES = VECTOR;
#endif
const uint WIDTH = COLUMNS * LANES;

uint mirrored(int i, int size) {
    i = i < 0 ? -1 - i : i >= size ? 2 * size - 1 - i : i;
    return uint(clamp(i, 0, size - 1));
}

// Adds gradient ``k`` of a row to the columns that it belongs to.
void take(inout float line[WIDTH], uint lane, uint k, float x) {
    [[unroll]] for (uint e = 0u; e < COLUMNS; ++e)
        if (k >= e * SCALE_X && k - e * SCALE_X < TAPS_X)
            line[e * LANES + lane] += weights_x[k - e * SCALE_X] * x;
}

void main() {
    Block block = block_at(invocation_index(), x_sizes[0], x_sizes[1]);
    if (block.batch >= batches) return;
    uint oy = block.y * ROWS, ox = block.x * COLUMNS;
    uint from = dy_offset + block.batch * dy_strides[0] + block.channel * dy_strides[1];
    int left = int(ox * SCALE_X) - int(BEFORE_X), top = int(oy * SCALE_Y) - int(BEFORE_Y);
    uint places[SPAN];
    [[unroll]] for (uint k = 0u; k < SPAN; ++k)
        places[k] = mirrored(left + int(k), y_sizes[1]) * dy_strides[3];

    float made[ROWS][WIDTH];
    [[unroll]] for (uint q = 0u; q < ROWS; ++q)
        [[unroll]] for (uint e = 0u; e < WIDTH; ++e) made[q][e] = 0.0;
    [[unroll]] for (uint r = 0u; r < LINES; ++r) {
        uint row = from + mirrored(top + int(r), y_sizes[0]) * dy_strides[2];
        float line[WIDTH];
        [[unroll]] for (uint e = 0u; e < WIDTH; ++e) line[e] = 0.0;
#if defined(LAYOUT_first)
        // The outputs of a block are whole vectors, with some elements at both sides.
        [[unroll]] for (uint v = 0u; v < SCALE_X * COLUMNS / VECTOR; ++v) {
            uvec4 vector = dy_vectors[(row + ox * SCALE_X) / VECTOR + v];
            [[unroll]] for (uint l = 0u; l < VECTOR; ++l)
                take(line, 0u, BEFORE_X + v * VECTOR + l, element(vector, l));
        }
        [[unroll]] for (uint k = 0u; k < BEFORE_X; ++k) take(line, 0u, k, dy_float(row + places[k]));
        [[unroll]] for (uint k = BEFORE_X + SCALE_X * COLUMNS; k < SPAN; ++k)
            take(line, 0u, k, dy_float(row + places[k]));
#else
        [[unroll]] for (uint k = 0u; k < SPAN; ++k) {
            uvec4 vector = dy_vectors[(row + places[k]) / VECTOR];
            [[unroll]] for (uint l = 0u; l < VECTOR; ++l) take(line, l, k, element(vector, l));
        }
#endif
        [[unroll]] for (uint q = 0u; q < ROWS; ++q)
            if (r >= q * SCALE_Y && r - q * SCALE_Y < TAPS_Y)
                [[unroll]] for (uint e = 0u; e < WIDTH; ++e)
                    made[q][e] += weights_y[r - q * SCALE_Y] * line[e];
    }

    uint to = dx_offset + block.batch * dx_strides[0] + block.channel * dx_strides[1] + oy * dx_strides[2]
              + ox * dx_strides[3];
    const uint VECTORS = COLUMNS * LANES / VECTOR;
    [[unroll]] for (uint q = 0u; q < ROWS; ++q) {
        if (oy + q >= x_sizes[0]) continue;
        [[unroll]] for (uint v = 0u; v < VECTORS; ++v) {
#if defined(LAYOUT_last)
            if (ox + v >= x_sizes[1]) continue;
#endif
            uvec4 bits;
            PACK(bits, made[q], v * VECTOR)
            dx_vectors[(to + q * dx_strides[2] + v * dx_strides[3]) / VECTOR] = bits;
        }
    }
}
