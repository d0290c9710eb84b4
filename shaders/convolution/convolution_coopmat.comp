//@ op DML_OPERATOR_CONVOLUTION DML_OPERATOR_CONVOLUTION_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION
//@ variants OF: f16 i8 ; TILE:
//@     t256(rows=256, columns=128, vectors=4, down=4, across=2, m=16, n=16, deep=32, lanes=32)
//@     t256x64(rows=256, columns=64, vectors=4, down=4, across=1, m=16, n=16, deep=32, lanes=32)
//@     t128x160(rows=128, columns=160, vectors=4, down=2, across=2, m=16, n=16, deep=32, lanes=32)
//@     t128(rows=128, columns=128, vectors=4, down=2, across=2, m=16, n=16, deep=32, lanes=32)
//@     t128d(rows=128, columns=128, vectors=8, down=2, across=2, m=16, n=16, deep=32, lanes=32)
//@     t96(rows=96, columns=128, vectors=4, down=2, across=2, m=16, n=16, deep=32, lanes=32)
//@     t96d(rows=96, columns=128, vectors=8, down=2, across=2, m=16, n=16, deep=32, lanes=32)
//@     t128x64(rows=128, columns=64, vectors=4, down=2, across=2, m=16, n=16, deep=32, lanes=32)
//@     t64(rows=64, columns=64, vectors=8, down=2, across=2, m=16, n=16, deep=32, lanes=32)
//@     t64s(rows=64, columns=64, vectors=4, down=2, across=2, m=16, n=16, deep=32, lanes=32)
//@     t64k16(rows=64, columns=64, vectors=4, down=2, across=2, m=16, n=16, deep=16, lanes=32)
//@     t64m8n16(rows=64, columns=64, vectors=4, down=8, across=2, m=8, n=16, deep=32, lanes=16)
//@     t32m8n8(rows=32, columns=32, vectors=4, down=4, across=4, m=8, n=8, deep=32, lanes=8)
//@ without i8.t256x64 i8.t128 i8.t128d f16.t64k16 f16.t64m8n16 f16.t32m8n8
//@ glslang >= 14
//@ target vulkan1.1
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_control_flow_attributes : require
#if defined(OF_f16)
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#else
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_spirv_intrinsics : require
#endif
// convolution.comp on matrix units: of FLOAT16 with float32 sums, or of bytes with INT32 sums, which
// may be REQUANTIZED, or SCALED to FLOAT32. Channels of input and filter are contiguous, in vectors of 16 bytes
// (convolution_pack.comp makes that layout). K covers vectors of channels within taps.
// Subgroups of LANES compute parts of a tile. Matrix units multiply M x DEPTH by DEPTH x N elements with them;
// DEPTH elements are DEEP bytes.
// Bytes are multiplied as signed numbers; unsigned ones are lowered by 128. Zero points are applied at
// the end. Elements outside the input have the input's zero point.
layout(constant_id = 1) const bool OUTPUT_ALONG_ROWS = true;  // channels first; else last
layout(constant_id = 2) const bool UNFINISHED = false;        // the output is the sums of a part of K
layout(constant_id = 3) const bool HAS_BIAS = false;
layout(constant_id = 4) const bool HAS_INPUT_ZERO = false;
layout(constant_id = 5) const bool HAS_FILTER_ZERO = false;
layout(constant_id = 6) const uint TYPE = 17u;
layout(constant_id = 7) const uint FILTER_TYPE = 17u;
// Whether each eight channels of the output are an aligned vector, and those of the tail's tensor.
layout(constant_id = 8) const bool PLAIN = false;
layout(constant_id = 9) const bool REQUANTIZED = false;  // only if PLAIN, and not along rows
layout(constant_id = 10) const bool HAS_OUTPUT_ZERO = false;
layout(constant_id = 11) const uint OUTPUT_TYPE = 17u;
layout(constant_id = 12) const bool SCALED = false;
layout(constant_id = 13) const bool HAS_INPUT_SCALE = true;
layout(constant_id = 14) const bool RANGED = false;  // SCALED, and the range of the output is one, too
layout(constant_id = 15) const uint RANGE_TYPE = 1u;
const bool CHANNELS_INNER = true;
#define CONTIGUOUS_CHANNELS
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint row_tiles;
    uint column_tiles;
    uint splits;   // splits of K
    uint steps;   // steps of K in each split
    uint groups;
    uint batches;
    uint in_channels;  // in a group
    uint out_channels;
    uint x_strides[2];  // batch, channel
    uint w_strides[2];  // group, output channel
    uint y_strides[3];  // split, batch, channel
    uint bias_stride;
    uint w_zero_stride;
    uint w_scale_stride;
    uint activation_at;
    uint x_offset;
    uint w_offset;
    uint y_offset;
    uint bias_offset;
    uint x_zero_offset;
    uint w_zero_offset;
    uint x_scale_offset;
    uint w_scale_offset;
    uint y_scale_offset;
    uint y_zero_offset;
    TAIL_FIELD
    uint zeroed_offset;
    uint params_offset;
};
#if defined(OF_f16)
#define PARAMS_BINDING AFTER_TAIL(4)
#else
#define PARAMS_BINDING AFTER_TAIL(11)
#endif
uint group_index() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}
#define SHARED_PARAMS 56u
#include "include/walk.glsl"
#include "include/convolution.glsl"
layout(binding = 0) readonly buffer InputVectors { uvec4 x_vectors[]; };
layout(binding = 1) readonly buffer FilterVectors { uvec4 w_vectors[]; };
layout(binding = 2) writeonly buffer OutputVectors { uvec4 y_vectors[]; };
layout(binding = 2) writeonly buffer OutputPairs { uvec2 y_pairs[]; };
layout(binding = 2) writeonly buffer OutputWords { uint y_words[]; };
#include "include/typed.glsl"
#if defined(OF_f16)
#define TAIL_BINDING 4
#define TAIL_TYPE 34u
#else
#define TAIL_BINDING 10
#define TAIL_TYPE 36u
#endif
#include "include/tail.glsl"
#if defined(OF_f16)
layout(binding = 2) writeonly buffer OutputHalves { float16_t y_halves[]; };
layout(binding = 3) readonly buffer Bias { float16_t bias[]; };
#define ELEMENT float16_t
#define SUM float
#define FOUR vec4
#define NUMBERS(bits) uintBitsToFloat(bits)
#define BITS(numbers) floatBitsToUint(numbers)
#define WORDS UNFINISHED
const uint EACH = 8u;  // elements of a store
#else
#include "include/dot_product.glsl"
layout(binding = 3) readonly buffer InputZero { uint x_zero_words[]; };
layout(binding = 4) readonly buffer FilterZero { uint w_zero_words[]; };
layout(binding = 5) readonly buffer Bias { int bias[]; };
layout(binding = 6) readonly buffer InputScale { float x_scale[]; };
layout(binding = 7) readonly buffer FilterScale { float w_scale[]; };
layout(binding = 8) readonly buffer OutputScale { float y_scale[]; };
layout(binding = 9) readonly buffer OutputZero { uint y_zero_words[]; };
// With RANGED, which excludes REQUANTIZED, the output's scale and zero point are outputs, too.
layout(binding = 8) writeonly buffer RangeScale { uint range_scale[]; };
layout(binding = 9) buffer RangeZero { uint range_zero[]; };
layout(binding = AFTER_TAIL(10)) coherent buffer Zeroed { uint zeroed[]; };
#define SCALE_AT y_scale_offset
#define ZERO_AT y_zero_offset
#define ELEMENT int8_t
#define SUM int
#define FOUR ivec4
#define NUMBERS(bits) ivec4(bits)
#define BITS(numbers) uvec4(numbers)
#define WORDS true
const uint EACH = 16u;
const bool X_SIGNED = (TYPE & 16u) != 0u, W_SIGNED = (FILTER_TYPE & 16u) != 0u;
const bool X_SHIFTED = HAS_INPUT_ZERO || !X_SIGNED, W_SHIFTED = HAS_FILTER_ZERO || !W_SIGNED;
const uint X_FLIPPED = X_SIGNED ? 0u : 0x80808080u, W_FLIPPED = W_SIGNED ? 0u : 0x80808080u;

// A byte as a signed number.
int lowered(uint word, uint at, uint flipped) {
    return bitfieldExtract(int(word ^ flipped), int(at % 4u * 8u), 8);
}
#endif

const uint TILE_ROWS = TILE_rows, TILE_COLUMNS = TILE_columns, LINE_VECTORS = TILE_vectors;
const uint DOWNWARD = TILE_down, SIDEWAYS = TILE_across;
const uint M = TILE_m, N = TILE_n, DEEP = TILE_deep, LANES = TILE_lanes;
const uint INVOCATIONS = LANES * DOWNWARD * SIDEWAYS;
layout(local_size_x = INVOCATIONS) in;
const uint TILE_DEPTH = LINE_VECTORS * EACH;
const uint DEPTH = DEEP * EACH / 16u, FRAGMENT_VECTORS = DEEP / 16u;
const uint PART_ROWS = TILE_ROWS / DOWNWARD;
const uint PART_COLUMNS = TILE_COLUMNS / SIDEWAYS;
const int DOWN = int(PART_ROWS / M);
const int ACROSS = int(PART_COLUMNS / N);
#define Product coopmat<SUM, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define RowFragment coopmat<ELEMENT, gl_ScopeSubgroup, M, DEPTH, gl_MatrixUseA>
#define ColumnFragment coopmat<ELEMENT, gl_ScopeSubgroup, DEPTH, N, gl_MatrixUseB>

// A slice of K: rows, then columns. A vector of padding after each avoids bank conflicts.
// After the last slice the sums are stored here, M rows of each part at a time.
const uint PITCH = LINE_VECTORS + 1u;
const uint SLICE = (TILE_ROWS + TILE_COLUMNS) * PITCH;
const uint STRIP = max(PART_COLUMNS * (M / 4u + 1u), M * (PART_COLUMNS / 4u + 1u));
shared uvec4 s_slice[max(SLICE, DOWNWARD * SIDEWAYS * STRIP)];
#define ROW_TABLE s_slice  // before the first slice
#if defined(OF_i8)
// After a subgroup's last strip.
#define RANGE_SLOT(i) s_slice[(i) / LANES * STRIP + (i) % LANES].xy
#include "include/made_range.glsl"
#endif
#include "include/convolution_taps.glsl"
#if defined(OF_f16)
shared float s_bias[TILE_COLUMNS];
#else
shared int s_sums[TILE_ROWS + TILE_COLUMNS];  // of rows and columns; then the terms that products subtract
shared int s_zero[TILE_COLUMNS];
shared int s_bias[TILE_COLUMNS];
shared float s_scale[TILE_COLUMNS];
#endif

const int ROW_LOADS = int(TILE_ROWS * LINE_VECTORS / INVOCATIONS);
const int COLUMN_LOADS = int(TILE_COLUMNS * LINE_VECTORS / INVOCATIONS);

// The line (row or column) of an invocation's ``load``-th vector. Eight invocations store together. If
// lines are short, they take two lines with different banks.
uint line_of(int load) {
    uint vector = gl_LocalInvocationIndex + uint(load) * INVOCATIONS;
    if (LINE_VECTORS == 4u) return vector / 4u % 2u * 4u + vector / 8u % 4u + vector / 32u * 8u;
    return vector / LINE_VECTORS;
}

// Stores eight elements of a row or a column to places ``to``.
void store_eight(uint to[8], FOUR low, FOUR high) {
    bool together = to[0] != NOWHERE && to[7] - to[0] == 7u;
    if (WORDS) {
#if defined(OF_i8)
        if (RANGED)
            [[unroll]] for (uint e = 0u; e < 8u; ++e)
                if (to[e] != NOWHERE) take_number(intBitsToFloat((e < 4u ? low : high)[e % 4u]));
#endif
        if (together && to[0] % 4u == 0u) {
            y_vectors[to[0] / 4u] = BITS(low);
            y_vectors[to[0] / 4u + 1u] = BITS(high);
            return;
        }
        [[unroll]] for (uint e = 0u; e < 8u; ++e)
            if (to[e] != NOWHERE) y_words[to[e]] = BITS(e < 4u ? low : high)[e % 4u];
        return;
    }
#if defined(OF_f16)
    uvec4 bits = uvec4(packHalf2x16(low.xy), packHalf2x16(low.zw), packHalf2x16(high.xy),
                       packHalf2x16(high.zw));
    if (together && to[0] % 8u == 0u) {
        y_vectors[to[0] / 8u] = bits;
    } else if (together && to[0] % 4u == 0u) {
        y_pairs[to[0] / 4u] = bits.xy;
        y_pairs[to[0] / 4u + 1u] = bits.zw;
    } else {
        [[unroll]] for (uint e = 0u; e < 8u; ++e)
            if (to[e] != NOWHERE)
                y_halves[to[e]] = float16_t(e < 4u ? low[e % 4u] : high[e % 4u]);
    }
#endif
}

// The element of the tail's tensor. ``first_column``: of the tile, among the group's channels.
float tail_of(uint tile_row, uint tile_column, uint first_column) {
    uint to = s_to[tile_row], column = min(first_column + tile_column, out_channels - 1u);
    return tail_one(to == NOWHERE ? 0u : to + column * y_strides[2] - y_offset);
}

#if defined(OF_i8)
#include "include/scaled.glsl"

// The bits of a scaled sum.
int scaled_bits(int sum, float scale, int added, float other) {
    return floatBitsToInt(finish_beside(scaled(sum, scale, HAS_BIAS, intBitsToFloat(added)), other));
}
#endif

SUM finished(SUM x, uint tile_row, uint tile_column, float other) {
#if defined(OF_f16)
    return UNFINISHED ? x : finish_beside(HAS_BIAS ? x + s_bias[tile_column] : x, other);
#else
    if (X_SHIFTED) x -= s_sums[TILE_ROWS + tile_column];
    if (W_SHIFTED) x -= s_zero[tile_column] * s_sums[tile_row];
    return SCALED ? scaled_bits(x, s_scale[tile_column], s_bias[tile_column], other) : x;
#endif
}

#if defined(OF_i8)
#include "include/requantized.glsl"

// store_rows for REQUANTIZED.
void store_bytes(uint strip, uint tile_row, uint tile_column, uint first_column) {
    const uint LINE = PART_COLUMNS / 8u, ITEMS = M * LINE / LANES;
    ivec4 added[2];
    vec4 scales[2];
    [[unroll]] for (uint n = 0u; n < ITEMS; ++n) {
        uint item = gl_SubgroupInvocationID + n * LANES;
        uint row = tile_row + item / LINE, column = tile_column + item % LINE * 8u;
        if (n == 0u || LANES % LINE != 0u)  // else all items have the same columns
            [[unroll]] for (uint e = 0u; e < 8u; ++e) {
                int x_term = X_SHIFTED ? s_sums[TILE_ROWS + column + e] : 0;
                added[e / 4u][e % 4u] = s_bias[column + e] - x_term;
                scales[e / 4u][e % 4u] = s_scale[column + e];
            }
        uint from = strip + item / LINE * (PART_COLUMNS / 4u + 1u) + item % LINE * 2u;
        ivec4 low = ivec4(s_slice[from]) + added[0], high = ivec4(s_slice[from + 1u]) + added[1];
        if (W_SHIFTED)
            [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                low[e] -= s_zero[column + e] * s_sums[row];
                high[e] -= s_zero[column + e + 4u] * s_sums[row];
            }
        uvec2 bytes = uvec2(requantized(low, scales[0]), requantized(high, scales[1]));
        uint to = s_to[row];
        column += first_column;
        if (to != NOWHERE && column < out_channels) y_pairs[(to + column) / 8u] = bytes;
    }
}

// store_rows for SCALED, if PLAIN.
void store_floats(uint strip, uint tile_row, uint tile_column, uint first_column) {
    const uint LINE = PART_COLUMNS / 8u, ITEMS = M * LINE / LANES;
    vec4 others[ITEMS][2];  // a tail's vectors are all asked for before the first is used
    [[unroll]] for (uint n = 0u; n < ITEMS; ++n) {
        uint item = gl_SubgroupInvocationID + n * LANES;
        uint to = s_to[tile_row + item / LINE];
        uint column = first_column + tile_column + item % LINE * 8u;
        uint at = to == NOWHERE ? 0u : to + min(column, out_channels - 8u) - y_offset;
        others[n][0] = tail_four(at);
        others[n][1] = tail_four(at + 4u);
    }
    int terms[8], added[8];
    float scales[8];
    [[unroll]] for (uint n = 0u; n < ITEMS; ++n) {
        uint item = gl_SubgroupInvocationID + n * LANES;
        uint row = tile_row + item / LINE, column = tile_column + item % LINE * 8u;
        if (n == 0u || LANES % LINE != 0u)  // else all items have the same columns
            [[unroll]] for (uint e = 0u; e < 8u; ++e) {
                terms[e] = X_SHIFTED ? s_sums[TILE_ROWS + column + e] : 0;
                added[e] = s_bias[column + e];
                scales[e] = s_scale[column + e];
            }
        uint from = strip + item / LINE * (PART_COLUMNS / 4u + 1u) + item % LINE * 2u;
        uvec4 sums[2];
        sums[0] = s_slice[from];
        sums[1] = s_slice[from + 1u];
        [[unroll]] for (uint e = 0u; e < 8u; ++e) {
            int sum = int(sums[e / 4u][e % 4u]) - terms[e];
            if (W_SHIFTED) sum -= s_zero[column + e] * s_sums[row];
            sums[e / 4u][e % 4u] =
                uint(scaled_bits(sum, scales[e], added[e], others[n][e / 4u][e % 4u]));
        }
        uint to = s_to[row];
        column += first_column;
        if (to == NOWHERE || column >= out_channels) continue;
        if (RANGED)
            [[unroll]] for (uint e = 0u; e < 8u; ++e) take_number(uintBitsToFloat(sums[e / 4u][e % 4u]));
        y_vectors[(to + column) / 4u] = sums[0];
        y_vectors[(to + column) / 4u + 1u] = sums[1];
    }
}
#endif

// Stores a strip: M rows from ``tile_row`` on and a part's columns. An item is eight of a row.
void store_rows(uint strip, uint tile_row, uint tile_column, uint first_column) {
#if defined(OF_i8)
    if (REQUANTIZED) {
        store_bytes(strip, tile_row, tile_column, first_column);
        return;
    }
    if (SCALED && PLAIN) {
        store_floats(strip, tile_row, tile_column, first_column);
        return;
    }
#endif
    const uint LINE = PART_COLUMNS / 8u, ITEMS = M * LINE / LANES;
    vec4 others[ITEMS][2];  // a tail's vectors are all asked for before the first is used
    [[unroll]] for (uint n = 0u; n < ITEMS; ++n) {
        uint item = gl_SubgroupInvocationID + n * LANES;
        uint to = s_to[tile_row + item / LINE];
        uint column = first_column + tile_column + item % LINE * 8u;
        uint at = to == NOWHERE ? 0u : to + min(column, out_channels - 8u) - y_offset;
        others[n][0] = others[n][1] = vec4(0.0);
#if defined(OF_f16)
        if (PLAIN) {
            others[n][0] = tail_four(at);
            others[n][1] = tail_four(at + 4u);
        }
#endif
    }
    [[unroll]] for (uint n = 0u; n < ITEMS; ++n) {
        uint item = gl_SubgroupInvocationID + n * LANES;
        uint row = tile_row + item / LINE, column = tile_column + item % LINE * 8u;
        uint from = strip + item / LINE * (PART_COLUMNS / 4u + 1u) + item % LINE * 2u;
        FOUR low = NUMBERS(s_slice[from]), high = NUMBERS(s_slice[from + 1u]);
        [[unroll]] for (uint e = 0u; e < 4u; ++e) {
            low[e] = finished(low[e], row, column + e,
                              PLAIN ? others[n][0][e] : tail_of(row, column + e, first_column));
            high[e] = finished(high[e], row, column + e + 4u,
                               PLAIN ? others[n][1][e] : tail_of(row, column + e + 4u, first_column));
        }
        column += first_column;
        if (PLAIN) {
            if (s_to[row] == NOWHERE || column >= out_channels) continue;
            uint to = s_to[row] + column;
            if (WORDS) {
                y_vectors[to / 4u] = BITS(low);
                y_vectors[to / 4u + 1u] = BITS(high);
            } else {
#if defined(OF_f16)
                y_vectors[to / 8u] = uvec4(packHalf2x16(low.xy), packHalf2x16(low.zw),
                                           packHalf2x16(high.xy), packHalf2x16(high.zw));
#endif
            }
            continue;
        }
        uint to[8];
        [[unroll]] for (uint e = 0u; e < 8u; ++e)
            to[e] = s_to[row] != NOWHERE && column + e < out_channels
                        ? s_to[row] + (column + e) * y_strides[2] : NOWHERE;
        store_eight(to, low, high);
    }
}

// The same for contiguous rows. An item is eight of a column.
void store_columns(uint strip, uint tile_row, uint tile_column, uint first_column) {
    [[unroll]] for (uint n = 0u; n < M * PART_COLUMNS / 8u / LANES; ++n) {
        uint item = gl_SubgroupInvocationID + n * LANES;
        uint row = tile_row + item % (M / 8u) * 8u, column = tile_column + item / (M / 8u);
        uint from = strip + item / (M / 8u) * (M / 4u + 1u) + item % (M / 8u) * 2u;
        FOUR low = NUMBERS(s_slice[from]), high = NUMBERS(s_slice[from + 1u]);
        [[unroll]] for (uint e = 0u; e < 4u; ++e) {
            low[e] = finished(low[e], row + e, column, tail_of(row + e, column, first_column));
            high[e] = finished(high[e], row + 4u + e, column,
                               tail_of(row + 4u + e, column, first_column));
        }
        column += first_column;
        uint to[8];
        [[unroll]] for (uint e = 0u; e < 8u; ++e)
            to[e] = s_to[row + e] != NOWHERE && column < out_channels
                        ? s_to[row + e] + column * y_strides[2] : NOWHERE;
        store_eight(to, low, high);
    }
}

void main() {
    share_params();
    uint index = group_index();
    uint column_tile = index % column_tiles * TILE_COLUMNS;
    index /= column_tiles;
    uint row_tile = index % row_tiles * TILE_ROWS;
    index /= row_tiles;
    uint split = index % splits;
    index /= splits;
    uint group = index % groups;
    Taps taps = taps_of(index / groups);
    if (index / groups >= taps.phases) return;

    uint i = gl_LocalInvocationIndex;
    uint tap_count = fill_tables(taps, row_tile, group, split);
    for (uint c = i; c < TILE_COLUMNS; c += INVOCATIONS) {
        uint column = group * out_channels + min(column_tile + c, out_channels - 1u);
#if defined(OF_f16)
        s_bias[c] = HAS_BIAS ? float(bias[bias_offset + column * bias_stride]) : 0.0;
#else
        uint at = w_zero_offset + column * w_zero_stride;
        s_zero[c] = lowered(HAS_FILTER_ZERO ? w_zero_words[at / 4u] : 0u, at, W_FLIPPED);
        if (REQUANTIZED || SCALED) {
            s_bias[c] = HAS_BIAS ? bias[bias_offset + column * bias_stride] : 0;
            precise float scale = w_scale[w_scale_offset + column * w_scale_stride];
            if (HAS_INPUT_SCALE) scale = x_scale[x_scale_offset] * scale;
            if (REQUANTIZED) scale = scale / y_scale[y_scale_offset];
            s_scale[c] = scale;
        }
#endif
    }
#if defined(OF_i8)
    if (HAS_OUTPUT_ZERO) {
        int from = int(y_zero_offset % 4u * 8u);
        int word = int(y_zero_words[y_zero_offset / 4u]);
        out_zero = (OUTPUT_TYPE & 16u) != 0u ? bitfieldExtract(word, from, 8)
                                             : int(bitfieldExtract(uint(word), from, 8));
    }
    int x_zero = lowered(HAS_INPUT_ZERO ? x_zero_words[x_zero_offset / 4u] : 0u, x_zero_offset,
                         X_FLIPPED);
    uvec4 outside = uvec4(uint(x_zero & 0xFF) * ONES);
    int x_sums[ROW_LOADS], w_sums[COLUMN_LOADS];
    [[unroll]] for (int l = 0; l < ROW_LOADS; ++l) x_sums[l] = 0;
    [[unroll]] for (int l = 0; l < COLUMN_LOADS; ++l) w_sums[l] = 0;
    for (uint line = i; line < TILE_ROWS + TILE_COLUMNS; line += INVOCATIONS) s_sums[line] = 0;
#endif
    uint depth = in_channels * tap_count;
    uint begin = min(split * steps * TILE_DEPTH, depth);
    uint end = min(begin + steps * TILE_DEPTH, depth);
    uint filter_from[COLUMN_LOADS];
    [[unroll]] for (int l = 0; l < COLUMN_LOADS; ++l)
        filter_from[l] = w_offset + group * w_strides[0] +
                         min(column_tile + line_of(l), out_channels - 1u) * w_strides[1];
    // The tap and channel of this invocation's vector in each slice.
    uint my_vector = i % LINE_VECTORS;
    uint tap = quotient(begin + my_vector * EACH, in_channels, param(0u), param(1u));
    uint channel = begin + my_vector * EACH - tap * in_channels;
    uint next_tap = TILE_DEPTH / in_channels, next_channel = TILE_DEPTH % in_channels;
    barrier();
    uint x_from[ROW_LOADS], inside[ROW_LOADS];
    [[unroll]] for (int l = 0; l < ROW_LOADS; ++l) {
        x_from[l] = s_slice[line_of(l)].x;
        inside[l] = s_slice[line_of(l)].y;
    }
    // Loaded vectors are not used before they are stored, so that nothing waits for them. ``kept``
    // has a bit for each that is valid; the last bit is the filter's.
    uvec4 x_next[ROW_LOADS], w_next[COLUMN_LOADS];
    uint kept;
#define LOAD \
    { \
        uvec3 at = s_tap[min(tap, tap_count)] + uvec3(channel, channel, 0u); \
        kept = tap < tap_count ? 1u << 31 : 0u; \
        [[unroll]] for (int l = 0; l < ROW_LOADS; ++l) { \
            bool is_inside = (inside[l] & at.z) == at.z; \
            kept |= is_inside ? 1u << l : 0u; \
            x_next[l] = x_vectors[is_inside ? (x_from[l] + at.x) / EACH : 0u]; \
        } \
        [[unroll]] for (int l = 0; l < COLUMN_LOADS; ++l) \
            w_next[l] = w_vectors[kept >= 1u << 31 ? (filter_from[l] + at.y) / EACH : 0u]; \
    }

    uint part_row = gl_SubgroupID / SIDEWAYS * PART_ROWS;
    uint part_column = gl_SubgroupID % SIDEWAYS * PART_COLUMNS;
    Product products[DOWN][ACROSS];
    [[unroll]] for (int r = 0; r < DOWN; ++r)
        [[unroll]] for (int c = 0; c < ACROSS; ++c) products[r][c] = Product(0);
    LOAD
    for (uint from = begin; from < end; from += TILE_DEPTH) {
        barrier();
        [[unroll]] for (int l = 0; l < ROW_LOADS; ++l) {
            bool is_inside = (kept >> l & 1u) != 0u;
#if defined(OF_f16)
            uvec4 vector = is_inside ? x_next[l] : uvec4(0u);
#else
            uvec4 vector = is_inside ? x_next[l] ^ X_FLIPPED : outside;
            if (W_SHIFTED) x_sums[l] += dot_product(vector, uvec4(ONES));
#endif
            s_slice[line_of(l) * PITCH + my_vector] = vector;
        }
        [[unroll]] for (int l = 0; l < COLUMN_LOADS; ++l) {
#if defined(OF_f16)
            uvec4 vector = kept >= 1u << 31 ? w_next[l] : uvec4(0u);
#else
            uvec4 vector = kept >= 1u << 31 ? w_next[l] ^ W_FLIPPED : uvec4(0u);
            if (X_SHIFTED) w_sums[l] += dot_product(vector, uvec4(ONES));
#endif
            s_slice[(TILE_ROWS + line_of(l)) * PITCH + my_vector] = vector;
        }
        barrier();
        tap += next_tap;
        channel += next_channel;
        if (channel >= in_channels) {
            channel -= in_channels;
            ++tap;
        }
        LOAD
        [[unroll]] for (uint d = 0u; d < LINE_VECTORS / FRAGMENT_VECTORS; ++d) {
            ColumnFragment b[ACROSS];
            RowFragment a;
            [[unroll]] for (int c = 0; c < ACROSS; ++c) {
                uint line = TILE_ROWS + part_column + uint(c) * N;
                coopMatLoad(b[c], s_slice, line * PITCH + d * FRAGMENT_VECTORS, PITCH,
                            gl_CooperativeMatrixLayoutColumnMajor);
            }
            [[unroll]] for (int r = 0; r < DOWN; ++r) {
                uint line = part_row + uint(r) * M;
                coopMatLoad(a, s_slice, line * PITCH + d * FRAGMENT_VECTORS, PITCH,
                            gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int c = 0; c < ACROSS; ++c)
                    products[r][c] = coopMatMulAdd(a, b[c], products[r][c]);
            }
        }
    }

#if defined(OF_i8)
    // Zero points: see include/lowered.glsl. Sums count all that was multiplied.
    [[unroll]] for (int l = 0; l < ROW_LOADS; ++l)
        if (W_SHIFTED) atomicAdd(s_sums[line_of(l)], x_sums[l]);
    [[unroll]] for (int l = 0; l < COLUMN_LOADS; ++l)
        if (X_SHIFTED) atomicAdd(s_sums[TILE_ROWS + line_of(l)], w_sums[l]);
    barrier();
    int multiplied = int((end - begin + TILE_DEPTH - 1u) / TILE_DEPTH * TILE_DEPTH);
    for (uint line = i; line < TILE_ROWS + TILE_COLUMNS; line += INVOCATIONS) {
        if (line < TILE_ROWS) s_sums[line] -= multiplied * x_zero;
        else s_sums[line] *= x_zero;
    }
#endif
    barrier();
    uint strip = gl_SubgroupID * STRIP;
    // Strips are not a loop: if a compiler does not unroll it, all products go to memory.
#define STORE_STRIP(number) \
    if (number < DOWN) { \
        [[unroll]] for (int c = 0; c < ACROSS; ++c) { \
            if (OUTPUT_ALONG_ROWS) \
                coopMatStore(products[min(number, DOWN - 1)][c], s_slice, \
                             strip + uint(c) * N * (M / 4u + 1u), \
                             M / 4u + 1u, gl_CooperativeMatrixLayoutColumnMajor); \
            else \
                coopMatStore(products[min(number, DOWN - 1)][c], s_slice, \
                             strip + uint(c) * N / 4u, PART_COLUMNS / 4u + 1u, \
                             gl_CooperativeMatrixLayoutRowMajor); \
        } \
        subgroupMemoryBarrierShared(); \
        subgroupBarrier(); \
        if (OUTPUT_ALONG_ROWS) \
            store_columns(strip, part_row + number * M, part_column, column_tile); \
        else \
            store_rows(strip, part_row + number * M, part_column, column_tile); \
        subgroupMemoryBarrierShared(); \
        subgroupBarrier(); \
    }
    STORE_STRIP(0)
    STORE_STRIP(1)
    STORE_STRIP(2)
    STORE_STRIP(3)
#if defined(OF_i8)
    if (RANGED) end_range(row_tiles * column_tiles * groups);
#endif
}
