//@ op DML_OPERATOR_MAX_POOLING_GRAD
//@ variants LAYOUT: first last
//@ unchecked *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// The gradient of max pooling of FLOAT16 by windows of 3 x 3 that move by 2, in one pass. An invocation goes down a strip
// of ROWS rows and COLUMNS columns. Each turn adds a row of windows: two rows of elements are read, and two rows of
// gradients become complete. Two windows are computed at once, in the halves of words: neighbours if channels come
// first, else those of two channels.
// Of three elements in order, the second takes the gradient if it exceeds the first, and the third if it exceeds both.
// "Exceeds" is a mask of each half. So a window's gradient goes to one of its rows, and there to one of three elements.
layout(constant_id = 7) const uint ROWS = 16u;    // even
layout(constant_id = 8) const uint COLUMNS = 8u;  // 8 if channels come first, else even
layout(constant_id = 9) const uint LEAD_Y = 1u;   // elements of the first window before the block, 1 or 2
layout(constant_id = 10) const uint LEAD_X = 1u;
layout(constant_id = 13) const uint WORDS = 1u;  // of a chunk of incoming gradients
layout(constant_id = 14) const uint PHASE = 0u;  // where the first window's lies in its chunk
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
const uint COUNT = COLUMNS / 2u + 1u;  // windows that reach into a row of a block
const uint SPAN = 2u * COUNT + 1u;     // elements of a row of them
const uint TURNS = (ROWS - 1u + LEAD_Y) / 2u + 1u;
#if defined(LAYOUT_first)
const bool AHEAD = true;  // Each turn reads what the next needs, as is faster here.
const uint PAIRS = 3u;  // the last has one window
const uint READ = 6u;   // words of a row: one, a vector, one
const uint DY_FIRST = PHASE / 2u, DY_LAST = (PHASE + COUNT - 1u) / 2u, DY_READ = DY_LAST - DY_FIRST + 1u;
#else
const bool AHEAD = false;
#define PAIRS COUNT
#define READ SPAN
#define DY_READ COUNT
#endif
const uint NONE = 0xFC00FC00u;  // what comes before a row or a plane
const uint ALL = 0xFFFFFFFFu;

int left, wx;              // the first element and window of a row
uint column, x_at, dy_at;  // of the block; where the plane begins
bool begins, ends;
uint zero;  // Compilers drop products and sums with a 0 that they know.
uint exists[DY_READ];
uint now[2][READ], next[2][READ], gradients[DY_READ], next_gradients[DY_READ];
// Of the windows in three rows of elements: the largest, and whether the second and the third exceed those before.
uint most[3][PAIRS], second[3][PAIRS], third[3][PAIRS];

f16vec2 two(uint word) { return unpackFloat2x16(word); }
uint word_of(f16vec2 x) { return packFloat2x16(x); }

// Half ``h`` of ``a`` and half ``k`` of ``b``.
uint pick(uint a, uint h, uint b, uint k) {
    return word_of(f16vec2(h == 0u ? two(a).x : two(a).y, k == 0u ? two(b).x : two(b).y));
}

// Reads the words of row ``iy``, or of the nearest row, as row ``j`` of the next turn.
void read_row(int iy, uint j) {
    uint below = uint(clamp(iy, 0, x_sizes[0] - 1));
#if defined(LAYOUT_first)
    uint row = x_at + below * (x_strides[2] / 8u);
    uvec4 vector = x_vectors[row];
    next[j][0] = x_words[row * 4u - (begins ? 0u : 1u)];
    [[unroll]] for (uint w = 0u; w < 4u; ++w) next[j][1u + w] = vector[w];
    next[j][5] = x_words[row * 4u + (ends ? 3u : 4u)];
#else
    uint row = x_at + below * x_strides[2];
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
        uvec2 chunk = uvec2(0u);
        if (WORDS == 2u && w >= DY_FIRST && w + 1u <= DY_LAST) {
            chunk = dy_pairs[word / 2u];
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

void read_turn(int iy, int wy) {
    [[unroll]] for (uint k = 0u; k < 2u; ++k) read_row(iy + int(1u + k), k);
    read_gradients(wy);
}

// 0xFFFF for each half of ``x`` that is less than that of ``y``.
uint less(uint x, uint y) { return (two(x).x < two(y).x ? 0xFFFFu : 0u) | (two(x).y < two(y).y ? 0xFFFF0000u : 0u); }

// The same of finite numbers if none is larger than that of ``y``. They lie 2^-24 apart, which is the integer 1.
uint less_finite(uint x, uint y) {
    uint steps = word_of(min(abs(two(y) - two(x)), two(0x00010001u)));
    if (LEAD_X == 2u) steps &= 0x00010001u;  // the difference of two ``NONE`` is NaN
    return steps * 0xFFFFu;
}

struct Order {
    uint most, second, third;
};

// Of three that are finite, or ``NONE`` before the others.
Order order_finite(uint a, uint b, uint c) {
    uint both = word_of(max(two(a), two(b))), most = word_of(max(two(both), two(c)));
    return Order(most, less_finite(a, both), less_finite(both, most));
}

uint is_nan(uint x) { return ((x & 0x7FFF7FFFu) + 0x03FF03FFu >> 15 & 0x00010001u) * 0xFFFFu; }

// Of any three. ``before_a`` and ``before_b`` have 0xFFFF where what is there does not exist.
// NaN exceeds all others. Beside NaN, infinity stands for it and 0 for the others.
Order order_any(uint a, uint b, uint c, uint before_a, uint before_b) {
    uint nan_a = is_nan(a), nan_b = is_nan(b), nan_c = is_nan(c), nan = nan_a | nan_b | nan_c;
    a = a & ~nan | nan_a & 0x7C007C00u;
    b = b & ~nan | nan_b & 0x7C007C00u;
    c = c & ~nan | nan_c & 0x7C007C00u;
    uint both = word_of(max(two(a), two(b))), most = word_of(max(two(both), two(c)));
    return Order(most & ~nan | nan & 0x7E007E00u, less(a, b) | before_a, less(both, c) | before_b);
}

// NaN or infinity times 0 is NaN.
uint with_row(uint sum, uint j) {
    f16vec2 total = two(sum);
    [[unroll]] for (uint w = 0u; w < READ; ++w) total += two(now[j][w]) * two(zero);
    return word_of(total);
}

bool has_nan(uint sum) { return any(isnan(two(sum))); }

// Elements ``e`` and, if channels come first, ``e`` + 2 of row ``j``. What lies after a row exceeds nothing before it.
uint elements(uint j, uint e) {
#if defined(LAYOUT_first)
    const uint q = e + 2u - LEAD_X, r = min(q + 2u, 11u);
    uint a = now[j][q / 2u], b = now[j][r / 2u];
    if (q / 2u == 0u && begins || q / 2u == 5u && ends) a = NONE;
    if (r / 2u == 5u && ends) b = NONE;
    return pick(a, q % 2u, b, r % 2u);
#else
    return e < LEAD_X && begins ? NONE : now[j][e];
#endif
}

// Orders row ``j`` of this turn, which is row ``k`` of its windows.
void order_row(uint j, uint k, bool before, bool any_numbers) {
    [[unroll]] for (uint p = 0u; p < PAIRS; ++p) {
#if defined(LAYOUT_first)
        const uint e = 4u * p, none = 0xFFFFu;
#else
        const uint e = 2u * p, none = ALL;
#endif
        uint a = elements(j, e), b = elements(j, e + 1u), c = elements(j, e + 2u);
        Order order;
        if (any_numbers) {
            bool begun = p == 0u && begins;
            order = order_any(a, b, c, begun ? none : 0u, begun && LEAD_X == 2u ? none : 0u);
        } else {
            order = order_finite(a, b, c);
        }
        most[k][p] = before ? NONE : order.most;
        second[k][p] = order.second;
        third[k][p] = order.third;
    }
}

uint where_first(uint x, uint k, uint p) { return x & ~(second[k][p] | third[k][p]); }
uint where_second(uint x, uint k, uint p) { return x & second[k][p] & ~third[k][p]; }
uint where_third(uint x, uint k, uint p) { return x & third[k][p]; }

void main() {
    Block block = block_at(invocation_index(), uint(x_sizes[0]), uint(x_sizes[1]));
    if (block.batch >= batches) return;
    column = block.x * COLUMNS;
    left = int(column) - int(LEAD_X);
    begins = block.x == 0u;
    ends = column + COLUMNS >= uint(x_sizes[1]);
    x_at = x_offset + block.batch * x_strides[0] + block.channel * x_strides[1];
    dy_at = dy_offset + block.batch * dy_strides[0] + block.channel * dy_strides[1];
    wx = int(block.x * (COLUMNS / 2u)) + first[1];
    zero = gl_NumWorkGroups.z - 1u;
#if defined(LAYOUT_first)
    x_at = (x_at + column) / 8u;
#endif
    [[unroll]] for (uint w = 0u; w < DY_READ; ++w) {
#if defined(LAYOUT_first)
        int place = wx + int((w + DY_FIRST) * 2u) - int(PHASE);
        exists[w] = (uint(place) < uint(y_sizes[1]) ? 0xFFFFu : 0u)
                    | (uint(place + 1) < uint(y_sizes[1]) ? 0xFFFF0000u : 0u);
#else
        exists[w] = uint(wx + int(w)) < uint(y_sizes[1]) ? ALL : 0u;
#endif
    }
    uint beginning = block.y * ROWS, end = min(beginning + ROWS, uint(x_sizes[0]));
    int wy = int(block.y * (ROWS / 2u)) + first[0], iy = int(beginning) - int(LEAD_Y);
    uint to = dx_offset + block.batch * dx_strides[0] + block.channel * dx_strides[1] + column * dx_strides[3];
#if defined(LAYOUT_first)
    to /= 8u;
#endif

    read_row(iy, 0u);
    [[unroll]] for (uint w = 0u; w < READ; ++w) now[0][w] = next[0][w];
    uint sum_before = with_row(zero, 0u);
    order_row(0u, 0u, iy < 0, true);
    uint rest[PAIRS];  // gradients of the row of windows before that go to row 0 of this
    [[unroll]] for (uint p = 0u; p < PAIRS; ++p) rest[p] = 0u;
    if (AHEAD) read_turn(iy, wy);

    [[dont_unroll]] for (uint turn = 0u; turn < TURNS; ++turn) {
        if (!AHEAD) read_turn(iy, wy);
        [[unroll]] for (uint k = 0u; k < 2u; ++k)
            [[unroll]] for (uint w = 0u; w < READ; ++w) now[k][w] = next[k][w];
        [[unroll]] for (uint w = 0u; w < DY_READ; ++w) gradients[w] = next_gradients[w];
        if (AHEAD && turn + 1u < TURNS) read_turn(iy + 2, wy + 1);

        // The rows, and then each window's rows.
        uint sum = with_row(sum_before, 0u), row_2[PAIRS], row_3[PAIRS];
        sum_before = with_row(zero, 1u);
        sum = word_of(two(sum) + two(sum_before));
        bool before = iy < 0, before_next = LEAD_Y == 2u && before;
        if (has_nan(sum)) {
            order_row(0u, 1u, before_next, true);
            order_row(1u, 2u, false, true);
            [[unroll]] for (uint p = 0u; p < PAIRS; ++p) {
                Order order = order_any(most[0][p], most[1][p], most[2][p], before ? ALL : 0u, before_next ? ALL : 0u);
                row_2[p] = order.second;
                row_3[p] = order.third;
            }
        } else {
            order_row(0u, 1u, before_next, false);
            order_row(1u, 2u, false, false);
            [[unroll]] for (uint p = 0u; p < PAIRS; ++p) {
                Order order = order_finite(most[0][p], most[1][p], most[2][p]);
                row_2[p] = order.second;
                row_3[p] = order.third;
            }
        }

        uint there = uint(wy) < uint(y_sizes[0]) ? ALL : 0u, given[3][PAIRS];  // to each row
        [[unroll]] for (uint w = 0u; w < DY_READ; ++w) gradients[w] &= there & exists[w];
        [[unroll]] for (uint p = 0u; p < PAIRS; ++p) {
#if defined(LAYOUT_first)
            const uint h = PHASE + 2u * p - 2u * DY_FIRST, k = min(h + 1u, 2u * DY_READ - 1u);
            uint gradient = pick(gradients[h / 2u], h % 2u, gradients[k / 2u], k % 2u);
#else
            uint gradient = gradients[p];
#endif
            gradient = word_of(two(gradient) + two(zero));  // no -0
            given[0][p] = gradient & ~(row_2[p] | row_3[p]);
            given[1][p] = gradient & row_2[p] & ~row_3[p];
            given[2][p] = gradient & row_3[p];
        }

        // Elements that one window of a row reaches, and those that two reach: its last and the first of the next.
        // Sums of two are exact until they are rounded. Sums of four are of floats, in the windows' order.
        uint own[2][PAIRS], shared_by_two[2][PAIRS - 1u];
        [[unroll]] for (uint p = 0u; p < PAIRS; ++p) {
            own[0][p] = where_second(word_of(two(rest[p]) + two(given[0][p])), 0u, p);
            own[1][p] = where_second(given[1][p], 1u, p);
        }
        [[unroll]] for (uint p = 0u; p + 1u < PAIRS; ++p) {
            const uint q = p + 1u;
#if defined(LAYOUT_first)
            // The next window of a half is the other half, then that of the next pair.
            vec2 a = vec2(two(where_third(rest[p], 0u, p)));
            a += vec2(two(where_first(rest[p], 0u, p)).y, two(where_first(rest[q], 0u, q)).x);
            a += vec2(two(where_third(given[0][p], 0u, p)));
            a += vec2(two(where_first(given[0][p], 0u, p)).y, two(where_first(given[0][q], 0u, q)).x);
            uint next_first = pick(where_first(given[1][p], 1u, p), 1u, where_first(given[1][q], 1u, q), 0u);
#else
            vec2 a = vec2(two(where_third(rest[p], 0u, p)));
            a += vec2(two(where_first(rest[q], 0u, q)));
            a += vec2(two(where_third(given[0][p], 0u, p)));
            a += vec2(two(where_first(given[0][q], 0u, q)));
            uint next_first = where_first(given[1][q], 1u, q);
#endif
            shared_by_two[0][p] = floats_to_halves(a.x, a.y);
            shared_by_two[1][p] = word_of(two(where_third(given[1][p], 1u, p)) + two(next_first));
        }
        [[unroll]] for (uint k = 0u; k < 2u; ++k) {
            uint row = uint(iy) + k;
            if (row - beginning >= end - beginning) continue;
#if defined(LAYOUT_first)
            uvec4 bits;
            [[unroll]] for (uint w = 0u; w < 4u; ++w) {
                const uint p = w / 2u, h = w % 2u;
                bits[w] = LEAD_X == 1u ? pick(own[k][p], h, shared_by_two[k][p], h)
                                       : pick(shared_by_two[k][p], h, own[k][p + h], 1u - h);
            }
            dx_vectors[to + row * (dx_strides[2] / 8u)] = bits;
#else
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
                const uint e = c + LEAD_X;
                if (column + c < uint(x_sizes[1]))
                    dx_words[(to + row * dx_strides[2] + c * dx_strides[3]) / 2u] =
                        e % 2u == 1u ? own[k][e / 2u] : shared_by_two[k][max(e / 2u, 1u) - 1u];
            }
#endif
        }
        // The last row begins the next windows.
        [[unroll]] for (uint p = 0u; p < PAIRS; ++p) {
            rest[p] = given[2][p];
            most[0][p] = most[2][p];
            second[0][p] = second[2][p];
            third[0][p] = third[2][p];
        }
        iy += 2;
        ++wy;
    }
}
