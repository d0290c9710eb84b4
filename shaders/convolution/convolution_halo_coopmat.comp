//@ op DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION
//@ unchecked *
//@ glslang >= 14
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
// Convolutions of signed bytes on matrix units, with INT32 sums, channels last, of small images and long K. Rows
// of the product are the places of a grid: an image with the zeros after its rows and columns that all its taps
// share. So the pixels of a tap lie in shared memory at equal distances, and 128 channels of them are stored once
// for all taps. Only the filter's slices change with each tap. Two subgroups multiply the same tile, each half of
// those channels, and add their sums through shared memory. Filters are left operands and pixels right ones, and
// the lines of the filter are ordered so that the sums of an invocation are neighbouring channels.
//
// Nothing outside of the buffers is read or written: loads of pixels that do not exist read index 0, columns are
// clamped, the request after the last one repeats a chunk that exists, and stores have conditions.
layout(constant_id = 1) const bool HAS_BIAS = false;
layout(constant_id = 2) const uint OUTPUT_TYPE = 17u;
layout(constant_id = 3) const bool HAS_OUTPUT_ZERO = false;
layout(constant_id = 4) const uint POSITIONS_Y = 1u;
layout(constant_id = 5) const uint POSITIONS_X = 1u;
layout(constant_id = 6) const uint GRID_Y = 1u;
layout(constant_id = 7) const uint GRID_X = 1u;
layout(constant_id = 8) const uint TAPS_Y = 1u;
layout(constant_id = 9) const uint TAPS_X = 1u;
layout(constant_id = 10) const uint BEFORE = 0u;  // places from the first tap to the row's own
layout(constant_id = 11) const uint ROW_TILES = 1u;
layout(constant_id = 12) const uint COLUMN_TILES = 1u;
layout(push_constant) uniform Push {
    uint chunks;  // of 128 channels
    uint groups;
    uint batches;
    uint in_channels;  // in a group, a multiple of 128
    uint out_channels;  // a multiple of 8
    uint in_sizes[2];
    uint x_strides[3];  // batch, y, x, in vectors of 16 channels
    uint w_strides[3];  // group, output channel, tap, in such vectors
    uint y_strides[3];  // batch, y, x
    uint bias_stride;
    uint w_scale_stride;
    uint x_offset;
    uint w_offset;
    uint y_offset;
    uint bias_offset;
    uint x_scale_offset;
    uint w_scale_offset;
    uint y_scale_offset;
    uint y_zero_offset;
};
layout(binding = 0) readonly buffer Input { uvec4 x_vectors[]; };
layout(binding = 1) readonly buffer Filter { uvec4 w_vectors[]; };
layout(binding = 2) writeonly buffer Output { uint y_words[]; };
layout(binding = 3) readonly buffer Bias { int bias[]; };
layout(binding = 4) readonly buffer InputScale { float x_scale[]; };
layout(binding = 5) readonly buffer FilterScale { float w_scale[]; };
layout(binding = 6) readonly buffer OutputScale { float y_scale[]; };
layout(binding = 7) readonly buffer OutputZero { uint y_zero_words[]; };
#include "include/units.glsl"
#include "include/requantized.glsl"

// Subgroups, fragments of each, and subgroups with the same ones, which share K.
const uint DOWNWARD = 2u, SIDEWAYS = 2u, ROWS = 4u, COLUMNS = 2u, SHARES = 2u;
const uint PARTS = DOWNWARD * SIDEWAYS, INVOCATIONS = 32u * PARTS * SHARES;
layout(local_size_x = INVOCATIONS) in;
const uint FRAGMENT = 16u;
const uint PART_ROWS = ROWS * FRAGMENT, PART_COLUMNS = COLUMNS * FRAGMENT;
const uint TILE_ROWS = PART_ROWS * DOWNWARD, TILE_COLUMNS = PART_COLUMNS * SIDEWAYS;
const uint NOWHERE = 0xFFFFFFFFu;
const uint VECTORS = 8u, PITCH = VECTORS + 1u;  // A vector of padding avoids bank conflicts.
const uint LINES = TILE_ROWS + 32u;  // places that a tile's taps reach, at most
const uint APART = INVOCATIONS / VECTORS;  // lines between an invocation's vectors
const uint ROW_LOADS = LINES / APART, COLUMN_LOADS = TILE_COLUMNS / APART;
const uint DEEP = VECTORS / 2u / SHARES;  // multiplications of 32 channels for each subgroup
const uint TAPS = TAPS_Y * TAPS_X;
const uint ASKING = TAPS > 4u ? 4u : TAPS - 1u;  // the tap at which the next pixels are asked for
const uint W_SLICE = TILE_COLUMNS * PITCH, W_FIRST = LINES * PITCH;
shared uvec4 s_slice[W_FIRST + 2u * W_SLICE];  // at the end 2048 vectors of sums

#define Product coopmat<int, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseAccumulator>
#define RowFragment coopmat<int8_t, gl_ScopeSubgroup, 32, FRAGMENT, gl_MatrixUseB>
#define ColumnFragment coopmat<int8_t, gl_ScopeSubgroup, FRAGMENT, 32, gl_MatrixUseA>

void main() {
    uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint column_tile = index % COLUMN_TILES * TILE_COLUMNS;
    uint row_tile = index / COLUMN_TILES % ROW_TILES * TILE_ROWS;
    uint group = index / (COLUMN_TILES * ROW_TILES);
    if (group >= groups) return;
    uint i = gl_LocalInvocationIndex;
    uint lane = gl_SubgroupInvocationID, subgroup = gl_SubgroupID;
    uint share = subgroup / PARTS, part = subgroup % PARTS;
    uint part_row = part / SIDEWAYS * PART_ROWS, part_column = part % SIDEWAYS * PART_COLUMNS;
    uint own_vector = i % VECTORS, own_line = i / VECTORS;
    const uint PLACES = GRID_Y * GRID_X;

    uint w_from[COLUMN_LOADS], x_from[ROW_LOADS];
    [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l) {
        uint line = own_line + l * APART, in_part = line % PART_COLUMNS;
        uint column = column_tile + line / PART_COLUMNS * PART_COLUMNS
                      + in_part % 8u * (2u * COLUMNS) + in_part / 16u * 2u + in_part / 8u % 2u;
        w_from[l] = w_offset / 16u + group * w_strides[0] + min(column, out_channels - 1u) * w_strides[1] + own_vector;
    }
    uvec4 x_next[ROW_LOADS], w_next[COLUMN_LOADS];
#define ASK_FILTER(at) \
    [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l) w_next[l] = w_vectors[w_from[l] + (at)];
#define STORE_FILTER(buffer_) \
    [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l) \
        s_slice[W_FIRST + (buffer_) * W_SLICE + (own_line + l * APART) * PITCH + own_vector] = w_next[l];
#define ASK_PIXELS(at) \
    [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l) \
        x_next[l] = x_vectors[x_from[l] == NOWHERE ? 0u : x_from[l] + (at)];
#define STORE_PIXELS \
    [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l) \
        s_slice[(own_line + l * APART) * PITCH + own_vector] = x_from[l] == NOWHERE ? uvec4(0u) : x_next[l];
    ASK_FILTER(0u)
    [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l) {
        uint place = row_tile + own_line + l * APART - BEFORE, batch = place / PLACES;
        uint y = place / GRID_X % GRID_Y, x = place % GRID_X;
        bool there = batch < batches && y < in_sizes[0] && x < in_sizes[1];
        x_from[l] = there ? x_offset / 16u + group * (in_channels / 16u) + batch * x_strides[0] + y * x_strides[1]
                            + x * x_strides[2] + own_vector : NOWHERE;
    }
    ASK_PIXELS(0u)

    const uint EACH = 2u * COLUMNS;  // neighbouring channels
    uint own = column_tile + part_column + lane / 4u * EACH;
    bool own_exists = own < out_channels;
    Product products[ROWS][COLUMNS];
    int added[EACH];
    vec4 scales;
    float of_x = x_scale[x_scale_offset], of_y = y_scale[y_scale_offset];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        uint channel = group * out_channels + min(own + e, out_channels - 1u);
        added[e] = HAS_BIAS && share == 0u ? bias[bias_offset + channel * bias_stride] : 0;
        precise float scale = of_x * w_scale[w_scale_offset + channel * w_scale_stride];
        scale = scale / of_y;
        scales[e] = scale;
    }
    [[unroll]] for (uint r = 0u; r < ROWS; ++r)
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
            if (!HAS_BIAS)
                products[r][c] = Product(0);
            else
                [[unroll]] for (uint e = 0u; e < 8u; ++e) products[r][c][e] = added[2u * c + e / 4u];
        }
    if (HAS_OUTPUT_ZERO) {
        int from = int(y_zero_offset % 4u * 8u), word = int(y_zero_words[y_zero_offset / 4u]);
        out_zero = (OUTPUT_TYPE & 16u) != 0u ? bitfieldExtract(word, from, 8)
                                             : int(bitfieldExtract(uint(word), from, 8));
    }

    STORE_FILTER(0u)
    STORE_PIXELS
    barrier();
    uint tap = 0u, tap_x = 0u, chunk = 0u, line_at = 0u, w_at = 0u, current = 0u;
    [[dont_unroll]] while (chunk < chunks) {
        bool wraps = tap + 1u == TAPS, turns = tap_x + 1u == TAPS_X;
        uint beyond = min(chunk + 1u, chunks - 1u) * VECTORS;  // the last chunk is asked for again
        w_at = wraps ? beyond : w_at + w_strides[2];
        ASK_FILTER(w_at)
        if (tap == ASKING) ASK_PIXELS(beyond)
        [[unroll]] for (uint d = 0u; d < DEEP; ++d) {
            uint deep = (share * DEEP + d) * 2u;
            uint lines = W_FIRST + current * W_SLICE + part_column * PITCH + deep;
            uint tile = (part_row + line_at) * PITCH + deep;
            ColumnFragment w[COLUMNS];
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                coopMatLoad(w[c], s_slice, lines + c * FRAGMENT * PITCH, PITCH, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                RowFragment x;
                coopMatLoad(x, s_slice, tile + r * FRAGMENT * PITCH, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                    products[r][c] = coopMatMulAdd(w[c], x, products[r][c]);
            }
        }
        current = 1u - current;
        STORE_FILTER(current)
        barrier();
        line_at = wraps ? 0u : turns ? line_at + GRID_X - (TAPS_X - 1u) : line_at + 1u;
        tap = wraps ? 0u : tap + 1u;
        tap_x = turns ? 0u : tap_x + 1u;
        if (wraps) {
            ++chunk;
            if (chunk < chunks) {
                STORE_PIXELS
                barrier();
            }
        }
    }

    // A subgroup finishes two rows of fragments. It gets their other sums from the subgroup with the other channels,
    // and gives that one the sums of its rows. Nothing here is a loop: if a compiler does not unroll it, all products
    // go to memory.
    const uint OWN = ROWS / SHARES;
#define HALF_OF(r, c, n) \
    uvec4(products[r][c][n], products[r][c][(n) + 1], products[r][c][(n) + 2], products[r][c][(n) + 3])
#define PLACE_OF(whose, r, c) ((((whose) * PARTS + part) * OWN + (r) % OWN) * COLUMNS + (c)) * 64u + lane
#define GIVE(r, c) \
    { \
        uint to = PLACE_OF(1u - share, r, c); \
        s_slice[to] = HALF_OF(r, c, 0); \
        s_slice[to + 32u] = HALF_OF(r, c, 4); \
    }
#define TAKE(r, c) \
    { \
        uint from = PLACE_OF(share, r, c); \
        ivec4 low = ivec4(s_slice[from]), high = ivec4(s_slice[from + 32u]); \
        products[r][c][0] += low.x; \
        products[r][c][1] += low.y; \
        products[r][c][2] += low.z; \
        products[r][c][3] += low.w; \
        products[r][c][4] += high.x; \
        products[r][c][5] += high.y; \
        products[r][c][6] += high.z; \
        products[r][c][7] += high.w; \
    }
#define OF_ROW(r, what, whose) \
    if ((r) / OWN == whose) { \
        what(r, 0u) \
        what(r, 1u) \
    }
#define OF_ROWS(what, whose) \
    OF_ROW(0u, what, whose) \
    OF_ROW(1u, what, whose) \
    OF_ROW(2u, what, whose) \
    OF_ROW(3u, what, whose)
    // The loop ends with a barrier: all slices were multiplied.
    OF_ROWS(GIVE, 1u - share)
    barrier();
    OF_ROWS(TAKE, share)

    uint own_row = row_tile + part_row + lane % 4u * 2u, y_from = y_offset + group * out_channels + own;
#define STORE_VECTOR(r, n) \
    { \
        uint place = own_row + (r) * FRAGMENT + (n) % 2u + (n) / 2u * 8u, batch = place / PLACES; \
        uint y = place / GRID_X % GRID_Y, x = place % GRID_X; \
        Product left = products[r][0u], right = products[r][1u]; \
        uint four = requantized(ivec4(left[n], left[(n) + 4], right[n], right[(n) + 4]), scales); \
        if (own_exists && batch < batches && y < POSITIONS_Y && x < POSITIONS_X) \
            y_words[(y_from + batch * y_strides[0] + y * y_strides[1] + x * y_strides[2]) / 4u] = four; \
    }
#define STORE_ROWS(r, whose) \
    if ((r) / OWN == whose) { \
        STORE_VECTOR(r, 0) \
        STORE_VECTOR(r, 1) \
        STORE_VECTOR(r, 2) \
        STORE_VECTOR(r, 3) \
    }
    STORE_ROWS(0u, share)
    STORE_ROWS(1u, share)
    STORE_ROWS(2u, share)
    STORE_ROWS(3u, share)
}
