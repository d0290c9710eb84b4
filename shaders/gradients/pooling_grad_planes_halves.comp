//@ op DML_OPERATOR_MAX_POOLING_GRAD
//@ variants LAYOUT: first last
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// The gradient of max pooling of FLOAT16, in one pass. An invocation goes down a strip of ROWS rows and COLUMNS
// columns, of one channel or of two neighbours. Each turn adds a row of windows: STRIDE_Y rows of elements are read,
// and as many rows of gradients become complete. What the next turn needs is read before that.
// An element is a number, its key: what FLOAT16 orders is in the upper half, its place in the lower one, so that the
// first of equal elements has the larger key. The largest key of a window belongs to one element.
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
const uint NONE = 0x80008000u;  // what comes before all elements

int left, wx;              // the first element and window of a row
uint column, x_at, dy_at;  // of the block; where the plane begins
bool begins, ends;
const uint KEYS = SPAN * LANES, MAXIMA = COUNT_X * LANES, MADE = COLUMNS * LANES;
int keys[WINDOW_Y][KEYS], most[WINDOW_Y][MAXIMA];  // of the rows of windows, and of the windows in them
uint now[STRIDE_Y][READ], next[STRIDE_Y][READ], gradients[DY_READ], next_gradients[DY_READ];

// Reads the words of row ``iy``, or of the nearest row, as row ``j`` of the next turn.
void read_row(int iy, uint j) {
    uint row = x_at + uint(clamp(iy, 0, x_sizes[0] - 1)) * x_strides[2];
#if defined(LAYOUT_first)
    uint word = (row + column) / 2u;
    uvec4 vector = x_vectors[word / 4u];
    [[unroll]] for (uint w = 0u; w < READ; ++w) {
        if (w < LEFT) next[j][w] = x_words[begins ? word : word - (LEFT - w)];
        else if (w < LEFT + 4u) next[j][w] = vector[w - LEFT & 3u];
        else next[j][w] = x_words[ends ? word : word + (w - LEFT)];
    }
#else
    [[unroll]] for (uint w = 0u; w < READ; ++w)
        next[j][w] = x_words[(row + uint(clamp(left + int(w), 0, x_sizes[1] - 1)) * x_strides[3]) / 2u];
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
            if (w + i >= DY_FIRST && w + i <= DY_LAST) next_gradients[w + i - DY_FIRST] = chunk[i];
    }
#else
    [[unroll]] for (uint w = 0u; w < DY_READ; ++w)
        next_gradients[w] = dy_words[(row + uint(clamp(wx + int(w), 0, y_sizes[1] - 1)) * dy_strides[3]) / 2u];
#endif
}

// Makes the keys of row ``iy``, which is row ``j`` of this turn and ``k`` of its windows, and the largest of each.
void order_row(uint j, int iy, uint k) {
    bool row_inside = uint(iy) < uint(x_sizes[0]);
    // Compilers drop an addition of 0 that they know.
    f16vec2 zero = unpackFloat2x16(gl_NumWorkGroups.z - 1u), all_elements = zero;
    uint ordered[READ];
    [[unroll]] for (uint w = 0u; w < READ; ++w) {
        f16vec2 two = unpackFloat2x16(now[j][w]) + zero;  // no -0
        all_elements += two;
        uint bits = packFloat2x16(two), sign = bits & 0x80008000u;
        ordered[w] = bits ^ sign - (sign >> 15);
    }
    // Only a sum that is NaN can have one among its terms.
    if (any(isnan(all_elements))) {
        [[unroll]] for (uint w = 0u; w < READ; ++w) {
            uint nan = ((now[j][w] & 0x7FFF7FFFu) + 0x03FF03FFu >> 15 & 0x00010001u) * 0xFFFFu;
            ordered[w] = ordered[w] & ~nan | nan & 0x7FFF7FFFu;
        }
    }
    [[unroll]] for (uint w = 0u; w < READ; ++w) {
#if defined(LAYOUT_first)
        bool inside = row_inside && !(w < LEFT && begins) && !(w >= LEFT + 4u && ends);
#else
        bool inside = row_inside && uint(left + int(w)) < uint(x_sizes[1]);
#endif
        uint both = inside ? ordered[w] : NONE;
        [[unroll]] for (uint h = 0u; h < 2u; ++h) {
#if defined(LAYOUT_first)
            uint e = 2u * w + h + LEAD_X - 2u * LEFT;  // wraps
            uint to = e;
#else
            uint e = w, to = 2u * w + h;
#endif
            if (e >= SPAN) continue;
            uint place = (WINDOW_Y - 1u - k) * 16u + 15u - e;
            keys[k][to] = int(h == 0u ? both * 65536u + place : both & 0xFFFF0000u | place);
        }
    }
    [[unroll]] for (uint i = 0u; i < COUNT_X; ++i)
        [[unroll]] for (uint l = 0u; l < LANES; ++l) {
            int largest = keys[k][i * STRIDE_X * LANES + l];
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
    dy_at = dy_offset + block.batch * dy_strides[0] + block.channel * dy_strides[1];
    wx = int(block.x * (COLUMNS / STRIDE_X)) + first[1];
    uint beginning = block.y * ROWS, end = min(beginning + ROWS, uint(x_sizes[0]));
    int wy = int(block.y * (ROWS / STRIDE_Y)) + first[0], iy = int(beginning) - int(LEAD_Y);
    uint to = dx_offset + block.batch * dx_strides[0] + block.channel * dx_strides[1] + column * dx_strides[3];

    float made[WINDOW_Y][MADE];
    [[unroll]] for (uint k = 0u; k < KEPT; ++k) {
        read_row(iy + int(k), 0u);
        [[unroll]] for (uint w = 0u; w < READ; ++w) now[0][w] = next[0][w];
        order_row(0u, iy + int(k), k);
        [[unroll]] for (uint e = 0u; e < MADE; ++e) made[k][e] = 0.0;
    }
    [[unroll]] for (uint k = 0u; k < STRIDE_Y; ++k) read_row(iy + int(KEPT + k), k);
    read_gradients(wy);

    [[dont_unroll]] for (uint turn = 0u; turn < TURNS; ++turn) {
        [[unroll]] for (uint k = 0u; k < STRIDE_Y; ++k)
            [[unroll]] for (uint w = 0u; w < READ; ++w) now[k][w] = next[k][w];
        [[unroll]] for (uint w = 0u; w < DY_READ; ++w) gradients[w] = next_gradients[w];
        if (turn + 1u < TURNS) {
            [[unroll]] for (uint k = 0u; k < STRIDE_Y; ++k) read_row(iy + int(WINDOW_Y + k), k);
            read_gradients(wy + 1);
        }
        [[unroll]] for (uint k = 0u; k < STRIDE_Y; ++k) {
            order_row(k, iy + int(KEPT + k), KEPT + k);
            [[unroll]] for (uint e = 0u; e < MADE; ++e) made[KEPT + k][e] = 0.0;
        }
        bool there = uint(wy) < uint(y_sizes[0]);
        [[unroll]] for (uint i = 0u; i < COUNT_X; ++i)
            [[unroll]] for (uint l = 0u; l < LANES; ++l) {
                const uint n = i * LANES + l;
                int largest = most[0][n];
                [[unroll]] for (uint k = 1u; k < WINDOW_Y; ++k) largest = max(largest, most[k][n]);
#if defined(LAYOUT_first)
                float gradient = halves_to_floats(gradients[(PHASE + i) / 2u - DY_FIRST])[(PHASE + i) % 2u];
#else
                float gradient = halves_to_floats(gradients[i])[l];
#endif
                // Windows that do not exist choose nothing.
                if (!(there && uint(wx + int(i)) < uint(y_sizes[1]))) gradient = 0.0;
                [[unroll]] for (uint k = 0u; k < WINDOW_Y; ++k)
                    [[unroll]] for (uint c = 0u; c < WINDOW_X; ++c) {
                        const uint e = i * STRIDE_X + c;
                        if (e < LEAD_X || e - LEAD_X >= COLUMNS) continue;
                        if (keys[k][e * LANES + l] == largest) made[k][(e - LEAD_X) * LANES + l] += gradient;
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
            [[unroll]] for (uint e = 0u; e < KEYS; ++e)
                keys[k][e] = keys[k + STRIDE_Y][e] + int(STRIDE_Y * 16u);
            [[unroll]] for (uint e = 0u; e < MAXIMA; ++e)
                most[k][e] = most[k + STRIDE_Y][e] + int(STRIDE_Y * 16u);
            [[unroll]] for (uint e = 0u; e < MADE; ++e) made[k][e] = made[k + STRIDE_Y][e];
        }
        iy += int(STRIDE_Y);
        ++wy;
    }
}
