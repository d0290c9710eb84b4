//@ op DML_OPERATOR_CONVOLUTION
//@ variants TILE: t96 t48x256 t64x256 t128x256 t64x160
//@ glslang >= 14
//@ target vulkan1.1
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
// Convolutions on matrix units, FLOAT16 with float32 sums, channels last, of constant filters that
// convolution_pack_filter.comp has put into the order of matrix units. Each subgroup reads the filter straight from
// memory. Shared memory holds all pixels that a tile's outputs reach, in two buffers of 32 channels: while one is
// multiplied, tap after tap, the next one is filled. A fragment is filled from the pixels of 16 outputs, wherever they
// lie (DeviceTraits.fragments_alike): an invocation's vector of eight channels serves two steps of K.
// All phases of a transposed convolution are columns of one product.
layout(constant_id = 1) const bool HAS_BIAS = false;
layout(constant_id = 2) const bool UNFINISHED = false;  // the output is the sums of a part of K
layout(constant_id = 3) const uint PIXELS = 1u;         // of a tile, at most
layout(constant_id = 4) const uint SHARED = 1u;         // vectors of shared memory for them, or for strips of sums
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
layout(binding = 1) readonly buffer FilterVectors { uvec4 w_vectors[]; };
layout(binding = 2) writeonly buffer OutputVectors { uvec4 y_vectors[]; };
layout(binding = 3) readonly buffer Bias { float16_t bias[]; };
#include "include/typed.glsl"
#define TAIL_BINDING 4
#define TAIL_TYPE 34u
#include "include/tail.glsl"

// Subgroups, fragments of each, and steps of the filter that are on their way.
#if defined(TILE_t96)
const uint DOWNWARD = 2u, SIDEWAYS = 2u, ROWS = 3u, COLUMNS = 4u, AHEAD = 2u;
#elif defined(TILE_t48x256)
const uint DOWNWARD = 1u, SIDEWAYS = 4u, ROWS = 3u, COLUMNS = 4u, AHEAD = 2u;
#elif defined(TILE_t64x256)
const uint DOWNWARD = 1u, SIDEWAYS = 4u, ROWS = 4u, COLUMNS = 4u, AHEAD = 2u;
#elif defined(TILE_t128x256)
const uint DOWNWARD = 2u, SIDEWAYS = 4u, ROWS = 4u, COLUMNS = 4u, AHEAD = 2u;
#else
const uint DOWNWARD = 2u, SIDEWAYS = 2u, ROWS = 2u, COLUMNS = 5u, AHEAD = 4u;
#endif
const uint SUBGROUPS = DOWNWARD * SIDEWAYS, INVOCATIONS = 32u * SUBGROUPS;
layout(local_size_x = INVOCATIONS) in;
const uint FRAGMENT = 16u;
const uint PART_ROWS = ROWS * FRAGMENT, PART_COLUMNS = COLUMNS * FRAGMENT;
const uint TILE_ROWS = PART_ROWS * DOWNWARD, TILE_COLUMNS = PART_COLUMNS * SIDEWAYS;
#define Product coopmat<float, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseAccumulator>
#define RowFragment coopmat<float16_t, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseA>
#define ColumnFragment coopmat<float16_t, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseB>

const uint NOWHERE = 0xFFFFFFFFu;
const uint PIXEL_VECTORS = 4u;  // 32 channels
const uint BUFFER = (PIXELS + 1u) * PIXEL_VECTORS;  // the last one takes what is beyond the tile
const uint TAPS = TAPS_Y * TAPS_X;
const uint STRIP_PITCH = PART_COLUMNS / 4u + 1u, STRIP = FRAGMENT * STRIP_PITCH;
shared uvec4 s_tile[SHARED];
shared uint s_from[PIXELS + 1u];  // elements of the input
shared uint s_to[TILE_ROWS];      // elements of the output, of the first phase
shared uint s_pixel[TILE_ROWS];   // the vector of a row's first tap
shared float s_bias[TILE_COLUMNS];

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

// Stores 16 rows of a subgroup's part. An item is eight channels of an output.
void store_rows(uint strip, uint tile_row, uint tile_column, uint phase_to, uint column) {
    const uint LINE = PART_COLUMNS / 8u, ITEMS = FRAGMENT * LINE / 32u;
    vec4 others[ITEMS][2];  // a tail's vectors are all asked for before the first is used
    [[unroll]] for (uint n = 0u; n < ITEMS; ++n) {
        uint item = gl_SubgroupInvocationID + n * 32u, own = column + item % LINE * 8u;
        uint to = s_to[tile_row + item / LINE];
        uint at = to == NOWHERE || own >= out_channels ? 0u : to + phase_to + own - y_offset;
        others[n][0] = UNFINISHED ? vec4(0.0) : tail_four(at);
        others[n][1] = UNFINISHED ? vec4(0.0) : tail_four(at + 4u);
    }
    [[unroll]] for (uint n = 0u; n < ITEMS; ++n) {
        uint item = gl_SubgroupInvocationID + n * 32u, in_part = item % LINE * 8u;
        uint from = strip + item / LINE * STRIP_PITCH + item % LINE * 2u;
        uint to = s_to[tile_row + item / LINE];
        vec4 low = uintBitsToFloat(s_tile[from]), high = uintBitsToFloat(s_tile[from + 1u]);
        if (to != NOWHERE && column + in_part < out_channels) {
            to += phase_to + column + in_part;
            if (UNFINISHED) {
                y_vectors[to / 4u] = floatBitsToUint(low);
                y_vectors[to / 4u + 1u] = floatBitsToUint(high);
            } else {
                [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                    uint c = tile_column + in_part + e;
                    low[e] = finish_beside(HAS_BIAS ? low[e] + s_bias[c] : low[e], others[n][0][e]);
                    high[e] = finish_beside(HAS_BIAS ? high[e] + s_bias[c + 4u] : high[e], others[n][1][e]);
                }
                y_vectors[to / 8u] = uvec4(packHalf2x16(low.xy), packHalf2x16(low.zw), packHalf2x16(high.xy),
                                           packHalf2x16(high.zw));
            }
        }
    }
}

void main() {
    uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint column_tile = index % COLUMN_TILES * TILE_COLUMNS, row_tile = index / COLUMN_TILES % ROW_TILES * TILE_ROWS;
    index /= COLUMN_TILES * ROW_TILES;
    uint split = index % SPLITS, group = index / SPLITS;
    if (group >= groups) return;
    uint begin = min(split * own_chunks, chunks), end = min(begin + own_chunks, chunks);
    uint i = gl_LocalInvocationIndex, lane = gl_SubgroupInvocationID;
    uint part_row = gl_SubgroupID / SIDEWAYS * PART_ROWS, part_column = gl_SubgroupID % SIDEWAYS * PART_COLUMNS;
    uint first_column = column_tile + part_column;
    const uint ALL_COLUMNS = PHASES_Y * PHASES_X * PHASE_COLUMNS;
    uint phase = min(first_column / PHASE_COLUMNS, PHASES_Y * PHASES_X - 1u);
    uint phase_y = phase / PHASES_X, phase_x = phase % PHASES_X;

    // The filter lies in strips of 64 columns and steps of 16 of K: for all taps those of 32 channels, then the next 32.
    // A vector holds what an invocation has of a fragment.
    const uint STEP_VECTORS = 128u;
    uint w_from[COLUMNS], w_at = 0u, w_last = (max(end - begin, 1u) * TAPS * 2u - 1u) * STEP_VECTORS;
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
        uint fragment = min(first_column + c * FRAGMENT, ALL_COLUMNS - FRAGMENT) / FRAGMENT;
        w_from[c] = w_offset / 8u + ((group * (ALL_COLUMNS / 64u) + fragment / 4u) * chunks + begin) * TAPS * 2u
                    * STEP_VECTORS + fragment % 4u * 32u + lane;
    }
#define ASK_FILTER(which, ahead) { \
        uint at = min(w_at + (ahead) * STEP_VECTORS, w_last); \
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) which[c] = w_vectors[w_from[c] + at]; \
    }
    uvec4 w0[COLUMNS], w1[COLUMNS], w2[COLUMNS], w3[COLUMNS];
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
    uvec4 next0, next1, next2, next3;
    bool inside0, inside1, inside2, inside3;
    for (uint slot = 0u; slot * APART < PIXELS; slot += 4u) {
        ASK_PIXEL(next0, inside0, begin, slot)
        ASK_PIXEL(next1, inside1, begin, slot + 1u)
        ASK_PIXEL(next2, inside2, begin, slot + 2u)
        ASK_PIXEL(next3, inside3, begin, slot + 3u)
        if (slot == 0u) {
            ASK_FILTER(w0, 0u)
            ASK_FILTER(w1, 1u)
            if (AHEAD > 2u) ASK_FILTER(w2, 2u)
            if (AHEAD > 3u) ASK_FILTER(w3, 3u)
            find_rows(row_tile, group, split);
            for (uint c = i; c < TILE_COLUMNS; c += INVOCATIONS) {
                uint channel = group * out_channels + min((column_tile + c) % PHASE_COLUMNS, out_channels - 1u);
                s_bias[c] = HAS_BIAS ? float(bias[bias_offset + channel * bias_stride]) : 0.0;
            }
        }
        STORE_PIXEL(next0, inside0, 0u, slot)
        STORE_PIXEL(next1, inside1, 0u, slot + 1u)
        STORE_PIXEL(next2, inside2, 0u, slot + 2u)
        STORE_PIXEL(next3, inside3, 0u, slot + 3u)
    }
#define ASK_PIXELS(chunk, slot) { \
        ASK_PIXEL(next0, inside0, chunk, (slot) * LOADS) \
        if (LOADS > 1u) ASK_PIXEL(next1, inside1, chunk, (slot) * LOADS + 1u) \
        if (LOADS > 2u) ASK_PIXEL(next2, inside2, chunk, (slot) * LOADS + 2u) \
        if (LOADS > 3u) ASK_PIXEL(next3, inside3, chunk, (slot) * LOADS + 3u) \
    }
#define STORE_PIXELS(buffer_, slot) { \
        STORE_PIXEL(next0, inside0, buffer_, (slot) * LOADS) \
        if (LOADS > 1u) STORE_PIXEL(next1, inside1, buffer_, (slot) * LOADS + 1u) \
        if (LOADS > 2u) STORE_PIXEL(next2, inside2, buffer_, (slot) * LOADS + 2u) \
        if (LOADS > 3u) STORE_PIXEL(next3, inside3, buffer_, (slot) * LOADS + 3u) \
    }
    ASK_PIXELS(min(begin + 1u, chunks - 1u), 0u)
    Product products[ROWS][COLUMNS];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r)
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) products[r][c] = Product(0);
    barrier();
    // The pixels of this invocation's rows.
    uint low_row[ROWS], high_row[ROWS];
    uint phase_at = (bitfieldExtract(phases_at[0], int(8u * phase_y), 8) * WIDTH
                     + bitfieldExtract(phases_at[1], int(8u * phase_x), 8)) * PIXEL_VECTORS + lane % 4u;
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        low_row[r] = s_pixel[part_row + r * FRAGMENT + lane / 4u] + phase_at;
        high_row[r] = s_pixel[part_row + r * FRAGMENT + lane / 4u + 8u] + phase_at;
    }
#define HALVES(to, at, word) { \
        f16vec2 pair = unpackFloat2x16(word); \
        to[at] = pair.x; \
        to[at + 1] = pair.y; \
    }
#define MULTIPLY(which, first_word, second_word) { \
        ColumnFragment w[COLUMNS]; \
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) \
            [[unroll]] for (int n = 0; n < 4; ++n) HALVES(w[c], 2 * n, which[c][n]) \
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) { \
            RowFragment x; \
            HALVES(x, 0, low[r].first_word) \
            HALVES(x, 2, low[r].second_word) \
            HALVES(x, 4, high[r].first_word) \
            HALVES(x, 6, high[r].second_word) \
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) products[r][c] = coopMatMulAdd(x, w[c], products[r][c]); \
        } \
        ASK_FILTER(which, AHEAD) \
        w_at += STEP_VECTORS; \
    }
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
        ASK_PIXELS(min(chunk + 1u, chunks - 1u), tap) \
        uvec4 low[ROWS], high[ROWS]; \
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) { \
            low[r] = s_tile[low_row[r] + place]; \
            high[r] = s_tile[high_row[r] + place]; \
        } \
        MULTIPLY(first_step, x, y) \
        MULTIPLY(second_step, z, w) \
        if (tap == 0u) barrier(); \
    }
    const uint ROW_STEP = (TAP_STEP_Y * WIDTH - (TAPS_X - 1u) * TAP_STEP_X) * PIXEL_VECTORS;
    uint tap = 0u, tap_x = 0u, tap_at = 0u, chunk = begin, buffer_ = 0u;
    [[dont_unroll]] while (chunk < end) {
        PASS(w0, w1)
        if (AHEAD > 2u) {
            if (chunk >= end) break;
            PASS(w2, w3)
        }
    }
    barrier();
    uint strip = gl_SubgroupID * STRIP;
    uint column = first_column < ALL_COLUMNS ? first_column % PHASE_COLUMNS : out_channels;
    uint phase_to = phase_y * y_strides[1] + phase_x * y_strides[2];
    // Strips are not a loop: if a compiler does not unroll it, all products go to memory.
#define STORE_STRIP(number) \
    if (number < ROWS) { \
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) \
            coopMatStore(products[min(number, ROWS - 1u)][c], s_tile, strip + c * FRAGMENT / 4u, STRIP_PITCH, \
                         gl_CooperativeMatrixLayoutRowMajor); \
        subgroupMemoryBarrierShared(); \
        subgroupBarrier(); \
        store_rows(strip, part_row + number * FRAGMENT, part_column, phase_to, column); \
        subgroupMemoryBarrierShared(); \
        subgroupBarrier(); \
    }
    STORE_STRIP(0u)
    STORE_STRIP(1u)
    STORE_STRIP(2u)
    STORE_STRIP(3u)
}
