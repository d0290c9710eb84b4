//@ op DML_OPERATOR_MAX_POOLING_GRAD
//@ variants LAYOUT: first last
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// Gradients of max pooling of planes of FLOAT16 with small windows, in one pass. An invocation goes down STEPS
// rows of windows and stores COLUMNS x STRIDE_Y gradients for each, of one channel or of 2 * WIDE contiguous
// channels. COUNT_X windows of a row reach into its columns. The first begins LEAD_X elements before them.
// A key is an integer in the order of the numbers, with the place in the window in its low bits: the largest key
// tells the first of the largest elements.
layout(constant_id = 2) const uint WINDOW_Y = 3u;
layout(constant_id = 3) const uint WINDOW_X = 3u;
layout(constant_id = 4) const uint STRIDE_Y = 2u;
layout(constant_id = 5) const uint STRIDE_X = 2u;
layout(constant_id = 6) const uint STEPS = 2u;
layout(constant_id = 7) const uint COLUMNS = 8u;    // 8 if channels come first
layout(constant_id = 8) const uint LEAD_X = 1u;
layout(constant_id = 9) const uint COUNT_X = 5u;
layout(constant_id = 10) const uint WORDS = 1u;     // of a chunk of elements
layout(constant_id = 11) const uint PHASE = 0u;     // where the first window begins in its chunk
layout(constant_id = 12) const uint DY_WORDS = 1u;  // of a chunk of incoming gradients
layout(constant_id = 13) const uint DY_PHASE = 0u;  // where the first window's lies in its chunk
layout(constant_id = 14) const uint WIDE = 1u;      // 1, 2 or 4 words of channels
const uint TYPE = 34u, ROWS = 1u;
layout(push_constant) uniform Push {
    uint batches;
    uint channels;      // or vectors of channels
    int x_sizes[2];     // height, width
    int y_sizes[2];
    uint blocks;        // of STEPS rows of windows
    int first[2];       // windows of the first block
    int padding;        // above
    uint x_strides[4];  // batch, channel, height, width
    uint dy_strides[4];
    uint dx_strides[4];
    uint x_offset;
    uint dy_offset;
    uint dx_offset;
};
#include "include/grid.glsl"
#include "include/typed.glsl"
#include "include/float_bits.glsl"
#include "include/chunks.glsl"
#include "include/planes.glsl"
INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(dy, 1, TYPE)
OUTPUT_TENSOR(dx, 2, TYPE)
layout(binding = 0) readonly buffer XPairs { uvec2 x_pairs[]; };
layout(binding = 2) writeonly buffer DxPairs { uvec2 dx_pairs[]; };
const uint SPAN = (COUNT_X - 1u) * STRIDE_X + WINDOW_X;
#if defined(LAYOUT_first)
const uint LANES = 1u;
#define WIDTH COLUMNS
#define WINDOWS COUNT_X
const uint FIRST_WORD = PHASE / 2u, LAST_WORD = (PHASE + SPAN - 1u) / 2u;
const uint LINE = LAST_WORD - FIRST_WORD + 1u;
ROW_OF_CHUNKS(dy, 1, TYPE, DY_WORDS, DY_PHASE, COUNT_X)
#else
layout(binding = 1) readonly buffer DyPairs { uvec2 dy_pairs[]; };
const uint LANES = 2u * WIDE, LINE = SPAN * WIDE;
const uint WIDTH = COLUMNS * LANES, WINDOWS = COUNT_X * LANES;
#endif
const uint KEYS = SPAN * LANES;
const uint KEPT = WINDOW_Y > STRIDE_Y ? WINDOW_Y : STRIDE_Y;  // rows that a window and the way to the next one have
const uint BEFORE = (WINDOW_Y - 1u) / STRIDE_Y;   // rows of windows before a block that reach into it
const int OUTSIDE = int(0x80000000u);             // below all keys
const int LOST = 0x7FFF0000;                      // of NaN

// The words of a row of elements, of which some may lie outside.
void load(uint from, int iy, int left, out uint line[LINE], out bool inside[LINE]) {
    bool there = uint(iy) < uint(x_sizes[0]);
    uint row = from + uint(iy) * x_strides[2];
#if defined(LAYOUT_first)
    [[unroll]] for (uint w = FIRST_WORD / WORDS * WORDS; w <= LAST_WORD; w += WORDS) {
        int place = left + int(w * 2u) - int(PHASE);
        bool in_row = there && uint(place) < uint(x_sizes[1]);
        uint word = in_row ? (row + uint(place)) / 2u : 0u;
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
            if (w + i >= FIRST_WORD && w + i <= LAST_WORD) {
                line[w + i - FIRST_WORD] = chunk[i];
                inside[w + i - FIRST_WORD] = in_row;
            }
    }
#else
    [[unroll]] for (uint k = 0u; k < SPAN; ++k) {
        int at = left + int(k);
        bool in_row = there && uint(at) < uint(x_sizes[1]);
        uint word = in_row ? (row + uint(at) * x_strides[3]) / 2u : 0u;
        uvec4 vector = uvec4(0u);
        if (WIDE == 4u) vector = x_vectors[word / 4u];
        else if (WIDE == 2u) vector.xy = x_pairs[word / 2u];
        else vector.x = x_words[word];
        [[unroll]] for (uint i = 0u; i < WIDE; ++i) {
            line[k * WIDE + i] = vector[i];
            inside[k * WIDE + i] = in_row;
        }
    }
#endif
}

// Element ``k`` of a row, in the upper half of a word.
#if defined(LAYOUT_first)
#define WORD_OF(k) ((PHASE + (k)) / 2u - FIRST_WORD)
#define IS_HIGH(k) ((PHASE + (k)) % 2u == 1u)
#else
#define WORD_OF(k) ((k) / 2u)
#define IS_HIGH(k) ((k) % 2u == 1u)
#endif

// The keys of a row. -0 equals 0, and NaN is the largest.
void keys_of(uint line[LINE], bool inside[LINE], out int keys[KEYS]) {
    // Only a sum that is NaN can have one among its terms.
    f16vec2 sum = f16vec2(0.0);
    [[unroll]] for (uint w = 0u; w < LINE; ++w) sum += unpackFloat2x16(inside[w] ? line[w] : 0u);
    [[unroll]] for (uint k = 0u; k < KEYS; ++k) {
        int bits = int(IS_HIGH(k) ? line[WORD_OF(k)] : line[WORD_OF(k)] << 16u), sign = bits >> 31;
        keys[k] = inside[WORD_OF(k)] ? (bits & 0x7FFF0000 ^ sign) - sign : OUTSIDE;
    }
    if (is_nan(float(sum.x + sum.y)))
        [[unroll]] for (uint k = 0u; k < KEYS; ++k)
            if (keys[k] != OUTSIDE && abs(keys[k]) > 0x7C000000) keys[k] = LOST;
}

// The incoming gradients of a row of windows. Those of windows that do not exist are 0.
void gradients_of(uint plane, int wy, int wx, out float made[WINDOWS]) {
    bool there = uint(wy) < uint(y_sizes[0]);
    uint row = plane + uint(wy) * dy_strides[2];
#if defined(LAYOUT_first)
    dy_row(row, wx, y_sizes[1], there, 0u, made);
#else
    [[unroll]] for (uint i = 0u; i < COUNT_X; ++i) {
        bool in_row = there && uint(wx + int(i)) < uint(y_sizes[1]);
        uint word = in_row ? (row + uint(wx + int(i)) * dy_strides[3]) / 2u : 0u;
        uvec4 vector = uvec4(0u);
        if (WIDE == 4u) vector = dy_vectors[word / 4u];
        else if (WIDE == 2u) vector.xy = dy_pairs[word / 2u];
        else vector.x = dy_words[word];
        [[unroll]] for (uint l = 0u; l < LANES; ++l)
            made[i * LANES + l] = in_row ? element(vector, l) : 0.0;
    }
#endif
}

void main() {
    Block block = block_at(invocation_index(), blocks, uint(x_sizes[1]));
    if (block.batch >= batches) return;
    uint ox = block.x * COLUMNS;
    int wy = int(block.y * STEPS) + first[0] - int(BEFORE), wx = int(block.x * (COLUMNS / STRIDE_X)) + first[1];
    int top = wy * int(STRIDE_Y) - padding, left = int(ox) - int(LEAD_X);
    uint from = x_offset + block.batch * x_strides[0] + block.channel * x_strides[1];
    uint plane = dy_offset + block.batch * dy_strides[0] + block.channel * dy_strides[1];
    uint to = dx_offset + block.batch * dx_strides[0] + block.channel * dx_strides[1] + ox * dx_strides[3];

    int keys[WINDOW_Y][KEYS];
    float made[KEPT][WIDTH];
    [[unroll]] for (uint r = 0u; r < KEPT; ++r)
        [[unroll]] for (uint e = 0u; e < WIDTH; ++e) made[r][e] = 0.0;

    [[unroll]] for (uint turn = 0u; turn < BEFORE + STEPS; ++turn) {
        const uint known = turn > 0u && WINDOW_Y > STRIDE_Y ? WINDOW_Y - STRIDE_Y : 0u;
        [[unroll]] for (uint r = 0u; r < WINDOW_Y; ++r) {
            if (r < known) {
                [[unroll]] for (uint k = 0u; k < KEYS; ++k)
                    keys[r][k] = keys[min(r + STRIDE_Y, WINDOW_Y - 1u)][k];
            } else {
                uint line[LINE];
                bool inside[LINE];
                load(from, top + int(r), left, line, inside);
                int fresh[KEYS];
                keys_of(line, inside, fresh);
                [[unroll]] for (uint k = 0u; k < KEYS; ++k) keys[r][k] = fresh[k];
            }
        }
        float gradients[WINDOWS];
        gradients_of(plane, wy, wx, gradients);

        int columns[KEYS];
        [[unroll]] for (uint k = 0u; k < KEYS; ++k) {
            columns[k] = keys[0][k] + 8 * int(WINDOW_Y - 1u);
            [[unroll]] for (uint r = 1u; r < WINDOW_Y; ++r)
                columns[k] = max(columns[k], keys[r][k] + 8 * int(WINDOW_Y - 1u - r));
        }
        [[unroll]] for (uint i = 0u; i < COUNT_X; ++i)
            [[unroll]] for (uint l = 0u; l < LANES; ++l) {
                int largest = columns[i * STRIDE_X * LANES + l] + int(WINDOW_X - 1u);
                [[unroll]] for (uint c = 1u; c < WINDOW_X; ++c)
                    largest = max(largest, columns[(i * STRIDE_X + c) * LANES + l] + int(WINDOW_X - 1u - c));
                uint winner = uint(largest) & 63u;
                [[unroll]] for (uint r = 0u; r < WINDOW_Y; ++r)
                    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
                        if (c + LEAD_X < i * STRIDE_X || c + LEAD_X >= i * STRIDE_X + WINDOW_X) continue;
                        uint own = 8u * (WINDOW_Y - 1u - r) + WINDOW_X - 1u - (c + LEAD_X - i * STRIDE_X);
                        made[r][c * LANES + l] += winner == own ? gradients[i * LANES + l] : 0.0;
                    }
            }

        // Rows that no window below reaches.
        [[unroll]] for (uint r = 0u; r < STRIDE_Y; ++r) {
            if (turn < BEFORE || uint(top + int(r)) >= uint(x_sizes[0])) continue;
            uint row = to + uint(top + int(r)) * dx_strides[2];
#if defined(LAYOUT_first)
            uvec4 bits;
            PACK(bits, made[r], 0u)
            dx_vectors[row / 8u] = bits;
#else
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
                if (ox + c >= uint(x_sizes[1])) continue;
                uvec4 bits = uvec4(0u);
                [[unroll]] for (uint i = 0u; i < WIDE; ++i)
                    bits[i] = floats_to_halves(made[r][c * LANES + 2u * i], made[r][c * LANES + 2u * i + 1u]);
                uint word = (row + c * dx_strides[3]) / 2u;
                if (WIDE == 4u) dx_vectors[word / 4u] = bits;
                else if (WIDE == 2u) dx_pairs[word / 2u] = bits.xy;
                else dx_words[word] = bits.x;
            }
#endif
        }
        [[unroll]] for (uint r = 0u; r < KEPT; ++r)
            [[unroll]] for (uint e = 0u; e < WIDTH; ++e)
                made[r][e] = r + STRIDE_Y < KEPT ? made[min(r + STRIDE_Y, KEPT - 1u)][e] : 0.0;
        ++wy;
        top += int(STRIDE_Y);
    }
}
