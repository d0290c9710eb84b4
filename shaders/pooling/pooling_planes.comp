//@ op DML_OPERATOR_AVERAGE_POOLING DML_OPERATOR_AVERAGE_POOLING1 DML_OPERATOR_MAX_POOLING DML_OPERATOR_MAX_POOLING1 DML_OPERATOR_MAX_POOLING2 DML_OPERATOR_MAX_POOLING_GRAD
//@ variants OP: average max winner ; LAYOUT: first last
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Pooling of planes of floats with small windows. Rows of a window are reduced first, and each read
// serves several outputs. An invocation computes ROWS x COLUMNS outputs.
// Channels first: it reads chunks of WORDS words, which lie inside a row or outside, and the columns are
// stored at once. Channels last: it computes a vector of channels.
// OP winner stores the place of the largest element in its window, counted in rows, as a byte: 255 if there is
// none.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint WINDOW_Y = 3u;
layout(constant_id = 3) const uint WINDOW_X = 3u;
layout(constant_id = 4) const uint STRIDE_Y = 1u;
layout(constant_id = 5) const uint STRIDE_X = 1u;
layout(constant_id = 6) const bool INCLUDE_PADDING = false;
layout(constant_id = 7) const uint PHASE = 0u;    // where a block's first window begins in a chunk
layout(constant_id = 8) const uint COLUMNS = 1u;  // up to 8; channels last: up to 4
layout(constant_id = 9) const uint ROWS = 2u;     // up to 4
layout(constant_id = 10) const uint WORDS = 1u;   // 1, 2 or 4
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
#include "include/chunks.glsl"
#include "include/planes.glsl"
INPUT_TENSOR(x, 0, TYPE)
#if defined(OP_winner)
OUTPUT_BITS(y, 1, 1u)
#else
OUTPUT_TENSOR(y, 1, TYPE)
#endif
layout(binding = 1) writeonly buffer YPairs { uvec2 y_pairs[]; };
const uint PER_WORD = HALVES ? 2u : 1u;
const uint SPAN = (COLUMNS - 1u) * STRIDE_X + WINDOW_X;
const uint LINES = (ROWS - 1u) * STRIDE_Y + WINDOW_Y;
#if defined(LAYOUT_first)
const uint LANES = 1u;
#define WIDTH COLUMNS
ROW_OF_CHUNKS(x, 0, TYPE, WORDS, PHASE, SPAN)
#else
const uint LANES = VECTOR, WIDTH = COLUMNS * LANES;
#endif

#if defined(OP_average)
#include "include/counted.glsl"
const uint EMPTY = 0u;
float nothing() { return 0.0; }
float merged(float a, float b) { return a + b; }
#else
// max() and > may lose NaN, so all elements are also added up: only a sum that is NaN can have one among them.
const uint EMPTY = HALVES ? 0xFC00FC00u : 0xFF800000u;
float nothing() { return infinity(0x80000000u); }
float merged(float a, float b) { return max(a, b); }
float all_elements = 0.0;
#endif
#if defined(OP_winner)
const uint NONE = 255u;
uint line_places[WIDTH], places[ROWS][WIDTH];  // of the largest elements of a row, and of the windows
#endif

// Merges element ``k`` of a row into the columns that have it in their windows.
void take(inout float line[WIDTH], uint lane, uint k, float x) {
#if !defined(OP_average)
    all_elements += x;
#endif
    [[unroll]] for (uint e = 0u; e < COLUMNS; ++e) {
        if (k < e * STRIDE_X || k - e * STRIDE_X >= WINDOW_X) continue;
        uint i = e * LANES + lane;
#if defined(OP_winner)
        line_places[i] = x > line[i] ? k - e * STRIDE_X : line_places[i];
#endif
        line[i] = merged(line[i], x);
    }
}

#if !defined(OP_average)
#include "include/exact_maxima.glsl"
#endif

void main() {
    Block block = block_at(invocation_index(), y_sizes[0], y_sizes[1]);
    if (block.batch >= batches) return;
    uint oy = block.y * ROWS, ox = block.x * COLUMNS;
    uint from = x_offset + block.batch * x_strides[0] + block.channel * x_strides[1];
    int left = int(ox * STRIDE_X) - padding[1], top = int(oy * STRIDE_Y) - padding[0];

    float made[ROWS][WIDTH];
    [[unroll]] for (uint q = 0u; q < ROWS; ++q)
        [[unroll]] for (uint e = 0u; e < WIDTH; ++e) {
            made[q][e] = nothing();
#if defined(OP_winner)
            places[q][e] = NONE;
#endif
        }
    [[unroll]] for (uint r = 0u; r < LINES; ++r) {
        int iy = top + int(r);
        bool row_inside = uint(iy) < uint(x_sizes[0]);
        uint row = from + uint(iy) * x_strides[2];
        float line[WIDTH];
        [[unroll]] for (uint e = 0u; e < WIDTH; ++e) line[e] = nothing();
#if defined(LAYOUT_first)
        float elements[SPAN];
        x_row(row, left, x_sizes[1], row_inside, EMPTY, elements);
        [[unroll]] for (uint k = 0u; k < SPAN; ++k) take(line, 0u, k, elements[k]);
#else
        [[unroll]] for (uint k = 0u; k < SPAN; ++k) {
            int at = left + int(k);
            bool inside = row_inside && uint(at) < uint(x_sizes[1]);
            uvec4 vector = x_vectors[inside ? (row + uint(at) * x_strides[3]) / VECTOR : 0u];
            vector = inside ? vector : uvec4(EMPTY);
            [[unroll]] for (uint l = 0u; l < LANES; ++l)
                take(line, l, k, element(vector, l));
        }
#endif
        [[unroll]] for (uint q = 0u; q < ROWS; ++q)
            if (r >= q * STRIDE_Y && r - q * STRIDE_Y < WINDOW_Y)
                [[unroll]] for (uint e = 0u; e < WIDTH; ++e) {
#if defined(OP_winner)
                    places[q][e] = line[e] > made[q][e] ? line_places[e] + (r - q * STRIDE_Y) * WINDOW_X
                                                        : places[q][e];
#endif
                    made[q][e] = merged(made[q][e], line[e]);
                }
    }

    uint to = y_offset + block.batch * y_strides[0] + block.channel * y_strides[1] + oy * y_strides[2]
              + ox * y_strides[3];
#if !defined(OP_average)
    bool lost = is_nan(all_elements);
#if defined(OP_winner)
    // Nothing but -infinity.
    [[unroll]] for (uint q = 0u; q < ROWS; ++q)
        [[unroll]] for (uint e = 0u; e < WIDTH; ++e) lost = lost || places[q][e] == NONE;
#endif
    if (lost) {
        store_exactly(from, top, left, to, min(ROWS, y_sizes[0] - oy), min(COLUMNS, y_sizes[1] - ox));
        return;
    }
#else
    float columns[COLUMNS];
    [[unroll]] for (uint e = 0u; e < COLUMNS; ++e)
        columns[e] = counted(left + int(e * STRIDE_X), int(WINDOW_X), 1);
#endif
    [[unroll]] for (uint q = 0u; q < ROWS; ++q) {
        if (oy + q >= y_sizes[0]) continue;
#if defined(OP_average)
        float rows = counted(top + int(q * STRIDE_Y), int(WINDOW_Y), 0);
        [[unroll]] for (uint e = 0u; e < COLUMNS; ++e) {
            float n = rows * columns[e];
            [[unroll]] for (uint l = 0u; l < LANES; ++l)
                made[q][e * LANES + l] = n == 0.0 ? 0.0 : made[q][e * LANES + l] / n;
        }
#endif
        uint at = to + q * y_strides[2];
#if defined(OP_winner)
        // Each word has four bytes, of neighbours or of channels.
        uint words[COLUMNS * LANES / 4u];
        [[unroll]] for (uint w = 0u; w < COLUMNS * LANES / 4u; ++w)
            words[w] = places[q][4u * w] | places[q][4u * w + 1u] << 8 | places[q][4u * w + 2u] << 16
                       | places[q][4u * w + 3u] << 24;
#if defined(LAYOUT_first)
        [[unroll]] for (uint w = 0u; w < COLUMNS / 4u; ++w) y_words[at / 4u + w] = words[w];
#else
        [[unroll]] for (uint e = 0u; e < COLUMNS; ++e) {
            if (ox + e >= y_sizes[1]) continue;
            uint own = at + e * y_strides[3];
            if (LANES == 8u)
                y_pairs[own / 8u] = uvec2(words[2u * e], words[min(2u * e + 1u, COLUMNS * LANES / 4u - 1u)]);
            else y_words[own / 4u] = words[e];
        }
#endif
#elif defined(LAYOUT_first)
        uvec4 bits;
        [[unroll]] for (uint w = 0u; w < 4u; ++w)
            if (w * PER_WORD < COLUMNS)
                bits[w] = HALVES ? floats_to_halves(made[q][min(2u * w, COLUMNS - 1u)],
                                                    made[q][min(2u * w + 1u, COLUMNS - 1u)])
                                 : floatBitsToUint(made[q][min(w, COLUMNS - 1u)]);
        if (COLUMNS == 4u * PER_WORD) y_vectors[at / (4u * PER_WORD)] = bits;
        else if (COLUMNS == 2u * PER_WORD) y_pairs[at / (2u * PER_WORD)] = bits.xy;
        else y_words[at / PER_WORD] = bits.x;
#else
        [[unroll]] for (uint e = 0u; e < COLUMNS; ++e) {
            if (ox + e >= y_sizes[1]) continue;
            uvec4 bits;
            PACK(bits, made[q], e * LANES)
            y_vectors[(at + e * y_strides[3]) / VECTOR] = bits;
        }
#endif
    }
}
