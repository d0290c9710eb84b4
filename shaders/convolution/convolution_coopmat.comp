//@ op DML_OPERATOR_CONVOLUTION
//@ variants TILE: t128 t128x64 t64
//@ glslang >= 14
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
// convolution.comp on matrix units, of FLOAT16 with float32 sums. Input and filter hold their
// channels side by side, in vectors of 8 (convolution_pack.comp brings them into that form): K goes
// over vectors of channels within taps. Subgroups of 32 make a tile in
// parts; each keeps few enough sums that a multiprocessor holds two workgroups or more.
layout(constant_id = 1) const bool OUTPUT_ALONG_ROWS = true;  // channels first; else last
layout(constant_id = 2) const bool UNFINISHED = false;        // float32 sums of a part of K
layout(constant_id = 3) const bool HAS_BIAS = false;
const bool CHANNELS_INNER = true;
layout(push_constant) uniform Push {
    uint row_tiles;
    uint column_tiles;
    uint parts;   // of K
    uint steps;   // of K, in each part
    uint groups;
    uint batches;
    uint in_channels;  // of a group
    uint out_channels;
    uint x_strides[2];  // batch, channel
    uint w_strides[3];  // group, output channel, input channel
    uint y_strides[3];  // part, batch, channel
    uint bias_stride;
    uint activation_at;
    uint x_offset;
    uint w_offset;
    uint y_offset;
    uint bias_offset;
    uint params_offset;
};
#define PARAMS_BINDING 4
uint group_index() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}
#include "include/walk.glsl"
#include "include/activation.glsl"
#include "include/convolution.glsl"
layout(binding = 0) readonly buffer InputVectors { uvec4 x_vectors[]; };
layout(binding = 1) readonly buffer FilterVectors { uvec4 w_vectors[]; };
layout(binding = 2) writeonly buffer OutputVectors { uvec4 y_vectors[]; };
layout(binding = 2) writeonly buffer OutputPairs { uvec2 y_pairs[]; };
layout(binding = 2) writeonly buffer OutputWords { uint y_words[]; };
layout(binding = 2) writeonly buffer OutputHalves { float16_t y_halves[]; };
layout(binding = 3) readonly buffer Bias { float16_t bias[]; };

#if defined(TILE_t128)
const uint TILE_ROWS = 128u, TILE_COLUMNS = 128u;
const uint SUBGROUPS_DOWN = 2u, SUBGROUPS_ACROSS = 4u;
#elif defined(TILE_t128x64)
const uint TILE_ROWS = 128u, TILE_COLUMNS = 64u;
const uint SUBGROUPS_DOWN = 4u, SUBGROUPS_ACROSS = 2u;
#else
const uint TILE_ROWS = 64u, TILE_COLUMNS = 64u;
const uint SUBGROUPS_DOWN = 2u, SUBGROUPS_ACROSS = 2u;
#endif
const uint TILE_DEPTH = 64u;
const uint SUBGROUPS = SUBGROUPS_DOWN * SUBGROUPS_ACROSS;
const uint INVOCATIONS = 32u * SUBGROUPS;
layout(local_size_x = INVOCATIONS) in;
const uint FRAGMENT = 16u;
const uint PART_ROWS = TILE_ROWS / SUBGROUPS_DOWN;
const uint PART_COLUMNS = TILE_COLUMNS / SUBGROUPS_ACROSS;
const int DOWN = int(PART_ROWS / FRAGMENT);
const int ACROSS = int(PART_COLUMNS / FRAGMENT);
#define Product coopmat<float, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseAccumulator>
#define RowFragment coopmat<float16_t, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseA>
#define ColumnFragment coopmat<float16_t, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseB>

// A slice of K: rows, then columns, each with a vector after it, so that eight lines meet all banks.
// After the last slice the sums pass through here, 16 rows of each part at a time.
const uint LINE_VECTORS = TILE_DEPTH / 8u;
const uint PITCH = LINE_VECTORS + 1u;
const uint SLICE = (TILE_ROWS + TILE_COLUMNS) * PITCH;
const uint STRIP = max(PART_COLUMNS * (FRAGMENT / 4u + 1u), FRAGMENT * (PART_COLUMNS / 4u + 1u));
shared uvec4 s_slice[max(SLICE, SUBGROUPS * STRIP)];
shared ivec4 s_row[TILE_ROWS];  // where it lies in the input: offset, z, y, x
shared uint s_to[TILE_ROWS];    // and in the output
shared float s_bias[TILE_COLUMNS];

const int ROW_LOADS = int(TILE_ROWS * LINE_VECTORS / INVOCATIONS);
const int COLUMN_LOADS = int(TILE_COLUMNS * LINE_VECTORS / INVOCATIONS);

// The line of an invocation's ``load``-th vector.
uint line_of(int load) {
    return (gl_LocalInvocationIndex + uint(load) * INVOCATIONS) / LINE_VECTORS;
}

// Stores eight elements of one row or one column; ``to``: where each of them lies.
void store_eight(uint to[8], vec4 low, vec4 high) {
    bool together = to[0] != NOWHERE && to[7] - to[0] == 7u;
    if (UNFINISHED) {
        if (together && to[0] % 4u == 0u) {
            y_vectors[to[0] / 4u] = floatBitsToUint(low);
            y_vectors[to[0] / 4u + 1u] = floatBitsToUint(high);
            return;
        }
        [[unroll]] for (uint e = 0u; e < 8u; ++e)
            if (to[e] != NOWHERE)
                y_words[to[e]] = floatBitsToUint(e < 4u ? low[e % 4u] : high[e % 4u]);
        return;
    }
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
}

float finished(float x, uint tile_column) {
    return UNFINISHED ? x : activate(HAS_BIAS ? x + s_bias[tile_column] : x);
}

// Finishes and stores a strip: 16 rows from ``tile_row`` on, of a part's columns.
void store_strip(uint strip, uint tile_row, uint tile_column, uint first_column) {
    const uint ITEMS = FRAGMENT * PART_COLUMNS / 8u;
    [[unroll]] for (uint n = 0u; n < ITEMS / 32u; ++n) {
        uint item = gl_SubgroupInvocationID + n * 32u;
        uint to[8];
        uint from;
        vec4 low, high;
        if (OUTPUT_ALONG_ROWS) {
            uint column = item / 2u, row = item % 2u * 8u;
            from = strip + column * (FRAGMENT / 4u + 1u) + item % 2u * 2u;
            low = uintBitsToFloat(s_slice[from]);
            high = uintBitsToFloat(s_slice[from + 1u]);
            bool exists = first_column + tile_column + column < out_channels;
            [[unroll]] for (uint e = 0u; e < 8u; ++e) {
                to[e] = s_to[tile_row + row + e];
                to[e] = exists && to[e] != NOWHERE
                            ? to[e] + (first_column + tile_column + column) * y_strides[2]
                            : NOWHERE;
            }
            [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                low[e] = finished(low[e], tile_column + column);
                high[e] = finished(high[e], tile_column + column);
            }
        } else {
            const uint LINE = PART_COLUMNS / 8u;
            uint column = item % LINE * 8u;
            from = strip + item / LINE * (PART_COLUMNS / 4u + 1u) + item % LINE * 2u;
            low = uintBitsToFloat(s_slice[from]);
            high = uintBitsToFloat(s_slice[from + 1u]);
            uint row_to = s_to[tile_row + item / LINE];
            [[unroll]] for (uint e = 0u; e < 8u; ++e) {
                uint c = first_column + tile_column + column + e;
                to[e] = row_to != NOWHERE && c < out_channels ? row_to + c * y_strides[2] : NOWHERE;
            }
            [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                low[e] = finished(low[e], tile_column + column + e);
                high[e] = finished(high[e], tile_column + column + e + 4u);
            }
        }
        store_eight(to, low, high);
    }
}

void main() {
    uint index = group_index();
    uint column_tile = index % column_tiles * TILE_COLUMNS;
    index /= column_tiles;
    uint row_tile = index % row_tiles * TILE_ROWS;
    index /= row_tiles;
    uint part = index % parts;
    index /= parts;
    uint group = index % groups;
    Taps taps = taps_of(index / groups);
    if (index / groups >= taps.phases) return;

    uvec3 input_sizes = uvec3(axis_word(0u, 0u), axis_word(1u, 0u), axis_word(2u, 0u));
    uint i = gl_LocalInvocationIndex;
    if (i < TILE_ROWS) {
        uint to;
        s_row[i] = input_row(taps, row_tile + i, group, to);
        // Channels of the group, of the part.
        s_to[i] = to == NOWHERE ? NOWHERE : to + part * y_strides[0] +
                                                group * out_channels * y_strides[2];
    }
    if (i < TILE_COLUMNS) {
        uint column = group * out_channels + min(column_tile + i, out_channels - 1u);
        s_bias[i] = HAS_BIAS ? float(bias[bias_offset + column * bias_stride]) : 0.0;
    }
    uint depth = in_channels * taps.count.x * taps.count.y * taps.count.z;
    uint begin = min(part * steps * TILE_DEPTH, depth);
    uint end = min(begin + steps * TILE_DEPTH, depth);
    uint filter_from[COLUMN_LOADS];
    [[unroll]] for (int l = 0; l < COLUMN_LOADS; ++l)
        filter_from[l] = w_offset + group * w_strides[0] +
                         min(column_tile + line_of(l), out_channels - 1u) * w_strides[1];
    // This invocation's vector of each slice: its place in K, in the input and in the filter.
    uint my_vector = i % LINE_VECTORS;
    uint k = begin + my_vector * 8u, tap = 0u, channel;
    ivec4 place = ivec4(0);
#define FIND(k) \
    { \
        place = input_depth(taps, min(k, max(end, 1u) - 1u), tap); \
        channel = (k) - quotient(k, in_channels, param(0u), param(1u)) * in_channels; \
    }
    FIND(k)
    uvec4 x_next[ROW_LOADS], w_next[COLUMN_LOADS];
#define LOAD \
    [[unroll]] for (int l = 0; l < ROW_LOADS; ++l) { \
        ivec4 at = s_row[line_of(l)] + place; \
        bool inside = k < end && all(lessThan(uvec3(at.yzw), input_sizes)); \
        x_next[l] = x_vectors[inside ? uint(at.x) / 8u : 0u]; \
        if (!inside) x_next[l] = uvec4(0u); \
    } \
    [[unroll]] for (int l = 0; l < COLUMN_LOADS; ++l) { \
        w_next[l] = w_vectors[k < end ? (filter_from[l] + tap) / 8u : 0u]; \
        if (k >= end) w_next[l] = uvec4(0u); \
    }

    uint part_row = gl_SubgroupID / SUBGROUPS_ACROSS * PART_ROWS;
    uint part_column = gl_SubgroupID % SUBGROUPS_ACROSS * PART_COLUMNS;
    Product products[DOWN][ACROSS];
    [[unroll]] for (int r = 0; r < DOWN; ++r)
        [[unroll]] for (int c = 0; c < ACROSS; ++c) products[r][c] = Product(0.0);
    barrier();
    LOAD
    for (uint from = begin; from < end; from += TILE_DEPTH) {
        barrier();
        [[unroll]] for (int l = 0; l < ROW_LOADS; ++l)
            s_slice[line_of(l) * PITCH + my_vector] = x_next[l];
        [[unroll]] for (int l = 0; l < COLUMN_LOADS; ++l)
            s_slice[(TILE_ROWS + line_of(l)) * PITCH + my_vector] = w_next[l];
        barrier();
        k += TILE_DEPTH;
        channel += TILE_DEPTH;
        place.x += int(TILE_DEPTH);
        tap += TILE_DEPTH;
        if (channel >= in_channels) FIND(k)
        LOAD
        [[unroll]] for (uint d = 0u; d < TILE_DEPTH / FRAGMENT; ++d) {
            ColumnFragment b[ACROSS];
            RowFragment a;
            [[unroll]] for (int c = 0; c < ACROSS; ++c) {
                uint line = TILE_ROWS + part_column + uint(c) * FRAGMENT;
                coopMatLoad(b[c], s_slice, line * PITCH + d * 2u, PITCH,
                            gl_CooperativeMatrixLayoutColumnMajor);
            }
            [[unroll]] for (int r = 0; r < DOWN; ++r) {
                uint line = part_row + uint(r) * FRAGMENT;
                coopMatLoad(a, s_slice, line * PITCH + d * 2u, PITCH,
                            gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int c = 0; c < ACROSS; ++c)
                    products[r][c] = coopMatMulAdd(a, b[c], products[r][c]);
            }
        }
    }

    barrier();
    uint strip = gl_SubgroupID * STRIP;
    // Each strip is written out: where a compiler leaves a loop over them, all products lie in memory.
#define STORE_STRIP(number) \
    if (number < DOWN) { \
        [[unroll]] for (int c = 0; c < ACROSS; ++c) { \
            if (OUTPUT_ALONG_ROWS) \
                coopMatStore(products[min(number, DOWN - 1)][c], s_slice, \
                             strip + uint(c) * FRAGMENT * (FRAGMENT / 4u + 1u), \
                             FRAGMENT / 4u + 1u, gl_CooperativeMatrixLayoutColumnMajor); \
            else \
                coopMatStore(products[min(number, DOWN - 1)][c], s_slice, \
                             strip + uint(c) * FRAGMENT / 4u, PART_COLUMNS / 4u + 1u, \
                             gl_CooperativeMatrixLayoutRowMajor); \
        } \
        subgroupMemoryBarrierShared(); \
        subgroupBarrier(); \
        store_strip(strip, part_row + number * FRAGMENT, part_column, column_tile); \
        subgroupMemoryBarrierShared(); \
        subgroupBarrier(); \
    }
    STORE_STRIP(0)
    STORE_STRIP(1)
    STORE_STRIP(2)
    STORE_STRIP(3)
}
