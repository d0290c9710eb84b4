//@ op DML_OPERATOR_CONVOLUTION
//@ variants TILE:
//@     t192x128(rows=192, columns=128, k=16)
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Convolutions of FLOAT32, channels last, whose channels are a multiple of 16. A step of K is one tap and 16
// channels: first all taps of these, then the next ones. So all rows go through the filter alike, and which taps of
// a row are inside the input is a bit each. While a step is multiplied, the next one is stored in the other half of
// the shared memory. A tile is so large that one workgroup fills a core: neighbouring tiles read less twice.
//
// Nothing outside of the buffers is read or written: loads of what does not exist read the first vectors, columns
// are clamped, the request after the last one repeats a step that exists, and stores have conditions.
layout(constant_id = 3) const bool HAS_BIAS = false;
layout(constant_id = 4) const uint POSITIONS_Y = 1u;
layout(constant_id = 5) const uint POSITIONS_X = 1u;
layout(constant_id = 6) const uint STEP_Y = 1u;
layout(constant_id = 7) const uint STEP_X = 1u;
layout(constant_id = 8) const uint TAPS_Y = 1u;
layout(constant_id = 9) const uint TAPS_X = 1u;
layout(constant_id = 10) const uint TAP_STEP_Y = 1u;
layout(constant_id = 11) const uint TAP_STEP_X = 1u;
layout(constant_id = 12) const uint ROW_TILES = 1u;
layout(constant_id = 13) const uint COLUMN_TILES = 1u;
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint chunks;  // of 16 channels
    uint groups;
    uint batches;
    uint in_channels;  // in a group
    uint out_channels;  // a multiple of 4
    int first[2];  // the first tap of the first position: y, x
    uint in_sizes[2];
    uint x_strides[3];  // batch, y, x, in vectors of 4 channels
    uint w_strides[3];  // group, output channel, tap, in such vectors
    uint y_strides[3];  // batch, y, x
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
#include "include/params.glsl"
layout(binding = 0) readonly buffer Input { uvec4 x_vectors[]; };
layout(binding = 1) readonly buffer Filter { uvec4 w_vectors[]; };
layout(binding = 2) writeonly buffer Output { vec4 y_vectors[]; };
layout(binding = 3) readonly buffer Bias { float bias[]; };
#include "include/typed.glsl"
#define TAIL_BINDING 4
#define TAIL_TYPE 36u
#include "include/tail.glsl"

// An invocation computes 8 x 8 elements: two rows and two columns of blocks of four.
const uint TILE_ROWS = TILE_rows, TILE_COLUMNS = TILE_columns, DOWN = 2u, ACROSS = 2u;
const uint BLOCKS_DOWN = TILE_ROWS / (4u * DOWN), BLOCKS_ACROSS = TILE_COLUMNS / (4u * ACROSS);
const uint INVOCATIONS = BLOCKS_DOWN * BLOCKS_ACROSS;
layout(local_size_x = INVOCATIONS) in;
// Two invocations read a row's two vectors of 8 channels, twice. A third of them reads no vector of the filter.
const uint DEPTH = TILE_k, DEEP = DEPTH / 8u;
// By K, then by the row or column, four to a vector. A vector of padding lets invocations that write along K use
// different banks.
const uint ROW_PITCH = TILE_ROWS / 4u + 1u, COLUMN_PITCH = TILE_COLUMNS / 4u + 1u;
const uint ROW_SLICE = DEPTH * ROW_PITCH, COLUMN_SLICE = DEPTH * COLUMN_PITCH;
shared vec4 s_x[2u * ROW_SLICE];
shared vec4 s_w[2u * COLUMN_SLICE];
const uint ROWS_IN_ALL = POSITIONS_Y * POSITIONS_X, TAPS = TAPS_Y * TAPS_X;  // at most 32 taps

void main() {
    uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint column_tile = index % COLUMN_TILES * TILE_COLUMNS;
    uint row_tile = index / COLUMN_TILES % ROW_TILES * TILE_ROWS;
    uint group = index / (COLUMN_TILES * ROW_TILES);
    if (group >= groups) return;
    uint i = gl_LocalInvocationIndex, my_vector = i % 2u, my_line = i / 2u, my_k = my_vector * 4u;
    bool reads_filter = my_line < TILE_COLUMNS;
    uint w_from = w_offset / 4u + group * w_strides[0] + min(column_tile + my_line, out_channels - 1u) * w_strides[1]
                  + my_vector;
    uint x_from, taps_inside;
    {
        uint row = row_tile + my_line, batch = row / ROWS_IN_ALL;
        int y = int(row / POSITIONS_X % POSITIONS_Y * STEP_Y) + first[0];
        int x = int(row % POSITIONS_X * STEP_X) + first[1];
        x_from = x_offset / 4u + group * (in_channels / 4u) + batch * x_strides[0] + uint(y) * x_strides[1]
                 + uint(x) * x_strides[2] + my_vector;
        uint across = 0u, inside = 0u;
        [[unroll]] for (uint t = 0u; t < TAPS_X; ++t)
            if (uint(x + int(t * TAP_STEP_X)) < in_sizes[1]) across |= 1u << t;
        [[unroll]] for (uint t = 0u; t < TAPS_Y; ++t)
            if (uint(y + int(t * TAP_STEP_Y)) < in_sizes[0]) inside |= across << (t * TAPS_X);
        taps_inside = batch < batches ? inside : 0u;
    }
    uint tap = 0u, tap_x = 0u, chunk = 0u, x_first = 0u, x_at = 0u, w_at = 0u;
    uint x_column = TAP_STEP_X * x_strides[2], x_row = TAP_STEP_Y * x_strides[1];
    // Loaded vectors are not used before they are stored.
    uvec4 x_next[DEEP], w_next[DEEP];
    bool kept;
#define ASK \
    { \
        if (reads_filter) \
            [[unroll]] for (uint d = 0u; d < DEEP; ++d) w_next[d] = w_vectors[w_from + w_at + d * 2u]; \
        kept = (taps_inside >> tap & 1u) != 0u; \
        [[unroll]] for (uint d = 0u; d < DEEP; ++d) x_next[d] = x_vectors[(kept ? x_from + x_at : 0u) + d * 2u]; \
    }
#define STORE(half_at) \
    [[unroll]] for (uint d = 0u; d < DEEP; ++d) { \
        uint k = half_at * DEPTH + d * 8u + my_k; \
        uvec4 four = kept ? x_next[d] : uvec4(0u); \
        [[unroll]] for (uint e = 0u; e < 4u; ++e) \
            s_x[(k + e) * ROW_PITCH + my_line / 4u][my_line % 4u] = uintBitsToFloat(four[e]); \
        if (reads_filter) \
            [[unroll]] for (uint e = 0u; e < 4u; ++e) \
                s_w[(k + e) * COLUMN_PITCH + my_line / 4u][my_line % 4u] = uintBitsToFloat(w_next[d][e]); \
    }
    // 32 invocations take 4 x 8 blocks, where reads of shared memory are the fewest. Neighbours store neighbouring
    // channels.
    uint fast = i / 2u % 8u, slow = i % 2u + i / 16u % 2u * 2u, some = i / 32u;
    uint my_row = some / (BLOCKS_ACROSS / 8u) * 4u + slow, my_column = some % (BLOCKS_ACROSS / 8u) * 8u + fast;
    vec4 sums[4u * DOWN][ACROSS];
    [[unroll]] for (uint r = 0u; r < 4u * DOWN; ++r)
        [[unroll]] for (uint c = 0u; c < ACROSS; ++c) sums[r][c] = vec4(0.0);
    uint current = 0u;
    ASK
    STORE(0u)
    barrier();
    [[dont_unroll]] while (chunk < chunks) {
        bool wraps = tap + 1u == TAPS, turns = tap_x + 1u == TAPS_X;
        if (wraps) {
            ++chunk;
            x_first = min(chunk, chunks - 1u) * (DEPTH / 4u);  // the last chunk is asked for again
        }
        x_at = wraps ? x_first : turns ? x_at + x_row - (TAPS_X - 1u) * x_column : x_at + x_column;
        w_at = wraps ? x_first : w_at + w_strides[2];
        tap = wraps ? 0u : tap + 1u;
        tap_x = turns ? 0u : tap_x + 1u;
        ASK
        [[unroll]] for (uint e = 0u; e < DEPTH; ++e) {
            vec4 a[DOWN], b[ACROSS];
            [[unroll]] for (uint r = 0u; r < DOWN; ++r)
                a[r] = s_x[current * ROW_SLICE + e * ROW_PITCH + my_row + r * BLOCKS_DOWN];
            [[unroll]] for (uint c = 0u; c < ACROSS; ++c)
                b[c] = s_w[current * COLUMN_SLICE + e * COLUMN_PITCH + my_column + c * BLOCKS_ACROSS];
            [[unroll]] for (uint r = 0u; r < 4u * DOWN; ++r)
                [[unroll]] for (uint c = 0u; c < ACROSS; ++c) sums[r][c] += a[r / 4u][r % 4u] * b[c];
        }
        current = 1u - current;
        STORE(current)
        barrier();
    }

    uint all_rows = batches * ROWS_IN_ALL;
    vec4 added[ACROSS];
    [[unroll]] for (uint c = 0u; c < 4u * ACROSS; ++c) {
        uint column = column_tile + (my_column + c / 4u * BLOCKS_ACROSS) * 4u + c % 4u;
        column = group * out_channels + min(column, out_channels - 1u);
        added[c / 4u][c % 4u] = HAS_BIAS ? bias[bias_offset + column * bias_stride] : 0.0;
    }
    [[unroll]] for (uint d = 0u; d < DOWN; ++d) {
        uint to[4];
        vec4 others[4][ACROSS];  // a tail's vectors are all asked for before the first is used
        [[unroll]] for (uint r = 0u; r < 4u; ++r) {
            uint row = row_tile + (my_row + d * BLOCKS_DOWN) * 4u + r;
            uint at = group * out_channels + row / ROWS_IN_ALL * y_strides[0]
                      + row / POSITIONS_X % POSITIONS_Y * y_strides[1] + row % POSITIONS_X * y_strides[2];
            to[r] = row < all_rows ? at : 0xFFFFFFFFu;
            [[unroll]] for (uint c = 0u; c < ACROSS; ++c) {
                uint column = min(column_tile + (my_column + c * BLOCKS_ACROSS) * 4u, out_channels - 4u);
                others[r][c] = tail_four(row < all_rows ? at + column : 0u);
            }
        }
        [[unroll]] for (uint r = 0u; r < 4u; ++r)
            [[unroll]] for (uint c = 0u; c < ACROSS; ++c) {
                uint column = column_tile + (my_column + c * BLOCKS_ACROSS) * 4u;
                vec4 four = sums[d * 4u + r][c] + added[c];
                [[unroll]] for (uint e = 0u; e < 4u; ++e) four[e] = finish_beside(four[e], others[r][c][e]);
                if (to[r] != 0xFFFFFFFFu && column < out_channels) y_vectors[(y_offset + to[r] + column) / 4u] = four;
            }
    }
}
