//@ op DML_OPERATOR_CONVOLUTION
//@ variants TILE:
//@     t128(rows=128, columns=128, k=8, block=8)
//@     t64(rows=64, columns=64, k=16, block=4)
//@     t128x64(rows=128, columns=64, k=8, block=8)
//@ tail *
//@ unchecked t128x64 t128
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// convolution.comp for floats with contiguous channels, in vectors of four. K covers vectors of channels
// within taps. While one slice of K is multiplied, the next one is stored in the other half of the
// shared memory. An invocation computes a block of rows and columns.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint OUTPUT_TYPE = 36u;
layout(constant_id = 3) const bool HAS_BIAS = false;
layout(constant_id = 4) const bool OUTPUT_ALONG_ROWS = true;  // channels first; else last
// Whether each four channels of the output are an aligned vector, and those of the tail's tensor.
layout(constant_id = 8) const bool PLAIN = false;
const bool CHANNELS_INNER = true;
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
    uint w_strides[3];  // group, output channel, input channel
    uint y_strides[3];  // split, batch, channel
    uint bias_stride;
    uint activation_at;
    uint x_offset;
    uint w_offset;
    uint y_offset;
    uint bias_offset;
    TAIL_FIELD
    uint params_offset;
};
#define PARAMS_BINDING AFTER_TAIL(4)
uint group_index() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}
const uint TILE_ROWS = TILE_rows, TILE_COLUMNS = TILE_columns, TILE_DEPTH = TILE_k;
const uint BLOCK_ROWS = TILE_block, BLOCK_COLUMNS = TILE_block;
// Blocks of a tile.
const uint BLOCKS_DOWN = TILE_ROWS / BLOCK_ROWS, BLOCKS_ACROSS = TILE_COLUMNS / BLOCK_COLUMNS;
const uint INVOCATIONS = BLOCKS_DOWN * BLOCKS_ACROSS;
layout(local_size_x = INVOCATIONS) in;
#define SHARED_PARAMS 56u
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/convolution.glsl"
shared uvec2 s_row[TILE_ROWS];
#define ROW_TABLE s_row
#include "include/convolution_taps.glsl"
#define TAIL_BINDING 4
#define TAIL_TYPE OUTPUT_TYPE
#include "include/tail.glsl"
INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(w, 1, TYPE)
layout(binding = 0) readonly buffer InputPairs { uvec2 x_pairs[]; };
layout(binding = 1) readonly buffer FilterPairs { uvec2 w_pairs[]; };
OUTPUT_TENSOR(y, 2, OUTPUT_TYPE)
layout(binding = 2) writeonly buffer OutputPairs { uvec2 y_pairs[]; };
INPUT_TENSOR(bias, 3, TYPE)

// By K, then by the row or column, four to a vector. A vector of padding lets invocations that write
// along K use different banks.
const uint ROW_PITCH = TILE_ROWS / 4u + 1u, COLUMN_PITCH = TILE_COLUMNS / 4u + 1u;
const uint ROW_SLICE = TILE_DEPTH * ROW_PITCH, COLUMN_SLICE = TILE_DEPTH * COLUMN_PITCH;
shared vec4 s_x[2u * ROW_SLICE];
shared vec4 s_w[2u * COLUMN_SLICE];
const uint LINE_VECTORS = TILE_DEPTH / 4u;
const uint ROW_LOADS = TILE_ROWS * LINE_VECTORS / INVOCATIONS;
const uint COLUMN_LOADS = TILE_COLUMNS * LINE_VECTORS / INVOCATIONS;
const uint DOWN = BLOCK_ROWS / 4u, ACROSS = BLOCK_COLUMNS / 4u;

vec4 halves(uvec2 pair) {
    return vec4(half_to_float(pair.x & 0xFFFFu), half_to_float(pair.x >> 16),
                half_to_float(pair.y & 0xFFFFu), half_to_float(pair.y >> 16));
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
    uint depth = in_channels * tap_count;
    uint begin = min(split * steps * TILE_DEPTH, depth);
    uint end = min(begin + steps * TILE_DEPTH, depth);
    // The tap and channel of this invocation's vector in each slice.
    uint my_k = i % LINE_VECTORS * 4u, my_line = i / LINE_VECTORS;
    const uint LINES = INVOCATIONS / LINE_VECTORS;  // rows (or columns) of one load
    uint tap = quotient(begin + my_k, in_channels, param(0u), param(1u));
    uint channel = begin + my_k - tap * in_channels;
    uint next_tap = TILE_DEPTH / in_channels, next_channel = TILE_DEPTH % in_channels;
    barrier();
    uint x_from[ROW_LOADS], inside[ROW_LOADS], w_from[COLUMN_LOADS];
    [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l) {
        x_from[l] = s_row[my_line + l * LINES].x;
        inside[l] = s_row[my_line + l * LINES].y;
    }
    [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l)
        w_from[l] = w_offset + group * w_strides[0] +
                    min(column_tile + my_line + l * LINES, out_channels - 1u) * w_strides[1];
    // Loaded vectors are not used before they are stored. ``kept`` has a bit for each valid one.
    uvec4 x_next[ROW_LOADS], w_next[COLUMN_LOADS];
    uint kept;
#define FOUR(side, at) \
    (BYTES_OF(TYPE) == 4u ? side##_vectors[(at) / 4u] : uvec4(side##_pairs[(at) / 4u], 0u, 0u))
#define LOAD \
    { \
        uvec3 at = s_tap[min(tap, tap_count)] + uvec3(channel, channel, 0u); \
        kept = tap < tap_count ? 1u << 31 : 0u; \
        [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l) { \
            bool is_inside = (inside[l] & at.z) == at.z; \
            kept |= is_inside ? 1u << l : 0u; \
            x_next[l] = FOUR(x, is_inside ? x_from[l] + at.x : 0u); \
        } \
        [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l) \
            w_next[l] = FOUR(w, kept >= 1u << 31 ? w_from[l] + at.y : 0u); \
        tap += next_tap; \
        channel += next_channel; \
        if (channel >= in_channels) { \
            channel -= in_channels; \
            ++tap; \
        } \
    }
#define NUMBERS(bits) (BYTES_OF(TYPE) == 4u ? uintBitsToFloat(bits) : halves((bits).xy))
#define STORE(half_at) \
    [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l) { \
        vec4 four = (kept >> l & 1u) != 0u ? NUMBERS(x_next[l]) : vec4(0.0); \
        uint line = my_line + l * LINES; \
        [[unroll]] for (uint e = 0u; e < 4u; ++e) \
            s_x[half_at * ROW_SLICE + (my_k + e) * ROW_PITCH + line / 4u][line % 4u] = four[e]; \
    } \
    [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l) { \
        vec4 four = kept >= 1u << 31 ? NUMBERS(w_next[l]) : vec4(0.0); \
        uint line = my_line + l * LINES; \
        [[unroll]] for (uint e = 0u; e < 4u; ++e) \
            s_w[half_at * COLUMN_SLICE + (my_k + e) * COLUMN_PITCH + line / 4u][line % 4u] = \
                four[e]; \
    }

    // 32 invocations take 4 x 8 blocks, where reads of shared memory are the fewest. Neighbours store
    // contiguous elements: rows or columns.
    uint fast = i / 2u % 8u, slow = i % 2u + i / 16u % 2u * 2u, some = i / 32u;
    uint my_row = OUTPUT_ALONG_ROWS ? some % (BLOCKS_DOWN / 8u) * 8u + fast
                                    : some / (BLOCKS_ACROSS / 8u) * 4u + slow;
    uint my_column = OUTPUT_ALONG_ROWS ? some / (BLOCKS_DOWN / 8u) * 4u + slow
                                       : some % (BLOCKS_ACROSS / 8u) * 8u + fast;
    vec4 sums[BLOCK_ROWS][ACROSS];
    [[unroll]] for (uint r = 0u; r < BLOCK_ROWS; ++r)
        [[unroll]] for (uint c = 0u; c < ACROSS; ++c) sums[r][c] = vec4(0.0);
    uint current = 0u;
    LOAD
    STORE(0u)
    barrier();
    for (uint k = begin; k < end; k += TILE_DEPTH) {
        LOAD
        [[unroll]] for (uint e = 0u; e < TILE_DEPTH; ++e) {
            vec4 a[DOWN], b[ACROSS];
            [[unroll]] for (uint r = 0u; r < DOWN; ++r)
                a[r] = s_x[current * ROW_SLICE + e * ROW_PITCH + my_row + r * BLOCKS_DOWN];
            [[unroll]] for (uint c = 0u; c < ACROSS; ++c)
                b[c] = s_w[current * COLUMN_SLICE + e * COLUMN_PITCH + my_column + c * BLOCKS_ACROSS];
            [[unroll]] for (uint r = 0u; r < BLOCK_ROWS; ++r)
                [[unroll]] for (uint c = 0u; c < ACROSS; ++c) sums[r][c] += a[r / 4u][r % 4u] * b[c];
        }
        current = 1u - current;
        STORE(current)
        barrier();
    }

    vec4 added[ACROSS];
    [[unroll]] for (uint c = 0u; c < BLOCK_COLUMNS; ++c) {
        uint column = column_tile + (my_column + c / 4u * BLOCKS_ACROSS) * 4u + c % 4u;
        column = group * out_channels + min(column, out_channels - 1u);
        added[c / 4u][c % 4u] = HAS_BIAS ? bias_float(bias_offset + column * bias_stride) : 0.0;
    }
    [[unroll]] for (uint d = 0u; d < DOWN; ++d) {
        vec4 others[4][ACROSS];  // a tail's vectors are all asked for before the first is used
        [[unroll]] for (uint r = 0u; r < 4u; ++r) {
            uint to = s_to[(my_row + d * BLOCKS_DOWN) * 4u + r];
            [[unroll]] for (uint c = 0u; c < ACROSS; ++c) {
                uint column = min(column_tile + (my_column + c * BLOCKS_ACROSS) * 4u, out_channels - 4u);
                if (PLAIN) others[r][c] = tail_four(to == NOWHERE ? 0u : to + column - y_offset);
            }
        }
        [[unroll]] for (uint r = 0u; r < 4u; ++r) {
            uint to = s_to[(my_row + d * BLOCKS_DOWN) * 4u + r];
            if (to == NOWHERE) continue;
            [[unroll]] for (uint c = 0u; c < ACROSS; ++c) {
                uint column = column_tile + (my_column + c * BLOCKS_ACROSS) * 4u;
                if (PLAIN && column >= out_channels) continue;
                vec4 four = sums[d * 4u + r][c] + added[c];
                uint at = to + column * y_strides[2];
                [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                    uint place = to + min(column + e, out_channels - 1u) * y_strides[2] - y_offset;
                    four[e] = finish_beside(four[e], PLAIN ? others[r][c][e] : tail_one(place));
                }
                if (PLAIN ||
                    (y_strides[2] == 1u && at % 4u == 0u && column + 4u <= out_channels)) {
                    if (BYTES_OF(OUTPUT_TYPE) == 4u)
                        y_vectors[at / 4u] = floatBitsToUint(four);
                    else
                        y_pairs[at / 4u] = floats_to_halves(four);
                    continue;
                }
                [[unroll]] for (uint e = 0u; e < 4u; ++e)
                    if (column + e < out_channels)
                        y_store_float(to + (column + e) * y_strides[2], four[e]);
            }
        }
    }
}
