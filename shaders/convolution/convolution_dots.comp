//@ op DML_OPERATOR_CONVOLUTION_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION
//@ variants TILE:
//@     t128(rows=128, columns=128, k=32, block=8)
//@     t128x64(rows=128, columns=64, k=32, block=8)
//@     t64(rows=64, columns=64, k=64, block=4)
//@ unchecked *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require
// convolution_lines.comp for bytes, by products of four at once. The sums are INT32, or REQUANTIZED.
// Channels of input and filter are contiguous, in vectors of 16 bytes (convolution_pack.comp makes that
// layout). K covers vectors of channels within taps. Bytes are multiplied as signed numbers; unsigned
// ones are lowered by 128. Zero points are applied at the end. Elements outside the input have the
// input's zero point.
layout(constant_id = 1) const bool OUTPUT_ALONG_ROWS = true;  // channels first; else last
layout(constant_id = 2) const bool HAS_BIAS = false;
layout(constant_id = 3) const bool HAS_INPUT_ZERO = false;
layout(constant_id = 4) const bool HAS_FILTER_ZERO = false;
layout(constant_id = 5) const uint TYPE = 17u;
layout(constant_id = 6) const uint FILTER_TYPE = 17u;
layout(constant_id = 7) const bool PLAIN = false;        // each four channels of the output are a vector
layout(constant_id = 8) const bool REQUANTIZED = false;  // only if PLAIN
layout(constant_id = 9) const bool HAS_OUTPUT_ZERO = false;
layout(constant_id = 10) const uint OUTPUT_TYPE = 17u;
const bool CHANNELS_INNER = true;
#define CONTIGUOUS_CHANNELS
layout(push_constant) uniform Push {
    uint row_tiles;
    uint column_tiles;
    uint splits;  // splits of K
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
    uint params_offset;
};
#define PARAMS_BINDING 10
uint group_index() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}
const uint TILE_ROWS = TILE_rows, TILE_COLUMNS = TILE_columns, TILE_DEPTH = TILE_k;
const uint BLOCK = TILE_block, LINE_VECTORS = TILE_DEPTH / 16u;
// Blocks of a tile, each of an invocation.
const uint BLOCKS_DOWN = TILE_ROWS / BLOCK, BLOCKS_ACROSS = TILE_COLUMNS / BLOCK;
const uint INVOCATIONS = BLOCKS_DOWN * BLOCKS_ACROSS;
layout(local_size_x = INVOCATIONS) in;
#define SHARED_PARAMS 56u
#include "include/walk.glsl"
#include "include/convolution.glsl"
#include "include/units.glsl"
#include "include/dot_product.glsl"
layout(binding = 0) readonly buffer InputVectors { uvec4 x_vectors[]; };
layout(binding = 1) readonly buffer FilterVectors { uvec4 w_vectors[]; };
layout(binding = 2) writeonly buffer OutputVectors { uvec4 y_vectors[]; };
layout(binding = 2) writeonly buffer OutputWords { uint y_words[]; };
layout(binding = 3) readonly buffer InputZero { uint x_zero_words[]; };
layout(binding = 4) readonly buffer FilterZero { uint w_zero_words[]; };
layout(binding = 5) readonly buffer Bias { int bias[]; };
layout(binding = 6) readonly buffer InputScale { float x_scale[]; };
layout(binding = 7) readonly buffer FilterScale { float w_scale[]; };
layout(binding = 8) readonly buffer OutputScale { float y_scale[]; };
layout(binding = 9) readonly buffer OutputZero { uint y_zero_words[]; };
shared uvec2 s_row[TILE_ROWS];
#define ROW_TABLE s_row
#include "include/convolution_taps.glsl"
#include "include/requantized.glsl"

const bool X_SIGNED = (TYPE & 16u) != 0u, W_SIGNED = (FILTER_TYPE & 16u) != 0u;
const bool X_SHIFTED = HAS_INPUT_ZERO || !X_SIGNED, W_SHIFTED = HAS_FILTER_ZERO || !W_SIGNED;
const uint X_FLIPPED = X_SIGNED ? 0u : 0x80808080u, W_FLIPPED = W_SIGNED ? 0u : 0x80808080u;

// Words of four channels: by K, then by the row or column, four to a vector. A vector of padding lets
// invocations that write along K use different banks.
const uint TILE_WORDS = 4u * LINE_VECTORS;
const uint ROW_PITCH = TILE_ROWS / 4u + 1u, COLUMN_PITCH = TILE_COLUMNS / 4u + 1u;
const uint ROW_SLICE = TILE_WORDS * ROW_PITCH, COLUMN_SLICE = TILE_WORDS * COLUMN_PITCH;
shared uvec4 s_x[2u * ROW_SLICE];
shared uvec4 s_w[2u * COLUMN_SLICE];
shared int s_sums[TILE_ROWS + TILE_COLUMNS];  // of all bytes of a row or column
const uint ROW_LOADS = TILE_ROWS * LINE_VECTORS / INVOCATIONS;
const uint COLUMN_LOADS = TILE_COLUMNS * LINE_VECTORS / INVOCATIONS;
const uint FOURS = BLOCK / 4u;

// A byte as a signed number.
int lowered(uint word, uint at, uint flipped) {
    return bitfieldExtract(int(word ^ flipped), int(at % 4u * 8u), 8);
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
    for (uint line = i; line < TILE_ROWS + TILE_COLUMNS; line += INVOCATIONS) s_sums[line] = 0;
    uint depth = in_channels * tap_count;
    uint begin = min(split * steps * TILE_DEPTH, depth);
    uint end = min(begin + steps * TILE_DEPTH, depth);
    int x_zero = lowered(HAS_INPUT_ZERO ? x_zero_words[x_zero_offset / 4u] : 0u, x_zero_offset,
                         X_FLIPPED);
    uvec4 outside = uvec4(uint(x_zero & 0xFF) * ONES);
    // The tap and channel of this invocation's vector in each slice.
    uint my_vector = i % LINE_VECTORS, my_line = i / LINE_VECTORS;
    const uint LINES = INVOCATIONS / LINE_VECTORS;  // rows (or columns) of one load
    uint tap = quotient(begin + my_vector * 16u, in_channels, param(0u), param(1u));
    uint channel = begin + my_vector * 16u - tap * in_channels;
    uint next_tap = TILE_DEPTH / in_channels, next_channel = TILE_DEPTH % in_channels;
    barrier();
    uint x_from[ROW_LOADS], inside[ROW_LOADS], w_from[COLUMN_LOADS];
    int x_sums[ROW_LOADS], w_sums[COLUMN_LOADS];
    [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l) {
        x_from[l] = s_row[my_line + l * LINES].x;
        inside[l] = s_row[my_line + l * LINES].y;
        x_sums[l] = 0;
    }
    [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l) {
        w_from[l] = w_offset + group * w_strides[0] +
                    min(column_tile + my_line + l * LINES, out_channels - 1u) * w_strides[1];
        w_sums[l] = 0;
    }
    // Loaded vectors are not used before they are stored. ``kept`` has a bit for each valid one.
    uvec4 x_next[ROW_LOADS], w_next[COLUMN_LOADS];
    uint kept;
#define LOAD \
    { \
        uvec3 at = s_tap[min(tap, tap_count)] + uvec3(channel, channel, 0u); \
        kept = tap < tap_count ? 1u << 31 : 0u; \
        [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l) { \
            bool is_inside = (inside[l] & at.z) == at.z; \
            kept |= is_inside ? 1u << l : 0u; \
            x_next[l] = x_vectors[is_inside ? (x_from[l] + at.x) / 16u : 0u]; \
        } \
        [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l) \
            w_next[l] = w_vectors[kept >= 1u << 31 ? (w_from[l] + at.y) / 16u : 0u]; \
        tap += next_tap; \
        channel += next_channel; \
        if (channel >= in_channels) { \
            channel -= in_channels; \
            ++tap; \
        } \
    }
#define STORE(half_at) \
    [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l) { \
        uvec4 four = (kept >> l & 1u) != 0u ? x_next[l] ^ X_FLIPPED : outside; \
        if (W_SHIFTED) x_sums[l] += dot_product(four, uvec4(ONES)); \
        uint line = my_line + l * LINES; \
        [[unroll]] for (uint e = 0u; e < 4u; ++e) \
            s_x[half_at * ROW_SLICE + (my_vector * 4u + e) * ROW_PITCH + line / 4u][line % 4u] = \
                four[e]; \
    } \
    [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l) { \
        uvec4 four = kept >= 1u << 31 ? w_next[l] ^ W_FLIPPED : uvec4(0u); \
        if (X_SHIFTED) w_sums[l] += dot_product(four, uvec4(ONES)); \
        uint line = my_line + l * LINES; \
        [[unroll]] for (uint e = 0u; e < 4u; ++e) \
            s_w[half_at * COLUMN_SLICE + (my_vector * 4u + e) * COLUMN_PITCH + line / 4u][line % 4u] = \
                four[e]; \
    }

    // 32 invocations take 4 x 8 blocks, where reads of shared memory are the fewest. Neighbours store
    // contiguous elements: rows or columns.
    uint fast = i / 2u % 8u, slow = i % 2u + i / 16u % 2u * 2u, some = i / 32u;
    uint my_row = OUTPUT_ALONG_ROWS ? some % (BLOCKS_DOWN / 8u) * 8u + fast
                                    : some / (BLOCKS_ACROSS / 8u) * 4u + slow;
    uint my_column = OUTPUT_ALONG_ROWS ? some / (BLOCKS_DOWN / 8u) * 4u + slow
                                       : some % (BLOCKS_ACROSS / 8u) * 8u + fast;
    ivec4 sums[BLOCK][FOURS];
    [[unroll]] for (uint r = 0u; r < BLOCK; ++r)
        [[unroll]] for (uint c = 0u; c < FOURS; ++c) sums[r][c] = ivec4(0);
    uint current = 0u;
    int multiplied = 0;  // elements of a line
    LOAD
    if (begin < end) {
        STORE(0u)
    }
    barrier();
    for (uint k = begin; k < end; k += TILE_DEPTH) {
        LOAD
        [[unroll]] for (uint e = 0u; e < TILE_WORDS; ++e) {
            uvec4 a[FOURS], b[FOURS];
            [[unroll]] for (uint r = 0u; r < FOURS; ++r)
                a[r] = s_x[current * ROW_SLICE + e * ROW_PITCH + my_row + r * BLOCKS_DOWN];
            [[unroll]] for (uint c = 0u; c < FOURS; ++c)
                b[c] = s_w[current * COLUMN_SLICE + e * COLUMN_PITCH + my_column + c * BLOCKS_ACROSS];
            [[unroll]] for (uint r = 0u; r < BLOCK; ++r)
                [[unroll]] for (uint c = 0u; c < FOURS; ++c)
                    [[unroll]] for (uint n = 0u; n < 4u; ++n)
                        sums[r][c][n] += dot_product(a[r / 4u][r % 4u], b[c][n]);
        }
        multiplied += int(TILE_DEPTH);
        current = 1u - current;
        if (k + TILE_DEPTH < end) {
            STORE(current)
        }
        barrier();
    }

    // Zero points: see include/lowered.glsl. Sums count all that was multiplied.
    [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l)
        if (W_SHIFTED) atomicAdd(s_sums[my_line + l * LINES], x_sums[l]);
    [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l)
        if (X_SHIFTED) atomicAdd(s_sums[TILE_ROWS + my_line + l * LINES], w_sums[l]);
    barrier();
    if (HAS_OUTPUT_ZERO) {
        int from = int(y_zero_offset % 4u * 8u), word = int(y_zero_words[y_zero_offset / 4u]);
        out_zero = (OUTPUT_TYPE & 16u) != 0u ? bitfieldExtract(word, from, 8)
                                             : int(bitfieldExtract(uint(word), from, 8));
    }
    ivec4 added[FOURS], zeros[FOURS];
    vec4 scales[FOURS];
    [[unroll]] for (uint n = 0u; n < BLOCK; ++n) {
        uint in_tile = (my_column + n / 4u * BLOCKS_ACROSS) * 4u + n % 4u;
        uint column = group * out_channels + min(column_tile + in_tile, out_channels - 1u);
        uint at = w_zero_offset + column * w_zero_stride;
        zeros[n / 4u][n % 4u] = lowered(HAS_FILTER_ZERO ? w_zero_words[at / 4u] : 0u, at, W_FLIPPED);
        int term = X_SHIFTED ? s_sums[TILE_ROWS + in_tile] * x_zero : 0;
        added[n / 4u][n % 4u] = (HAS_BIAS ? bias[bias_offset + column * bias_stride] : 0) - term;
        if (REQUANTIZED) {
            precise float scale = x_scale[x_scale_offset] *
                                  w_scale[w_scale_offset + column * w_scale_stride];
            scale = scale / y_scale[y_scale_offset];
            scales[n / 4u][n % 4u] = scale;
        }
    }
    [[unroll]] for (uint r = 0u; r < BLOCK; ++r) {
        uint row = (my_row + r / 4u * BLOCKS_DOWN) * 4u + r % 4u, to = s_to[row];
        if (to == NOWHERE) continue;
        int row_sum = W_SHIFTED ? s_sums[row] - multiplied * x_zero : 0;
        [[unroll]] for (uint c = 0u; c < FOURS; ++c) {
            uint column = column_tile + (my_column + c * BLOCKS_ACROSS) * 4u;
            ivec4 four = sums[r][c] + added[c];
            if (W_SHIFTED) four -= zeros[c] * row_sum;
            if (PLAIN) {
                if (column >= out_channels) continue;
                if (REQUANTIZED) y_words[(to + column) / 4u] = requantized(four, scales[c]);
                else y_vectors[(to + column) / 4u] = uvec4(four);
                continue;
            }
            [[unroll]] for (uint e = 0u; e < 4u; ++e)
                if (column + e < out_channels) y_words[to + (column + e) * y_strides[2]] = uint(four[e]);
        }
    }
}
