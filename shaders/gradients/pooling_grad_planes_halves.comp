//@ op DML_OPERATOR_MAX_POOLING_GRAD
//@ variants LAYOUT: first last
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// The gradient of max pooling of FLOAT16, in one pass. An invocation goes down a strip of ROWS rows and COLUMNS
// columns, of one channel or of two neighbours. Each turn adds a row of windows: STRIDE_Y rows of elements are read,
// and as many rows of gradients become complete.
// The first element of a window that equals the largest takes the gradient and leaves 0 to the others.
layout(constant_id = 2) const uint WINDOW_Y = 3u;  // not below the strides
layout(constant_id = 3) const uint WINDOW_X = 3u;
layout(constant_id = 4) const uint STRIDE_Y = 2u;
layout(constant_id = 5) const uint STRIDE_X = 2u;
layout(constant_id = 7) const uint ROWS = 16u;    // a multiple of STRIDE_Y
layout(constant_id = 8) const uint COLUMNS = 8u;  // 8 if channels come first
layout(constant_id = 9) const uint LEAD_Y = 1u;   // elements of the first window before the block
layout(constant_id = 10) const uint LEAD_X = 1u;
layout(constant_id = 12) const uint COUNT_X = 5u;  // windows that reach into a row of a block
layout(constant_id = 13) const uint WORDS = 1u;    // of a chunk of incoming gradients
layout(constant_id = 14) const uint PHASE = 0u;    // where the first window's lies in its chunk
const uint TYPE = 34u;
layout(push_constant) uniform Push {
    uint batches;
    uint channels;      // or pairs of channels
    int x_sizes[2];     // height, width
    int y_sizes[2];
    int first[2];       // of the windows that reach into the first block
    uint x_strides[4];  // batch, channel, height, width
    uint dy_strides[4];
    uint dx_strides[4];
    uint x_offset;
    uint dy_offset;
    uint dx_offset;
};
#include "include/grid.glsl"
#include "include/typed.glsl"
#include "include/planes.glsl"
INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(dy, 1, TYPE)
OUTPUT_TENSOR(dx, 2, TYPE)
layout(binding = 1) readonly buffer DyPairs { uvec2 dy_pairs[]; };
const uint SPAN = (COUNT_X - 1u) * STRIDE_X + WINDOW_X, KEPT = WINDOW_Y - STRIDE_Y;
const uint TURNS = (ROWS - 1u + LEAD_Y) / STRIDE_Y + 1u;
#if defined(LAYOUT_first)
const uint LANES = 1u, LEFT = (LEAD_X + 1u) / 2u, READ = LEFT + (SPAN - 1u - LEAD_X) / 2u + 1u;
const uint DY_FIRST = PHASE / 2u, DY_LAST = (PHASE + COUNT_X - 1u) / 2u, DY_READ = DY_LAST - DY_FIRST + 1u;
#else
const uint LANES = 2u;
#define READ SPAN
#define DY_READ COUNT_X
#endif
const uint LOWEST = 0xFC00FC00u;  // -infinity twice

int left, wx;              // the first element and window of a row
uint column, x_at, dy_at;  // of the block; where the plane begins, in vectors of x if channels come first
bool begins, ends;
const uint KEYS = SPAN * LANES, MAXIMA = COUNT_X * LANES, MADE = COLUMNS * LANES;
float keys[WINDOW_Y][KEYS], most[WINDOW_Y][MAXIMA];  // of the rows of windows, and of the windows in them
uint given[STRIDE_Y][READ], gradients[DY_READ];      // of a turn
uint there[DY_READ];                                 // the bits of gradients that exist

// Reads the words of row ``iy``, or of the row nearest to it, as row ``j`` of this turn.
void read_row(int iy, uint j) {
    uint below = uint(clamp(iy, 0, x_sizes[0] - 1));
#if defined(LAYOUT_first)
    uint row = x_at + below * (x_strides[2] / 8u);
    uvec4 vector = x_vectors[row];
    uint before = row * 4u - (begins ? 0u : 1u), after = row * 4u + (ends ? 0u : 4u);
    [[unroll]] for (uint w = 0u; w < READ; ++w)
        given[j][w] = w < LEFT ? x_words[before] : w < LEFT + 4u ? vector[w - LEFT & 3u] : x_words[after];
#else
    uint row = x_at + below * x_strides[2];
    [[unroll]] for (uint w = 0u; w < READ; ++w)
        given[j][w] = x_words[(row + uint(clamp(left + int(w), 0, x_sizes[1] - 1)) * x_strides[3]) / 2u];
#endif
}

void read_gradients(int wy) {
    uint row = dy_at + uint(clamp(wy, 0, y_sizes[0] - 1)) * dy_strides[2];
#if defined(LAYOUT_first)
    [[unroll]] for (uint w = DY_FIRST / WORDS * WORDS; w <= DY_LAST; w += WORDS) {
        int place = wx + int(w * 2u) - int(PHASE);
        uint word = (row + (uint(place) < uint(y_sizes[1]) ? uint(place) : 0u)) / 2u;
        uvec4 chunk = uvec4(0u);
        if (WORDS == 4u && w >= DY_FIRST && w + 3u <= DY_LAST) {
            chunk = dy_vectors[word / 4u];
        } else if (WORDS == 2u && w >= DY_FIRST && w + 1u <= DY_LAST) {
            chunk.xy = dy_pairs[word / 2u];
        } else {
            [[unroll]] for (uint i = 0u; i < WORDS; ++i)
                if (w + i >= DY_FIRST && w + i <= DY_LAST) chunk[i] = dy_words[word + i];
        }
        [[unroll]] for (uint i = 0u; i < WORDS; ++i)
            if (w + i >= DY_FIRST && w + i <= DY_LAST) gradients[w + i - DY_FIRST] = chunk[i];
    }
#else
    [[unroll]] for (uint w = 0u; w < DY_READ; ++w)
        gradients[w] = dy_words[(row + uint(clamp(wx + int(w), 0, y_sizes[1] - 1)) * dy_strides[3]) / 2u];
#endif
}

// Makes the keys of row ``iy``, which is row ``j`` of this turn and ``k`` of its windows, and the largest of each.
// They are the elements, but not in a row with NaN or infinities: there NaN is infinity, and infinities are large
// numbers. What is outside is -infinity, below all of them.
void order_row(uint j, int iy, uint k) {
    uint words[READ];
    f16vec2 sum = unpackFloat2x16(given[j][0]);
    [[unroll]] for (uint w = 0u; w < READ; ++w) {
        words[w] = given[j][w];
        if (w != 0u) sum += unpackFloat2x16(words[w]);
#if defined(LAYOUT_first)
        if (w < LEFT && begins || w >= LEFT + 4u && ends) words[w] = LOWEST;
#else
        if (uint(left + int(w)) >= uint(x_sizes[1])) words[w] = LOWEST;
#endif
    }
    bool outside = uint(iy) >= uint(x_sizes[0]);
    // Only if this sum is not finite, an element may be so.
    bool special = ((packFloat2x16(sum) & 0x7C007C00u) + 0x04000400u & 0x80008000u) != 0u;
    [[unroll]] for (uint w = 0u; w < READ; ++w)
        [[unroll]] for (uint h = 0u; h < 2u; ++h) {
#if defined(LAYOUT_first)
            uint e = 2u * w + h + LEAD_X - 2u * LEFT, to = e;  // wraps
#else
            uint e = w, to = 2u * w + h;
#endif
            if (e < SPAN) keys[k][to] = unpackHalf2x16(words[w])[h];
        }
    if (outside || special) {
        [[unroll]] for (uint w = 0u; w < READ; ++w)
            [[unroll]] for (uint h = 0u; h < 2u; ++h) {
#if defined(LAYOUT_first)
                uint e = 2u * w + h + LEAD_X - 2u * LEFT, to = e;
                bool exists = !(outside || w < LEFT && begins || w >= LEFT + 4u && ends);
#else
                uint e = w, to = 2u * w + h;
                bool exists = !outside && uint(left + int(w)) < uint(x_sizes[1]);
#endif
                if (e >= SPAN) continue;
                uint bits = given[j][w] >> 16u * h & 0xFFFFu;
                float key = clamp(unpackHalf2x16(bits).x, -131072.0, 131072.0);
                if ((bits & 0x7FFFu) > 0x7C00u) key = uintBitsToFloat(0x7F800000u);
                keys[k][to] = exists ? key : uintBitsToFloat(0xFF800000u);
            }
    }
    [[unroll]] for (uint i = 0u; i < COUNT_X; ++i)
        [[unroll]] for (uint l = 0u; l < LANES; ++l) {
            float largest = keys[k][i * STRIDE_X * LANES + l];
            [[unroll]] for (uint c = 1u; c < WINDOW_X; ++c)
                largest = max(largest, keys[k][(i * STRIDE_X + c) * LANES + l]);
            most[k][i * LANES + l] = largest;
        }
}

void main() {
    Block block = block_at(invocation_index(), uint(x_sizes[0]), uint(x_sizes[1]));
    if (block.batch >= batches) return;
    column = block.x * COLUMNS;
    left = int(column) - int(LEAD_X);
    begins = block.x == 0u;
    ends = column + COLUMNS >= uint(x_sizes[1]);
    x_at = x_offset + block.batch * x_strides[0] + block.channel * x_strides[1];
#if defined(LAYOUT_first)
    x_at = (x_at + column) / 8u;
#endif
    dy_at = dy_offset + block.batch * dy_strides[0] + block.channel * dy_strides[1];
    wx = int(block.x * (COLUMNS / STRIDE_X)) + first[1];
    [[unroll]] for (uint w = 0u; w < DY_READ; ++w) {
#if defined(LAYOUT_first)
        int place = wx + int((w + DY_FIRST) * 2u) - int(PHASE);
        there[w] = (uint(place) < uint(y_sizes[1]) ? 0xFFFFu : 0u) | (uint(place + 1) < uint(y_sizes[1]) ? 0xFFFF0000u : 0u);
#else
        there[w] = uint(wx + int(w)) < uint(y_sizes[1]) ? 0xFFFFFFFFu : 0u;
#endif
    }
    uint beginning = block.y * ROWS, end = min(beginning + ROWS, uint(x_sizes[0]));
    int wy = int(block.y * (ROWS / STRIDE_Y)) + first[0], iy = int(beginning) - int(LEAD_Y);
    uint to = dx_offset + block.batch * dx_strides[0] + block.channel * dx_strides[1] + column * dx_strides[3];

    float made[WINDOW_Y][MADE];
    [[unroll]] for (uint k = 0u; k < KEPT; ++k) {
        read_row(iy + int(k), 0u);
        order_row(0u, iy + int(k), k);
        [[unroll]] for (uint e = 0u; e < MADE; ++e) made[k][e] = 0.0;
    }

    [[dont_unroll]] for (uint turn = 0u; turn < TURNS; ++turn) {
        [[unroll]] for (uint k = 0u; k < STRIDE_Y; ++k) read_row(iy + int(KEPT + k), k);
        read_gradients(wy);
        [[unroll]] for (uint k = 0u; k < STRIDE_Y; ++k) {
            order_row(k, iy + int(KEPT + k), KEPT + k);
            [[unroll]] for (uint e = 0u; e < MADE; ++e) made[KEPT + k][e] = 0.0;
        }
        [[unroll]] for (uint w = 0u; w < DY_READ; ++w)
            gradients[w] &= uint(wy) < uint(y_sizes[0]) ? there[w] : 0u;  // others choose nothing
        [[unroll]] for (uint i = 0u; i < COUNT_X; ++i)
            [[unroll]] for (uint l = 0u; l < LANES; ++l) {
                const uint n = i * LANES + l;
                float largest = most[0][n];
                [[unroll]] for (uint k = 1u; k < WINDOW_Y; ++k) largest = max(largest, most[k][n]);
#if defined(LAYOUT_first)
                float gradient = halves_to_floats(gradients[(PHASE + i) / 2u - DY_FIRST])[(PHASE + i) % 2u];
#else
                float gradient = halves_to_floats(gradients[i])[l];
#endif
                [[unroll]] for (uint k = 0u; k < WINDOW_Y; ++k)
                    [[unroll]] for (uint c = 0u; c < WINDOW_X; ++c) {
                        const uint e = i * STRIDE_X + c;
                        if (keys[k][e * LANES + l] != largest) continue;
                        if (e >= LEAD_X && e - LEAD_X < COLUMNS) made[k][(e - LEAD_X) * LANES + l] += gradient;
                        gradient = 0.0;
                    }
            }
        [[unroll]] for (uint k = 0u; k < STRIDE_Y; ++k) {
            uint row = uint(iy) + k;
            if (row - beginning >= end - beginning) continue;
            uint at = to + row * dx_strides[2];
#if defined(LAYOUT_first)
            uvec4 bits;
            [[unroll]] for (uint w = 0u; w < 4u; ++w)
                bits[w] = floats_to_halves(made[k][2u * w], made[k][2u * w + 1u]);
            dx_vectors[at / 8u] = bits;
#else
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                if (column + c < uint(x_sizes[1]))
                    dx_words[(at + c * dx_strides[3]) / 2u] = floats_to_halves(made[k][2u * c], made[k][2u * c + 1u]);
#endif
        }
        // The rows that later windows reach begin these windows.
        [[unroll]] for (uint k = 0u; k < KEPT; ++k) {
            [[unroll]] for (uint e = 0u; e < KEYS; ++e) keys[k][e] = keys[k + STRIDE_Y][e];
            [[unroll]] for (uint e = 0u; e < MAXIMA; ++e) most[k][e] = most[k + STRIDE_Y][e];
            [[unroll]] for (uint e = 0u; e < MADE; ++e) made[k][e] = made[k + STRIDE_Y][e];
        }
        iy += int(STRIDE_Y);
        ++wy;
    }
}
