//@ op DML_OPERATOR_CONVOLUTION
//@ variants TILE:
//@     t96(down=2, across=2, rows=96, columns=128, pixels_left=0, turns=1, passes=0, along=1)
//@     t48x256(down=1, across=4, rows=48, columns=256, pixels_left=0, turns=1, passes=0, along=1)
//@     t64x256(down=1, across=4, rows=64, columns=256, pixels_left=1, turns=1, passes=0, along=1)
//@     t64x256x2(down=1, across=4, rows=64, columns=256, pixels_left=1, turns=2, passes=0, along=1)
//@     t64x256p2(down=1, across=4, rows=64, columns=256, pixels_left=1, turns=2, passes=1, along=1)
//@     t128x256(down=2, across=4, rows=128, columns=256, pixels_left=0, turns=1, passes=0, along=1)
//@     t192x64(down=4, across=1, rows=192, columns=64, pixels_left=0, turns=1, passes=0, along=1)
//@     t128x32(down=4, across=1, rows=128, columns=32, pixels_left=1, turns=1, passes=0, along=3)
//@     t64x32(down=2, across=1, rows=64, columns=32, pixels_left=1, turns=1, passes=0, along=3)
//@     t128x64(down=4, across=1, rows=128, columns=64, pixels_left=1, turns=1, passes=0, along=3)
//@ glslang >= 14
//@ target vulkan1.1
//@ tail *
//@ unchecked t192x64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
// Convolutions on matrix units, FLOAT16 with float32 sums, channels last, of constant filters that
// convolution_pack_filter.comp has put into the order of matrix units. Each subgroup reads the filter straight from
// memory. Shared memory holds all pixels that a tile's outputs reach, in two buffers of 32 channels: while one is
// multiplied, tap after tap, the next one is filled. A fragment is filled from the pixels of 16 outputs, wherever they
// lie (DeviceTraits.fragments_alike): an invocation's vector of eight channels serves two steps of K. Pixels are right
// operands, columns of the filter left ones, so that no words move between registers; with PIXELS_LEFT it is the other
// way round. Columns are packed in an order that gives each invocation eight neighbouring channels of its sums.
// All phases of a transposed convolution are columns of one product. With SEVERAL_TURNS a workgroup makes tiles of the
// same pixels: while it multiplies the last channels of a turn, it asks for the first ones of the next turn. With PASSES
// it reads the filter as structs, so that all loads of a pass share an address, and the next turn's after the outputs
// are stored. With SHARES_TAPS, for nine taps, several subgroups share the taps of a tile's sums, which are added up in
// shared memory: where columns are few a core has more subgroups so. Vectors of the next 32 channels are on their way
// for all taps of a share. These are variants of their own: a text for all of them is slower in each, whatever constants choose.
// Nothing is read or written outside of the tensors: pixels and vectors of a tail that do not exist become the first
// of their buffer, columns are clamped, such outputs are not stored, and two steps behind the filter are allocated.
layout(constant_id = 1) const bool HAS_BIAS = false;
layout(constant_id = 2) const bool UNFINISHED = false;  // the output is the sums of a part of K
layout(constant_id = 3) const uint PIXELS = 1u;         // of a tile, at most
layout(constant_id = 4) const bool REGULAR = false;     // the places of all tiles' rows are the same
layout(constant_id = 5) const uint LOADS = 1u;          // vectors that an invocation reads for each tap
// Positions are those of a phase. An image is cut into bands of columns.
layout(constant_id = 6) const uint BAND_WIDTH = 1u;
layout(constant_id = 7) const uint POSITIONS_Y = 1u;
layout(constant_id = 8) const uint POSITIONS_X = 1u;
layout(constant_id = 9) const uint BANDS = 1u;
layout(constant_id = 10) const uint WIDTH = 1u;  // pixels of a row in shared memory
layout(constant_id = 11) const uint REACH_Y = 1u;  // rows of pixels that an output reaches
layout(constant_id = 12) const uint STEP_Y = 1u;   // from output to output
layout(constant_id = 13) const uint STEP_X = 1u;
layout(constant_id = 14) const uint TAPS_Y = 1u;
layout(constant_id = 15) const uint TAPS_X = 1u;
layout(constant_id = 16) const uint TAP_STEP_Y = 1u;
layout(constant_id = 17) const uint TAP_STEP_X = 1u;
layout(constant_id = 18) const uint PHASES_Y = 1u;
layout(constant_id = 19) const uint PHASES_X = 1u;
layout(constant_id = 20) const uint PHASE_COLUMNS = 64u;  // filled up to whole strips
layout(constant_id = 21) const uint ROW_TILES = 1u;
layout(constant_id = 22) const uint COLUMN_TILES = 1u;
layout(constant_id = 23) const uint SPLITS = 1u;  // of K
#if TILE_turns > 1
#define SEVERAL_TURNS
layout(constant_id = 24) const uint TURNS = 1u;   // column tiles that a workgroup makes, one after the other
#endif
#if TILE_passes
#define PASSES
#endif
#if TILE_along > 1
#define SHARES_TAPS
layout(constant_id = 25) const uint SHARED = 1u;  // vectors for pixels, and then for sums
#endif
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint own_chunks;  // of 32 channels, in a split
    uint chunks;
    uint groups;
    uint batches;
    uint in_channels;  // in a group
    uint out_channels;
    int first[2];  // the first tap of the first position of all phases: y, x
    uint in_sizes[2];
    uint x_strides[3];  // batch, y, x
    uint y_strides[3];
    uint phases_at[2];  // pixels from there to the first tap of each phase, in bytes
    uint split_stride;  // elements from the sums of a split to the next
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
#ifdef PASSES
struct FilterPass { uvec4 vectors[2][4][32]; };  // steps, fragments, invocations
layout(binding = 1) readonly buffer FilterPasses { FilterPass w_passes[]; };
#else
layout(binding = 1) readonly buffer FilterVectors { uvec4 w_vectors[]; };
#endif
layout(binding = 2) writeonly buffer OutputVectors { uvec4 y_vectors[]; };
layout(binding = 3) readonly buffer Bias { float16_t bias[]; };
#include "include/typed.glsl"
#define TAIL_BINDING 4
#define TAIL_TYPE 34u
#include "include/tail.glsl"

// Subgroups, and fragments of each.
#if TILE_pixels_left
#define PIXELS_LEFT
#endif
const uint DOWNWARD = TILE_down, SIDEWAYS = TILE_across, ALONG = TILE_along;
const uint ROWS = TILE_rows / 16 / TILE_down, COLUMNS = TILE_columns / 16 / TILE_across;
const uint SUBGROUPS = DOWNWARD * SIDEWAYS * ALONG, INVOCATIONS = 32u * SUBGROUPS;
layout(local_size_x = INVOCATIONS) in;
const uint FRAGMENT = 16u;
const uint PART_ROWS = ROWS * FRAGMENT, PART_COLUMNS = COLUMNS * FRAGMENT;
const uint TILE_ROWS = PART_ROWS * DOWNWARD, TILE_COLUMNS = PART_COLUMNS * SIDEWAYS;
#define Product coopmat<float, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseAccumulator>
#ifdef PIXELS_LEFT
#define ROW_USE gl_MatrixUseA
#define COLUMN_USE gl_MatrixUseB
#define TIMES(w, x, sum) coopMatMulAdd(x, w, sum)
#define PLACE_OF(word) (2 * (word))
const uint BESIDE = 1u;  // from an invocation to that with the next eight channels
#else
#define ROW_USE gl_MatrixUseB
#define COLUMN_USE gl_MatrixUseA
#define TIMES(w, x, sum) coopMatMulAdd(w, x, sum)
#define PLACE_OF(word) ((word) / 2 * 2 + (word) % 2 * 4)
const uint BESIDE = 4u;
#endif
#define RowFragment coopmat<float16_t, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, ROW_USE>
#define ColumnFragment coopmat<float16_t, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, COLUMN_USE>

const uint NOWHERE = 0xFFFFFFFFu;
const uint PIXEL_VECTORS = 4u;  // 32 channels
const uint BUFFER = (PIXELS + 1u) * PIXEL_VECTORS;  // the last one takes what is beyond the tile
const uint TAPS = TAPS_Y * TAPS_X;
#ifdef SHARES_TAPS
shared uvec4 s_tile[SHARED];
#else
shared uvec4 s_tile[2u * BUFFER];
#endif
shared uint s_from[(PIXELS + 4u) / 4u * 4u];  // elements of the input; whole vectors, as others follow
shared uint s_to[TILE_ROWS];      // elements of the output, of the first phase
shared uint s_pixel[TILE_ROWS];   // the vector of a row's first tap
#ifdef SEVERAL_TURNS
shared vec4 s_bias[TURNS * (TILE_COLUMNS / 4u)];
#else
shared vec4 s_bias[TILE_COLUMNS / 4u];
#endif

// Where pixels come from. A barrier must follow.
void find_pixels(uint row_tile, uint group) {
    uint line = row_tile / BAND_WIDTH, image = line / POSITIONS_Y, y_first = line % POSITIONS_Y;
    const uint WHOLE = (POSITIONS_Y - 1u) * STEP_Y + REACH_Y;
    uint first_rows = WHOLE - y_first * STEP_Y;
    for (uint p = gl_LocalInvocationIndex; p <= PIXELS; p += INVOCATIONS) {
        uint row = p / WIDTH, at = image;
        int x = int(p % WIDTH), y = int(row + y_first * STEP_Y);
        if (row >= first_rows) {
            at += 1u + (row - first_rows) / WHOLE;
            y = int((row - first_rows) % WHOLE);
        }
        uint batch = at / BANDS;
        x += int(at % BANDS * BAND_WIDTH * STEP_X) + first[1];
        y += first[0];
        bool inside = p < PIXELS && batch < batches && uint(y) < in_sizes[0] && uint(x) < in_sizes[1];
        s_from[p] = inside ? x_offset + group * in_channels + batch * x_strides[0] + uint(y) * x_strides[1]
                             + uint(x) * x_strides[2] : NOWHERE;
    }
}

// Where rows of the tile lie among the pixels and in the output. A barrier must follow.
void find_rows(uint row_tile, uint group, uint split) {
    uint line = row_tile / BAND_WIDTH, image = line / POSITIONS_Y, y_first = line % POSITIONS_Y;
    const uint WHOLE = (POSITIONS_Y - 1u) * STEP_Y + REACH_Y;
    uint first_rows = WHOLE - y_first * STEP_Y;
    for (uint r = gl_LocalInvocationIndex; r < TILE_ROWS; r += INVOCATIONS) {
        uint row = row_tile + r, x = row % BAND_WIDTH, y = row / BAND_WIDTH % POSITIONS_Y;
        uint at = row / BAND_WIDTH / POSITIONS_Y, batch = at / BANDS, across = at % BANDS * BAND_WIDTH + x;
        bool exists = batch < batches && across < POSITIONS_X;
        uint pixel_row = at == image ? (y - y_first) * STEP_Y : first_rows + (at - image - 1u) * WHOLE + y * STEP_Y;
        s_pixel[r] = exists ? (pixel_row * WIDTH + x * STEP_X) * PIXEL_VECTORS : 0u;
        s_to[r] = exists ? y_offset + split * split_stride + group * out_channels + batch * y_strides[0]
                           + y * PHASES_Y * y_strides[1] + across * PHASES_X * y_strides[2] : NOWHERE;
    }
}

// Stores eight channels of an output. Those of a part of K are exchanged with the neighbour's, so that each store fills
// 32 bytes.
void store_eight(vec4 low, vec4 high, uint to, bool there, vec4 others_low, vec4 others_high,
                 uint column) {
    if (UNFINISHED) {
        bool odd = (gl_SubgroupInvocationID & BESIDE) != 0u;
        vec4 got = subgroupShuffleXor(odd ? low : high, BESIDE);
        bool other = subgroupShuffleXor(uint(there), BESIDE) != 0u;
        if (odd) to -= 4u;
        if (odd ? other : there) y_vectors[to / 4u] = floatBitsToUint(odd ? got : low);
        if (odd ? there : other) y_vectors[to / 4u + 2u] = floatBitsToUint(odd ? high : got);
        return;
    }
    if (HAS_BIAS) {
        low += s_bias[column / 4u];
        high += s_bias[column / 4u + 1u];
    }
    [[unroll]] for (uint e = 0u; e < 4u; ++e) {
        low[e] = finish_beside(low[e], others_low[e]);
        high[e] = finish_beside(high[e], others_high[e]);
    }
    if (there)
        y_vectors[to / 8u] = uvec4(packHalf2x16(low.xy), packHalf2x16(low.zw), packHalf2x16(high.xy),
                                   packHalf2x16(high.zw));
}

void main() {
    uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
#ifdef SEVERAL_TURNS
    const uint COLUMNS_OF_ALL = TURNS * TILE_COLUMNS, PARTS_ACROSS = COLUMN_TILES / TURNS;
#else
#define COLUMNS_OF_ALL TILE_COLUMNS
#define PARTS_ACROSS COLUMN_TILES
#endif
    uint column_tile = index % PARTS_ACROSS * COLUMNS_OF_ALL, row_tile = index / PARTS_ACROSS % ROW_TILES * TILE_ROWS;
    index /= PARTS_ACROSS * ROW_TILES;
    uint split = index % SPLITS, group = index / SPLITS;
    if (group >= groups) return;
    uint begin = min(split * own_chunks, chunks), end = min(begin + own_chunks, chunks);
    uint i = gl_LocalInvocationIndex, lane = gl_SubgroupInvocationID;
#ifdef SHARES_TAPS
    uint part = gl_SubgroupID % (DOWNWARD * SIDEWAYS), share = gl_SubgroupID / (DOWNWARD * SIDEWAYS);
#else
#define part gl_SubgroupID
#endif
    uint part_row = part / SIDEWAYS * PART_ROWS, part_column = part % SIDEWAYS * PART_COLUMNS;
    const uint ALL_COLUMNS = PHASES_Y * PHASES_X * PHASE_COLUMNS;
#define FIND_PHASE(first) \
    uint first_column = first; \
    uint phase = min(first_column / PHASE_COLUMNS, PHASES_Y * PHASES_X - 1u); \
    uint phase_y = phase / PHASES_X, phase_x = phase % PHASES_X;
#ifndef SEVERAL_TURNS
    FIND_PHASE(column_tile + part_column)
#endif

    // The filter lies in strips of 64 columns and steps of 16 of K: for all taps those of 32 channels, then the next
    // 32.
    // A vector holds what an invocation has of a fragment.
    const uint STEP_VECTORS = 128u;
#ifdef PASSES
    uint w_at;  // in passes
#define PLACE_FILTER(first) \
    w_at = (w_offset + 2047u) / 2048u \
           + ((group * (ALL_COLUMNS / 64u) + min(first, ALL_COLUMNS - PART_COLUMNS) / 64u) * chunks + begin) * TAPS;
#define ASK_FILTER(which, pass, step) \
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) which[c] = w_passes[w_at + (pass)].vectors[step][c][lane];
#define ASK_NEXT_STEP(which, step) ASK_FILTER(which, 1u, step)
#define END_PASS w_at += 1u;
#else
#ifdef SEVERAL_TURNS
    uint w_at;
#define PLACE_FILTER(first) \
    w_at = w_offset / 8u + ((group * (ALL_COLUMNS / 64u) + min(first, ALL_COLUMNS - PART_COLUMNS) / 64u) * chunks \
                            + begin) * TAPS * 2u * STEP_VECTORS + lane;
#else
    uint fragment = min(first_column, ALL_COLUMNS - PART_COLUMNS) / FRAGMENT;
    uint w_at = w_offset / 8u + ((group * (ALL_COLUMNS / 64u) + fragment / 4u) * chunks + begin) * TAPS * 2u
                * STEP_VECTORS + fragment % 4u * 32u + lane;
#ifdef SHARES_TAPS
    w_at += 2u * STEP_VECTORS * share;
#endif
#endif
#define ASK_FILTER(which, pass, step) \
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) \
        which[c] = w_vectors[w_at + (2u * (pass) + (step)) * STEP_VECTORS + c * 32u];
#define ASK_NEXT_STEP(which, step) \
    ASK_FILTER(which, FILTER_AHEAD, 0u) \
    w_at += STEP_VECTORS;
#ifdef SHARES_TAPS
#define END_PASS w_at += 2u * (ALONG - 1u) * STEP_VECTORS;
#else
#define END_PASS
#endif
#endif
#if TILE_along > 1 && TILE_columns / 16 / TILE_across < 3
#define FILTER_AHEAD (chunk + 1u < end ? TAPS : 0u)
    uvec4 w2[COLUMNS], w3[COLUMNS], w4[COLUMNS], w5[COLUMNS];
    ASK_FILTER(w2, ALONG, 0u)
    ASK_FILTER(w3, ALONG, 1u)
    ASK_FILTER(w4, 2u * ALONG, 0u)
    ASK_FILTER(w5, 2u * ALONG, 1u)
#define FILTERS_OF_CHUNK
#else
#define FILTER_AHEAD ALONG
#endif
    uvec4 w0[COLUMNS], w1[COLUMNS];
#ifdef SEVERAL_TURNS
    PLACE_FILTER(column_tile + part_column)
#endif
    ASK_FILTER(w0, 0u, 0u)
    ASK_FILTER(w1, 0u, 1u)
    find_pixels(row_tile, group);
    barrier();

    // Vectors of pixels that are on their way. Nothing uses them before they are stored.
    uint own_channel = i % PIXEL_VECTORS * 8u, own_pixel = i / PIXEL_VECTORS;
    const uint APART = INVOCATIONS / PIXEL_VECTORS;
#define ASK_PIXEL(to, is_inside, chunk, slot) { \
        uint channel = (chunk) * 32u + own_channel; \
        uint from = s_from[min(own_pixel + (slot) * APART, PIXELS)]; \
        is_inside = from != NOWHERE && channel < in_channels; \
        to = x_vectors[is_inside ? (from + channel) / 8u : 0u]; \
    }
#define STORE_PIXEL(from, is_inside, buffer_, slot) \
    s_tile[(buffer_) + min(own_pixel + (slot) * APART, PIXELS) * PIXEL_VECTORS + i % PIXEL_VECTORS] = \
        is_inside ? from : uvec4(0u);
    uvec4 next0, next1, next2, next3, next4, next5, next6, next7;
    bool inside0, inside1, inside2, inside3, inside4, inside5, inside6, inside7;
    const uint SLOTS = (PIXELS + APART - 1u) / APART;
    for (uint slot = 0u; slot < SLOTS; slot += 8u) {
        ASK_PIXEL(next0, inside0, begin, slot)
        if (SLOTS > 1u) ASK_PIXEL(next1, inside1, begin, slot + 1u)
        if (SLOTS > 2u) ASK_PIXEL(next2, inside2, begin, slot + 2u)
        if (SLOTS > 3u) ASK_PIXEL(next3, inside3, begin, slot + 3u)
        if (SLOTS > 4u) ASK_PIXEL(next4, inside4, begin, slot + 4u)
        if (SLOTS > 5u) ASK_PIXEL(next5, inside5, begin, slot + 5u)
        if (SLOTS > 6u) ASK_PIXEL(next6, inside6, begin, slot + 6u)
        if (SLOTS > 7u) ASK_PIXEL(next7, inside7, begin, slot + 7u)
        if (slot == 0u) {
            find_rows(row_tile, group, split);
            for (uint c = i; c < COLUMNS_OF_ALL; c += INVOCATIONS) {
                uint channel = group * out_channels + min((column_tile + c) % PHASE_COLUMNS, out_channels - 1u);
                s_bias[c / 4u][c % 4u] = HAS_BIAS ? float(bias[bias_offset + channel * bias_stride]) : 0.0;
            }
        }
        STORE_PIXEL(next0, inside0, 0u, slot)
        if (SLOTS > 1u) STORE_PIXEL(next1, inside1, 0u, slot + 1u)
        if (SLOTS > 2u) STORE_PIXEL(next2, inside2, 0u, slot + 2u)
        if (SLOTS > 3u) STORE_PIXEL(next3, inside3, 0u, slot + 3u)
        if (SLOTS > 4u) STORE_PIXEL(next4, inside4, 0u, slot + 4u)
        if (SLOTS > 5u) STORE_PIXEL(next5, inside5, 0u, slot + 5u)
        if (SLOTS > 6u) STORE_PIXEL(next6, inside6, 0u, slot + 6u)
        if (SLOTS > 7u) STORE_PIXEL(next7, inside7, 0u, slot + 7u)
    }
#ifdef SHARES_TAPS
#define MORE_PIXELS(DO, of, first) \
        if (LOADS > 4u) DO(next4, inside4, of, first) \
        if (LOADS > 5u) DO(next5, inside5, of, (first) + 1u) \
        if (LOADS > 6u) DO(next6, inside6, of, (first) + 2u) \
        if (LOADS > 7u) DO(next7, inside7, of, (first) + 3u)
#else
#define MORE_PIXELS(DO, of, first)
#endif
#define ASK_PIXELS(chunk, slot) { \
        ASK_PIXEL(next0, inside0, chunk, (slot) * LOADS) \
        if (LOADS > 1u) ASK_PIXEL(next1, inside1, chunk, (slot) * LOADS + 1u) \
        if (LOADS > 2u) ASK_PIXEL(next2, inside2, chunk, (slot) * LOADS + 2u) \
        if (LOADS > 3u) ASK_PIXEL(next3, inside3, chunk, (slot) * LOADS + 3u) \
        MORE_PIXELS(ASK_PIXEL, chunk, 4u) \
    }
#define STORE_PIXELS(buffer_, slot) { \
        STORE_PIXEL(next0, inside0, buffer_, (slot) * LOADS) \
        if (LOADS > 1u) STORE_PIXEL(next1, inside1, buffer_, (slot) * LOADS + 1u) \
        if (LOADS > 2u) STORE_PIXEL(next2, inside2, buffer_, (slot) * LOADS + 2u) \
        if (LOADS > 3u) STORE_PIXEL(next3, inside3, buffer_, (slot) * LOADS + 3u) \
        MORE_PIXELS(STORE_PIXEL, buffer_, 4u) \
    }
#define BEGIN_PRODUCTS \
    Product products[ROWS][COLUMNS]; \
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) \
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) products[r][c] = Product(0);
#ifdef SEVERAL_TURNS
    // The chunk after a turn's last one is the first of the next turn.
#define EXISTING(chunk) min(TURNS == 1u || (chunk) < end ? chunk : (chunk) - end + begin, chunks - 1u)
    ASK_PIXELS(EXISTING(begin + 1u), 0u)
    barrier();
    uint buffer_ = 0u;
    [[dont_unroll]] for (uint turn = 0u; turn < TURNS; ++turn) {
    FIND_PHASE(column_tile + turn * TILE_COLUMNS + part_column)
    BEGIN_PRODUCTS
#else
#define EXISTING(chunk) min(chunk, chunks - 1u)
#ifndef SHARES_TAPS
    ASK_PIXELS(EXISTING(begin + 1u), 0u)
#endif
    BEGIN_PRODUCTS
    barrier();
#endif
    // The pixels of this invocation's rows.
    uint low_row[ROWS], high_row[ROWS];
    uint phase_at = (bitfieldExtract(phases_at[0], int(8u * phase_y), 8) * WIDTH
                     + bitfieldExtract(phases_at[1], int(8u * phase_x), 8)) * PIXEL_VECTORS + lane % 4u;
#define ROW_AT(row) (((row) / BAND_WIDTH * STEP_Y * WIDTH + (row) % BAND_WIDTH * STEP_X) * PIXEL_VECTORS)
    uint first_row = ROW_AT(part_row) + lane / 4u * STEP_X * PIXEL_VECTORS;
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        uint row = part_row + r * FRAGMENT + lane / 4u;
        low_row[r] = (REGULAR ? first_row + ROW_AT(r * FRAGMENT) : s_pixel[row]) + phase_at;
        high_row[r] = (REGULAR ? first_row + ROW_AT(r * FRAGMENT + 8u) : s_pixel[row + 8u]) + phase_at;
    }
#define HALVES(to, at, word) { \
        f16vec2 pair = unpackFloat2x16(word); \
        to[at] = pair.x; \
        to[at + 1] = pair.y; \
    }
#define MULTIPLY(which, step, first_word, second_word) { \
        ColumnFragment w[COLUMNS]; \
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) \
            [[unroll]] for (int n = 0; n < 4; ++n) HALVES(w[c], PLACE_OF(n), which[c][n]) \
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) { \
            RowFragment x; \
            HALVES(x, 0, low[r].first_word) \
            HALVES(x, 2, low[r].second_word) \
            HALVES(x, 4, high[r].first_word) \
            HALVES(x, 6, high[r].second_word) \
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) products[r][c] = TIMES(w[c], x, products[r][c]); \
        } \
        ASK_NEXT_STEP(which, step) \
    }
    #define TAP_AT(own) (((own) / TAPS_X * TAP_STEP_Y * WIDTH + (own) % TAPS_X * TAP_STEP_X) * PIXEL_VECTORS)
#ifdef SHARES_TAPS
    // Multiplies 32 channels of a tap.
#define PASS(first_step, second_step, tap) { \
        uint place = buffer_ + TAP_AT((tap) * ALONG + share); \
        uvec4 low[ROWS], high[ROWS]; \
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) { \
            low[r] = s_tile[low_row[r] + place]; \
            high[r] = s_tile[high_row[r] + place]; \
        } \
        MULTIPLY(first_step, 0u, x, y) \
        MULTIPLY(second_step, 1u, z, w) \
        END_PASS \
    }
#else
    // Multiplies 32 channels of a tap. What is stored was asked for in the pass before.
#define PASS(first_step, second_step) { \
        STORE_PIXELS(BUFFER - buffer_, tap) \
        uint place = buffer_ + tap_at; \
        bool ends = tap + 1u == TAPS; \
        tap = ends ? 0u : tap + 1u; \
        chunk += ends ? 1u : 0u; \
        tap_x = ends || tap_x + 1u == TAPS_X ? 0u : tap_x + 1u; \
        tap_at = ends ? 0u : tap_x == 0u ? tap_at + ROW_STEP : tap_at + TAP_STEP_X * PIXEL_VECTORS; \
        buffer_ = ends ? BUFFER - buffer_ : buffer_; \
        ASK_PIXELS(EXISTING(chunk + 1u), tap) \
        uvec4 low[ROWS], high[ROWS]; \
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) { \
            low[r] = s_tile[low_row[r] + place]; \
            high[r] = s_tile[high_row[r] + place]; \
        } \
        MULTIPLY(first_step, 0u, x, y) \
        MULTIPLY(second_step, 1u, z, w) \
        END_PASS \
        if (ends) barrier(); \
    }
#endif
    const uint ROW_STEP = (TAP_STEP_Y * WIDTH - (TAPS_X - 1u) * TAP_STEP_X) * PIXEL_VECTORS;
#ifdef SHARES_TAPS
    uint buffer_ = 0u;
    // A share has three taps. Pixels of the next channels are on their way for all of them.
    [[dont_unroll]] for (uint chunk = begin; chunk < end; ++chunk) {
        ASK_PIXELS(EXISTING(chunk + 1u), 0u)
        PASS(w0, w1, 0u)
#ifdef FILTERS_OF_CHUNK
        PASS(w2, w3, 1u)
        PASS(w4, w5, 2u)
#else
        PASS(w0, w1, 1u)
        PASS(w0, w1, 2u)
#endif
        buffer_ = BUFFER - buffer_;
        STORE_PIXELS(buffer_, 0u)
        barrier();
    }
#else
    uint tap = 0u, tap_x = 0u, tap_at = 0u, chunk = begin;
#ifndef SEVERAL_TURNS
    uint buffer_ = 0u;
#endif
    [[dont_unroll]] while (chunk < end) {
        PASS(w0, w1)
    }
#endif
#ifdef SEVERAL_TURNS
#define ASK_NEXT_TURN \
    if (TURNS > 1u) { \
        PLACE_FILTER(first_column + TILE_COLUMNS) \
        ASK_FILTER(w0, 0u, 0u) \
        ASK_FILTER(w1, 0u, 1u) \
    }
#ifndef PASSES
    ASK_NEXT_TURN
#endif
    uint own_bias = turn * TILE_COLUMNS + part_column;
#else
#define own_bias part_column
#endif
#ifdef SHARES_TAPS
    // The sums of all shares come together in the first one, by way of the pixels' memory.
#define SUM_AT(r, c, half_) s_tile[(((part * ROWS + r) * COLUMNS + c) * 2u + half_) * 32u + lane]
#define BITS(r, c, at) floatBitsToUint(vec4(products[r][c][at], products[r][c][at + 1], products[r][c][at + 2], \
                                            products[r][c][at + 3]))
#define LEAVE_SUM(r, c) \
    SUM_AT(r, c, 0u) = BITS(r, c, 0); \
    SUM_AT(r, c, 1u) = BITS(r, c, 4);
#define ADD_HALF(r, c, half_) { \
        vec4 others = uintBitsToFloat(SUM_AT(r, c, half_)); \
        [[unroll]] for (int e = 0; e < 4; ++e) products[r][c][4 * half_ + e] += others[e]; \
    }
#define ADD_SUM(r, c) \
    ADD_HALF(r, c, 0) \
    ADD_HALF(r, c, 1)
#if TILE_columns / 16 / TILE_across > 2
#define OF_ROW(DO, r) DO(r, 0) DO(r, 1) DO(r, 2) DO(r, 3)
#else
#define OF_ROW(DO, r) DO(r, 0) DO(r, 1)
#endif
#if TILE_rows / 16 / TILE_down > 2
#define OF_ALL(DO) OF_ROW(DO, 0) OF_ROW(DO, 1) OF_ROW(DO, 2) OF_ROW(DO, 3)
#else
#define OF_ALL(DO) OF_ROW(DO, 0) OF_ROW(DO, 1)
#endif
    [[dont_unroll]] for (uint other = 1u; other < ALONG; ++other) {
        if (share == other) {
            OF_ALL(LEAVE_SUM)
        }
        barrier();
        if (share == 0u) {
            OF_ALL(ADD_SUM)
        }
        if (other + 1u < ALONG) barrier();
    }
    if (share > 0u) return;
#endif
    uint phase_to = phase_y * y_strides[1] + phase_x * y_strides[2];
    // Nothing here is a loop: if a compiler does not unroll it, all products go to memory.
#ifdef PIXELS_LEFT
    uint quad = lane % 4u, column = first_column % PHASE_COLUMNS + quad * 8u;
    bool exists = first_column < ALL_COLUMNS;
#define STORE_VECTORS(r, c, at) { \
        uint to = s_to[part_row + (r) * FRAGMENT + lane / 4u + (at) * 2u], own = column + (c) * 16u; \
        bool there = exists && to != NOWHERE && own < out_channels; \
        to += phase_to + own; \
        Product left = products[r][c], right = products[r][(c) + 1u]; \
        vec4 low = vec4(left[at], left[(at) + 1], left[(at) + 2], left[(at) + 3]); \
        vec4 high = vec4(right[at], right[(at) + 1], right[(at) + 2], right[(at) + 3]); \
        vec4 others_low = UNFINISHED ? vec4(0.0) : tail_four(there ? to - y_offset : 0u); \
        vec4 others_high = UNFINISHED ? vec4(0.0) : tail_four(there ? to - y_offset + 4u : 0u); \
        store_eight(low, high, to, there, others_low, others_high, own_bias + quad * 8u + (c) * 16u); \
    }
#if TILE_columns / 16 / TILE_across > 2
#define STORE_ROW(r, at) \
        STORE_VECTORS(r, 0u, at) \
        STORE_VECTORS(r, 2u, at)
#else
#define STORE_ROW(r, at) STORE_VECTORS(r, 0u, at)
#endif
#define STORE_ROWS(r) \
    if (r < ROWS) { \
        STORE_ROW(min(r, ROWS - 1u), 0) \
        STORE_ROW(min(r, ROWS - 1u), 4) \
    }
#else
    uint own = first_column % PHASE_COLUMNS + lane / 4u * 8u;
    bool exists = first_column < ALL_COLUMNS && own < out_channels;
#define STORE_VECTOR(r, at) { \
        Product a = products[r][0u], b = products[r][1u], c = products[r][2u], d = products[r][3u]; \
        vec4 low = vec4(a[at], a[(at) + 4], b[at], b[(at) + 4]), high = vec4(c[at], c[(at) + 4], d[at], d[(at) + 4]); \
        store_eight(low, high, to[at], there[at], others[at][0], others[at][1], own_bias + lane / 4u * 8u); \
    }
    // A tail's vectors are all asked for before the first is used.
#define STORE_ROWS(r) \
    if (r < ROWS) { \
        uint to[4]; \
        bool there[4]; \
        vec4 others[4][2]; \
        [[unroll]] for (uint n = 0u; n < 4u; ++n) { \
            to[n] = s_to[part_row + (r) * FRAGMENT + lane % 4u * 2u + n % 2u + n / 2u * 8u]; \
            there[n] = exists && to[n] != NOWHERE; \
            to[n] += phase_to + own; \
            others[n][0] = UNFINISHED ? vec4(0.0) : tail_four(there[n] ? to[n] - y_offset : 0u); \
            others[n][1] = UNFINISHED ? vec4(0.0) : tail_four(there[n] ? to[n] - y_offset + 4u : 0u); \
        } \
        STORE_VECTOR(min(r, ROWS - 1u), 0) \
        STORE_VECTOR(min(r, ROWS - 1u), 1) \
        STORE_VECTOR(min(r, ROWS - 1u), 2) \
        STORE_VECTOR(min(r, ROWS - 1u), 3) \
    }
#endif
    STORE_ROWS(0u)
    STORE_ROWS(1u)
    STORE_ROWS(2u)
    STORE_ROWS(3u)
#ifdef PASSES
    ASK_NEXT_TURN
#endif
#ifdef SEVERAL_TURNS
    }
#endif
}
