//@ op DML_OPERATOR_AVERAGE_POOLING DML_OPERATOR_AVERAGE_POOLING1 DML_OPERATOR_MAX_POOLING DML_OPERATOR_MAX_POOLING1 DML_OPERATOR_MAX_POOLING2
//@ variants OP: average max
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define LAYOUT_first
// What pooling_planes.comp computes of FLOAT16 whose channels come first, two elements at once. Columns of a window
// are reduced first.
layout(constant_id = 2) const uint WINDOW_Y = 3u;
layout(constant_id = 3) const uint WINDOW_X = 3u;
layout(constant_id = 4) const uint STRIDE_Y = 1u;
layout(constant_id = 5) const uint STRIDE_X = 1u;
layout(constant_id = 6) const bool INCLUDE_PADDING = false;
layout(constant_id = 7) const uint PHASE = 0u;
layout(constant_id = 8) const uint COLUMNS = 2u;
layout(constant_id = 9) const uint ROWS = 2u;
layout(constant_id = 10) const uint WORDS = 1u;
const uint TYPE = 34u;
layout(push_constant) uniform Push {
    uint batches;
    uint channels;
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
#include "include/planes.glsl"
INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, TYPE)
layout(binding = 0) readonly buffer XPairs { uvec2 x_pairs[]; };
layout(binding = 1) writeonly buffer YPairs { uvec2 y_pairs[]; };
const uint SPAN = (COLUMNS - 1u) * STRIDE_X + WINDOW_X;
const uint LINES = (ROWS - 1u) * STRIDE_Y + WINDOW_Y;
#if defined(OP_average)
#define ONE float
#define TWO vec2
#define TWO_OF(word) halves_to_floats(word)
#define MERGED(a, b) ((a) + (b))
const uint EMPTY = 0u;
#else
#define ONE float16_t
#define TWO f16vec2
#define TWO_OF(word) unpackFloat2x16(word)
#define MERGED(a, b) max(a, b)
const uint EMPTY = 0xFC00FC00u;
// max() may lose NaN, so all elements are also added up: only a sum that is NaN can have one among them.
f16vec2 all_elements = f16vec2(0.0);
#endif
const uint LANES = 1u, FIRST_WORD = PHASE / 2u, LAST_WORD = (PHASE + SPAN - 1u) / 2u;
const uint PAIRS = LAST_WORD - FIRST_WORD + 1u;

#if defined(OP_average)
#include "include/counted.glsl"
#else
#include "include/exact_maxima.glsl"
#endif

void main() {
    Block block = block_at(invocation_index(), y_sizes[0], y_sizes[1]);
    if (block.batch >= batches) return;
    uint oy = block.y * ROWS, ox = block.x * COLUMNS;
    uint from = x_offset + block.batch * x_strides[0] + block.channel * x_strides[1];
    int left = int(ox * STRIDE_X) - padding[1], top = int(oy * STRIDE_Y) - padding[0];

    TWO made[ROWS][PAIRS];
    [[unroll]] for (uint q = 0u; q < ROWS; ++q)
        [[unroll]] for (uint w = 0u; w < PAIRS; ++w) made[q][w] = TWO_OF(EMPTY);
    [[unroll]] for (uint r = 0u; r < LINES; ++r) {
        int iy = top + int(r);
        bool row_inside = uint(iy) < uint(x_sizes[0]);
        uint row = from + uint(iy) * x_strides[2];
        uint line[PAIRS];
        [[unroll]] for (uint w = FIRST_WORD / WORDS * WORDS; w <= LAST_WORD; w += WORDS) {
            int place = left + int(w * 2u) - int(PHASE);
            bool inside = row_inside && uint(place) < uint(x_sizes[1]);
            uint word = inside ? (row + uint(place)) / 2u : 0u;
            uvec4 chunk = uvec4(0u);
            if (WORDS == 4u && w >= FIRST_WORD && w + 3u <= LAST_WORD) {
                chunk = x_vectors[word / 4u];
            } else if (WORDS == 2u && w >= FIRST_WORD && w + 1u <= LAST_WORD) {
                chunk.xy = x_pairs[word / 2u];
            } else {
                [[unroll]] for (uint i = 0u; i < WORDS; ++i)
                    if (w + i >= FIRST_WORD && w + i <= LAST_WORD) chunk[i] = x_words[word + i];
            }
            [[unroll]] for (uint i = 0u; i < WORDS; ++i)
                if (w + i >= FIRST_WORD && w + i <= LAST_WORD)
                    line[w + i - FIRST_WORD] = inside ? chunk[i] : EMPTY;
        }
        [[unroll]] for (uint w = 0u; w < PAIRS; ++w) {
            TWO two = TWO_OF(line[w]);
#if !defined(OP_average)
            all_elements += two;
#endif
            [[unroll]] for (uint q = 0u; q < ROWS; ++q)
                if (r >= q * STRIDE_Y && r - q * STRIDE_Y < WINDOW_Y) made[q][w] = MERGED(made[q][w], two);
        }
    }

    uint to = y_offset + block.batch * y_strides[0] + block.channel * y_strides[1] + oy * y_strides[2]
              + ox * y_strides[3];
#if defined(OP_average)
    float columns[COLUMNS];
    [[unroll]] for (uint e = 0u; e < COLUMNS; ++e)
        columns[e] = counted(left + int(e * STRIDE_X), int(WINDOW_X), 1);
#else
    if (is_nan(float(all_elements.x)) || is_nan(float(all_elements.y))) {
        store_exactly(from, top, left, to, min(ROWS, y_sizes[0] - oy), min(COLUMNS, y_sizes[1] - ox));
        return;
    }
#endif
    [[unroll]] for (uint q = 0u; q < ROWS; ++q) {
        if (oy + q >= y_sizes[0]) continue;
        uint at = to + q * y_strides[2];
        ONE found[COLUMNS];
        [[unroll]] for (uint e = 0u; e < COLUMNS; ++e) {
            const uint begin = PHASE - FIRST_WORD * 2u + e * STRIDE_X;
            found[e] = made[q][begin / 2u][begin % 2u];
            [[unroll]] for (uint k = begin + 1u; k < begin + WINDOW_X; ++k)
                found[e] = MERGED(found[e], made[q][k / 2u][k % 2u]);
        }
#if defined(OP_average)
        float rows = counted(top + int(q * STRIDE_Y), int(WINDOW_Y), 0);
        [[unroll]] for (uint e = 0u; e < COLUMNS; ++e) {
            float n = rows * columns[e];
            found[e] = n == 0.0 ? 0.0 : found[e] / n;
        }
#define PACKED floats_to_halves
#else
#define PACKED(low, high) packFloat2x16(f16vec2(low, high))
#endif
        uvec4 bits;
        [[unroll]] for (uint w = 0u; w < 4u; ++w)
            if (w * 2u < COLUMNS)
                bits[w] = PACKED(found[min(2u * w, COLUMNS - 1u)], found[min(2u * w + 1u, COLUMNS - 1u)]);
        if (COLUMNS == 8u) y_vectors[at / 8u] = bits;
        else if (COLUMNS == 4u) y_pairs[at / 4u] = bits.xy;
        else y_words[at / 2u] = bits.x;
    }
}
