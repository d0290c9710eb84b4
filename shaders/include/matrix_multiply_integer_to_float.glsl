// Shared code of the matrix_multiply_integer_to_float shaders: the interface, the place of a workgroup's
// tile, and the conversion of an exact sum to an output element. The includer defines TILE_ROWS and
// TILE_COLUMNS.
#ifdef SPECIALIZED
layout(constant_id = 13) const bool EXACT_UNITS = false;
#define HAS_EXACT_UNITS EXACT_UNITS
#endif
#include "include/grid.glsl"
#include "include/integers.glsl"
#include "include/float16.glsl"

// The kinds of operands are bits of one push word, in this order, so that one pipeline serves them all. A
// shader that is faster with constants defines SPECIALIZED. Each kind is a constant of its own, because
// there is a compiler that crashes on bits of a single constant.
#ifdef SPECIALIZED
layout(constant_id = 1) const bool A_SIGNED = false;
layout(constant_id = 2) const bool B_SIGNED = false;
layout(constant_id = 3) const bool HAS_A_ZERO = false;
layout(constant_id = 4) const bool HAS_B_ZERO = false;
layout(constant_id = 5) const bool HAS_BIAS = false;
layout(constant_id = 6) const bool HALF = false;
layout(constant_id = 7) const bool CONTINUES = false;
layout(constant_id = 8) const bool UNFINISHED = false;
layout(constant_id = 17) const bool INTEGER = false;
layout(constant_id = 21) const bool SCALES_FIRST = false;
#else
#define FLAG(bit) ((flags & (1u << bit)) != 0u)
#define A_SIGNED FLAG(0)
#define B_SIGNED FLAG(1)
#define HAS_A_ZERO FLAG(2)
#define HAS_B_ZERO FLAG(3)
#define HAS_BIAS FLAG(4)
#define HALF FLAG(5)  // scales, bias and output are float16
// A long K takes several dispatches. Each adds to the sums of the dispatches before it. A last dispatch
// finishes them.
#define CONTINUES FLAG(6)
#define UNFINISHED FLAG(7)
#define INTEGER FLAG(8)  // the output is the sum, modulo 2^32
#define SCALES_FIRST FLAG(9)  // A's scale, which is one number, times B's scale is rounded, too
#endif

layout(binding = 0) readonly buffer A { uint a[]; };
layout(binding = 1) readonly buffer AScale { uint a_scale[]; };
layout(binding = 2) readonly buffer AZero { uint a_zero[]; };
layout(binding = 3) readonly buffer B { uint b[]; };
layout(binding = 4) readonly buffer BScale { uint b_scale[]; };
layout(binding = 5) readonly buffer BZero { uint b_zero[]; };
layout(binding = 6) readonly buffer Bias { uint bias[]; };
layout(binding = 7) buffer Output { uint out_words[]; };
// 64-bit sums, which dispatches of a long K write instead of the output.
#ifndef PARTIAL_BINDING
#define PARTIAL_BINDING 7
#endif
layout(binding = PARTIAL_BINDING) buffer Partial { uvec2 partial[]; };

layout(push_constant) uniform Push {
    uint batches;
    uint rows;
    uint K;
    uint columns;
    uint a_strides[3];  // batch, row, K
    uint b_strides[3];  // batch, K, column
    uint bias_strides[3];
    uint out_strides[3];
    uint a_scale_stride;
    uint a_zero_stride;
    uint b_scale_stride;
    uint b_zero_stride;
    uint a_offset;
    uint a_scale_offset;
    uint a_zero_offset;
    uint b_offset;
    uint b_scale_offset;
    uint b_zero_offset;
    uint bias_offset;
    uint out_offset;
    uint partial_offset;
#ifndef SPECIALIZED
    uint flags;
#endif
#ifdef SPLITS_K
    uint parts;
    uint zeroed_offset;
    uint count_shift;
#endif
#ifdef GIVEN_SUMS
    uint row_sums_offset;
    uint column_sums_offset;
#ifdef SUMS_ASIDE
    uint zeroed_offset;
#else
    uint sum_count;
#endif
#endif
};

// The tile of this workgroup; false beyond the last tile. Tiles are numbered by columns within bands of
// 16 rows of tiles, so that workgroups that run together share their reads.
#ifndef TILE_INDEX
#define TILE_INDEX group_index()
#endif
bool find_tile(out uint batch, out uint row, out uint column) {
    const uint band = 16u;
    uint down = (rows - 1u) / TILE_ROWS + 1u;
    uint across = (columns - 1u) / TILE_COLUMNS + 1u;
    uint tile = TILE_INDEX;
    batch = tile / (down * across);
    tile -= batch * (down * across);
    uint first = tile / (band * across) * band;
    uint height = min(band, down - first);
    tile -= first * across;
    row = (first + tile % height) * TILE_ROWS;
    column = tile / height * TILE_COLUMNS;
    return batch < batches;
}

#define LOAD_FLOAT(words, index) \
    (HALF ? LOAD_HALF(words, index) : uintBitsToFloat(words[index]))

// The operands that turn a sum into an output. Positions beyond the edges are clamped.
struct Finish {
    float a_scale;
    float b_scale;
    float shift;
};

Finish finish_at(uint batch, uint row, uint column) {
    row = min(row, rows - 1u);
    column = min(column, columns - 1u);
    Finish f;
    f.a_scale = LOAD_FLOAT(a_scale, a_scale_offset + row * a_scale_stride);
    f.b_scale = LOAD_FLOAT(b_scale, b_scale_offset + column * b_scale_stride);
    if (SCALES_FIRST) {
        precise float both = f.a_scale * f.b_scale;
        f.b_scale = both;
        f.a_scale = 1.0;
    }
    f.shift = HAS_BIAS ? LOAD_FLOAT(bias, bias_offset + batch * bias_strides[0] +
                                              row * bias_strides[1] + column * bias_strides[2])
                       : 0.0;
    return f;
}

// The output as bits of a float. An INTEGER output is the sum.
float scale_and_bias(uvec2 sum, Finish f) {
    if (INTEGER) return uintBitsToFloat(sum.x);
    const bool is_signed = A_SIGNED || B_SIGNED || HAS_A_ZERO || HAS_B_ZERO;
    bool is_word = HAS_EXACT_UNITS && sum.y == uint(int(sum.x) >> 31);
    precise float x = is_word ? float(int(sum.x)) : round_to_float(sum, is_signed);
    x = x * f.a_scale;
    x = x * f.b_scale;
    if (HAS_BIAS) x = x + f.shift;
    return x;
}

// Finishes the sums of two neighbouring columns. Those beyond the edges are dropped.
void finish_pair(uint batch, uint row, uint column, uvec2 sum, uvec2 next_sum, Finish finish,
                 Finish next_finish) {
    if (row >= rows || column >= columns) return;
    bool has_next = column + 1u < columns;
    uint at = partial_offset + (batch * rows + row) * columns + column;
    if (CONTINUES) {
        sum = add64(sum, partial[at]);
        if (has_next) next_sum = add64(next_sum, partial[at + 1u]);
    }
    if (UNFINISHED) {
        partial[at] = sum;
        if (has_next) partial[at + 1u] = next_sum;
        return;
    }
    float x = scale_and_bias(sum, finish);
    float y = scale_and_bias(next_sum, next_finish);
    uint to = out_offset + batch * out_strides[0] + row * out_strides[1] + column * out_strides[2];
    uint next_to = to + out_strides[2];
    if (!HALF) {
        out_words[to] = floatBitsToUint(x);
        if (has_next) out_words[next_to] = floatBitsToUint(y);
    } else if (has_next && out_strides[2] == 1u && to % 2u == 0u) {
        out_words[to / 2u] = floats_to_halves(x, y);
    } else {
        STORE_HALF(out_words, to, float_to_half(x))
        if (has_next) STORE_HALF(out_words, next_to, float_to_half(y))
    }
}

void finish_pair(uint batch, uint row, uint column, uvec2 sum, uvec2 next_sum) {
    finish_pair(batch, row, column, sum, next_sum, finish_at(batch, row, column),
                finish_at(batch, row, column + 1u));
}
