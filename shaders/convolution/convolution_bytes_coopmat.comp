//@ op DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION
//@ variants TILE:
//@     t128x64(rows=128, columns=64, down=2, across=2)
//@     t96x128(rows=96, columns=128, down=2, across=2)
//@     t64x128(rows=64, columns=128, down=1, across=4)
//@     t96x64(rows=96, columns=64, down=2, across=2)
//@ unchecked *
//@ glslang >= 14
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
// Convolutions of signed bytes on matrix units, with INT32 sums, channels last. Shared memory holds what
// a tile reads of one tap and 64 channels, and nothing else, so that two or three workgroups run on a
// core. Filters are left operands and pixels right ones, and the lines of the filter are ordered so that
// the sums of an invocation are neighbouring channels. They go from registers to the output. Sizes are
// constants, so that divisions are multiplications.
//
// Nothing outside of the buffers is read or written: loads of what does not exist read index 0, columns
// are clamped, the request after the last one repeats a tap that exists, and stores have conditions.
layout(constant_id = 1) const bool HAS_BIAS = false;
layout(constant_id = 2) const uint OUTPUT_TYPE = 17u;
layout(constant_id = 3) const bool HAS_OUTPUT_ZERO = false;
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
layout(constant_id = 14) const bool LINEAR = false;  // rows of the output lie at equal distances
layout(constant_id = 15) const bool WHOLE = false;  // channels are a multiple of 64
layout(constant_id = 16) const bool EVEN = false;  // all tiles are whole
layout(push_constant) uniform Push {
    uint chunks;  // of 64 channels
    uint groups;
    uint batches;
    uint in_channels;  // in a group, a multiple of 16
    uint out_channels;  // a multiple of 8
    int first[2];  // the first tap of the first position: y, x
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
layout(binding = 2) writeonly buffer OutputPairs { uvec2 y_pairs[]; };
layout(binding = 2) writeonly buffer OutputWords { uint y_words[]; };
layout(binding = 3) readonly buffer Bias { int bias[]; };
layout(binding = 4) readonly buffer InputScale { float x_scale[]; };
layout(binding = 5) readonly buffer FilterScale { float w_scale[]; };
layout(binding = 6) readonly buffer OutputScale { float y_scale[]; };
layout(binding = 7) readonly buffer OutputZero { uint y_zero_words[]; };
#include "include/units.glsl"
#include "include/requantized.glsl"

// Subgroups, and fragments of each.
const uint DOWNWARD = TILE_down, SIDEWAYS = TILE_across;
const uint ROWS = TILE_rows / 16 / TILE_down, COLUMNS = TILE_columns / 16 / TILE_across;
const uint INVOCATIONS = 32u * DOWNWARD * SIDEWAYS;
layout(local_size_x = INVOCATIONS) in;
const uint FRAGMENT = 16u;
const uint PART_ROWS = ROWS * FRAGMENT, PART_COLUMNS = COLUMNS * FRAGMENT;
const uint TILE_ROWS = PART_ROWS * DOWNWARD, TILE_COLUMNS = PART_COLUMNS * SIDEWAYS;
const uint NOWHERE = 0xFFFFFFFFu;
const uint VECTORS = 4u, PITCH = VECTORS + 1u;  // A vector of padding avoids bank conflicts.
const uint APART = INVOCATIONS / VECTORS;  // lines between an invocation's vectors
const uint ROW_LOADS = TILE_ROWS / APART, COLUMN_LOADS = TILE_COLUMNS / APART;
const uint TAPS = TAPS_Y * TAPS_X;  // at most 32
shared uvec4 s_slice[(TILE_ROWS + TILE_COLUMNS) * PITCH];

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
    uint part_row = subgroup / SIDEWAYS * PART_ROWS, part_column = subgroup % SIDEWAYS * PART_COLUMNS;
    // Eight invocations store together: two lines with different banks.
    uint own_vector = i % VECTORS, own_line = i / 4u % 2u * 4u + i / 8u % 4u + i / 32u * 8u;
    const uint ROWS_IN_ALL = POSITIONS_Y * POSITIONS_X;

    // Lines of the filter in shared memory: of each fragment row l / 4 of the left halves, then of the
    // right ones.
    uint w_from[COLUMN_LOADS], x_from[ROW_LOADS], taps_inside[ROW_LOADS];
    [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l) {
        uint line = own_line + l * APART, in_part = line % PART_COLUMNS;
        uint column = column_tile + line / PART_COLUMNS * PART_COLUMNS
                      + in_part % 8u * (2u * COLUMNS) + in_part / 16u * 2u + in_part / 8u % 2u;
        w_from[l] = w_offset / 16u + group * w_strides[0]
                    + (EVEN ? column : min(column, out_channels - 1u)) * w_strides[1] + own_vector;
    }
    [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l) {
        uint row = row_tile + own_line + l * APART, batch = row / ROWS_IN_ALL;
        int y = int(row / POSITIONS_X % POSITIONS_Y * STEP_Y) + first[0];
        int x = int(row % POSITIONS_X * STEP_X) + first[1];
        x_from[l] = x_offset / 16u + group * (in_channels / 16u) + batch * x_strides[0]
                    + uint(y) * x_strides[1] + uint(x) * x_strides[2] + own_vector;
        uint across = 0u, inside = 0u;
        [[unroll]] for (uint t = 0u; t < TAPS_X; ++t)
            if (uint(x + int(t * TAP_STEP_X)) < in_sizes[1]) across |= 1u << t;
        [[unroll]] for (uint t = 0u; t < TAPS_Y; ++t)
            if (uint(y + int(t * TAP_STEP_Y)) < in_sizes[0]) inside |= across << (t * TAPS_X);
        taps_inside[l] = EVEN || batch < batches ? inside : 0u;
    }

    uint tap = 0u, tap_x = 0u, chunk = 0u, x_first = 0u, x_at = 0u, w_at = 0u;
    uint x_column = TAP_STEP_X * x_strides[2], x_row = TAP_STEP_Y * x_strides[1];
    uvec4 x_next[ROW_LOADS], w_next[COLUMN_LOADS];
    bool kept[ROW_LOADS];
#define ASK \
    { \
        bool all = WHOLE || (chunk * VECTORS + own_vector) * 16u < in_channels; \
        [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l) \
            w_next[l] = w_vectors[all ? w_from[l] + w_at : 0u]; \
        [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l) { \
            kept[l] = all && (taps_inside[l] >> tap & 1u) != 0u; \
            x_next[l] = x_vectors[kept[l] ? x_from[l] + x_at : 0u]; \
        } \
    }
    ASK

    const uint EACH = 2u * COLUMNS;  // neighbouring channels
    uint own = column_tile + part_column + lane / 4u * EACH;
    bool own_exists = EVEN || own < out_channels;
    Product products[ROWS][COLUMNS];
    int added[EACH];
    vec4 scales[2];
    float of_x = x_scale[x_scale_offset], of_y = y_scale[y_scale_offset];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        uint channel = group * out_channels + (EVEN ? own + e : min(own + e, out_channels - 1u));
        added[e] = HAS_BIAS ? bias[bias_offset + channel * bias_stride] : 0;
        precise float scale = of_x * w_scale[w_scale_offset + channel * w_scale_stride];
        scale = scale / of_y;
        scales[e / 4u][e % 4u] = scale;
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

    [[dont_unroll]] while (chunk < chunks) {
        barrier();
        [[unroll]] for (uint l = 0u; l < ROW_LOADS; ++l)
            s_slice[(own_line + l * APART) * PITCH + own_vector] = kept[l] ? x_next[l] : uvec4(0u);
        [[unroll]] for (uint l = 0u; l < COLUMN_LOADS; ++l)
            s_slice[(TILE_ROWS + own_line + l * APART) * PITCH + own_vector] = w_next[l];
        barrier();
        bool wraps = tap + 1u == TAPS, turns = tap_x + 1u == TAPS_X;
        if (wraps) {
            ++chunk;
            x_first = min(chunk, chunks - 1u) * VECTORS;  // the last chunk is asked for again
        }
        x_at = wraps ? x_first : turns ? x_at + x_row - (TAPS_X - 1u) * x_column : x_at + x_column;
        w_at = wraps ? x_first : w_at + w_strides[2];
        tap = wraps ? 0u : tap + 1u;
        tap_x = turns ? 0u : tap_x + 1u;
        ASK
        [[unroll]] for (uint d = 0u; d < 2u; ++d) {
            uint lines = (TILE_ROWS + part_column) * PITCH + d * 2u, tile = part_row * PITCH + d * 2u;
            ColumnFragment w[COLUMNS];
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                coopMatLoad(w[c], s_slice, lines + c * FRAGMENT * PITCH, PITCH,
                            gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                RowFragment x;
                coopMatLoad(x, s_slice, tile + r * FRAGMENT * PITCH, PITCH,
                            gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                    products[r][c] = coopMatMulAdd(w[c], x, products[r][c]);
            }
        }
    }

    uint all_rows = batches * ROWS_IN_ALL, y_from = y_offset + group * out_channels;
    if (!LINEAR) {  // where rows lie
        barrier();
        [[unroll]] for (uint r = i; r < TILE_ROWS; r += INVOCATIONS) {
            uint row = row_tile + r;
            uint at = y_from + row / ROWS_IN_ALL * y_strides[0]
                      + row / POSITIONS_X % POSITIONS_Y * y_strides[1] + row % POSITIONS_X * y_strides[2];
            s_slice[r / 4u][r % 4u] = row < all_rows ? at : NOWHERE;
        }
        barrier();
    }
    uint own_row = part_row + lane % 4u * 2u;
    uint linear_from = y_from + (row_tile + own_row) * y_strides[2] + own;
    // Nothing here is a loop: if a compiler does not unroll it, all products go to memory.
#define FOUR(r, c, n) \
    ivec4(products[r][c][n], products[r][c][(n) + 4], products[r][(c) + 1u][n], \
          products[r][(c) + 1u][(n) + 4])
#define STORE_VECTOR(r, n) \
    { \
        uint beyond = (r) * FRAGMENT + (n) % 2u + (n) / 2u * 8u, row = own_row + beyond; \
        uint at = LINEAR ? 0u : s_slice[row / 4u][row % 4u]; \
        bool there = EVEN || own_exists && (LINEAR ? row_tile + row < all_rows : at != NOWHERE); \
        uint to = LINEAR ? linear_from + beyond * y_strides[2] : at + own; \
        uint low = requantized(FOUR(r, 0u, n), scales[0]); \
        if (COLUMNS > 2u) { \
            uint high = requantized(FOUR(r, COLUMNS - 2u, n), scales[1]); \
            if (there) y_pairs[to / 8u] = uvec2(low, high); \
        } else if (there) \
            y_words[to / 4u] = low; \
    }
#define STORE_ROWS(r) \
    if (r < ROWS) { \
        STORE_VECTOR(min(r, ROWS - 1u), 0) \
        STORE_VECTOR(min(r, ROWS - 1u), 1) \
        STORE_VECTOR(min(r, ROWS - 1u), 2) \
        STORE_VECTOR(min(r, ROWS - 1u), 3) \
    }
    STORE_ROWS(0u)
    STORE_ROWS(1u)
    STORE_ROWS(2u)
    STORE_ROWS(3u)
}
