//@ op DML_OPERATOR_CONVOLUTION DML_OPERATOR_CONVOLUTION_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION
//@ variants ACC: f32 i32 ; TILE:
//@     t64(blocks=1)
//@     t128(blocks=2)
//@ tail f32
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A convolution as a matrix product that gathers its left side. A row is an output position, a
// column an output channel of the group. K covers filter taps and input channels. A workgroup of 256
// computes a tile, an invocation 4 x 4 or 8 x 8 of it.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint OUTPUT_TYPE = 36u;
layout(constant_id = 3) const bool CHANNELS_INNER = false;  // of K; else taps
layout(constant_id = 4) const bool INPUT_K_CONTIGUOUS = false;   // neighbours load K of one row
layout(constant_id = 5) const bool FILTER_K_CONTIGUOUS = true;   // neighbours load K of one column
layout(constant_id = 6) const bool HAS_BIAS = false;
layout(constant_id = 7) const bool HAS_INPUT_ZERO = false;
layout(constant_id = 8) const bool HAS_FILTER_ZERO = false;
layout(constant_id = 9) const uint FILTER_TYPE = 36u;
layout(constant_id = 10) const bool OUTPUT_ALONG_ROWS = true;  // channels first; else last
#include "include/tailed.glsl"
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
    uint w_strides[3];  // group, output channel, input channel
    uint y_strides[3];  // split, batch, channel
    uint bias_stride;
    uint w_zero_stride;
    uint activation_at;
    uint x_offset;
    uint w_offset;
    uint y_offset;
    uint bias_offset;
    uint x_zero_offset;
    uint w_zero_offset;
    TAIL_FIELD
    uint params_offset;
};
#if defined(ACC_i32)
#define PARAMS_BINDING 5
#define NUMBER int
#define FOUR ivec4
#else
#define PARAMS_BINDING AFTER_TAIL(4)
#define NUMBER float
#define FOUR vec4
#endif
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/convolution.glsl"
INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(w, 1, FILTER_TYPE)
OUTPUT_TENSOR(y, 2, OUTPUT_TYPE)
#if defined(ACC_i32)
INPUT_TENSOR(x_zero, 3, TYPE)
INPUT_TENSOR(w_zero, 4, FILTER_TYPE)
#else
INPUT_TENSOR(bias, 3, TYPE)
#define TAIL_BINDING 4
#define TAIL_TYPE TYPE
#include "include/tail.glsl"
#endif

const uint BLOCKS = TILE_blocks;
const uint SIDE = 64u * BLOCKS;
const uint TILE_K = 16u;
const uint INVOCATIONS = 256u;
const uint LOADS = SIDE * TILE_K / INVOCATIONS;
const uint PITCH = SIDE / 4u + 1u;
shared FOUR s_x[TILE_K * PITCH];
shared FOUR s_w[TILE_K * PITCH];
shared ivec4 s_row[SIDE];    // each row's place in the input: offset, z, y, x
shared ivec4 s_k[TILE_K];  // the distance of each k from there
shared uint s_tap[TILE_K];     // the place of each k in the filter
uvec3 input_sizes;

// The row (or column) and k of an invocation's ``load``-th element.
uvec2 place_of(bool along_k, uint load) {
    uint i = gl_LocalInvocationIndex;
    return along_k ? uvec2(i / TILE_K + load * (INVOCATIONS / TILE_K), i % TILE_K)
                   : uvec2(i % SIDE, i / SIDE + load * (INVOCATIONS / SIDE));
}

NUMBER input_at(ivec4 row, uint k, uint left, NUMBER zero) {
    ivec4 at = row + s_k[k];
    if (k >= left || any(greaterThanEqual(uvec3(at.yzw), input_sizes))) return NUMBER(0);
#if defined(ACC_i32)
    return int(x_bits(uint(at.x)).x) - zero;
#else
    return x_float(uint(at.x));
#endif
}

NUMBER filter_at(uint column, uint first, uint k, uint left, NUMBER zero) {
    if (k >= left || column >= out_channels) return NUMBER(0);
    uint at = first + column * w_strides[1] + s_tap[k];
#if defined(ACC_i32)
    return int(w_bits(at).x) - zero;
#else
    return w_float(at);
#endif
}

void main() {
    uint index = group_index();
    uint column_tile = index % column_tiles * SIDE;
    index /= column_tiles;
    uint row_tile = index % row_tiles * SIDE;
    index /= row_tiles;
    uint split = index % splits;
    index /= splits;
    uint group = index % groups;
    Taps taps = taps_of(index / groups);
    if (index / groups >= taps.phases) return;

    input_sizes = uvec3(axis_word(0u, 0u), axis_word(1u, 0u), axis_word(2u, 0u));
    uint i = gl_LocalInvocationIndex;
    if (i < SIDE) {
        uint to;
        s_row[i] = input_row(taps, row_tile + i, group, to);
    }
    uint k_size = in_channels * taps.count.x * taps.count.y * taps.count.z;
    uint begin = min(split * steps * TILE_K, k_size);
    uint end = min(begin + steps * TILE_K, k_size);
    uint filter_from = w_offset + group * w_strides[0];
    NUMBER x_zero = NUMBER(0);
#if defined(ACC_i32)
    if (HAS_INPUT_ZERO) x_zero = int(x_zero_bits(x_zero_offset).x);
#endif
#define TABLE(k) \
    if (i < TILE_K) { \
        uint tap; \
        s_k[i] = input_k(taps, min((k) + i, max(end, 1u) - 1u), tap); \
        s_tap[i] = tap; \
    }
    NUMBER x_next[LOADS], w_next[LOADS];
    ivec4 rows[LOADS];
    NUMBER w_zeros[LOADS];
    TABLE(begin)
    barrier();
    [[unroll]] for (uint l = 0u; l < LOADS; ++l) {
        rows[l] = s_row[place_of(INPUT_K_CONTIGUOUS, l).x];
        w_zeros[l] = NUMBER(0);
#if defined(ACC_i32)
        uint column = column_tile + place_of(FILTER_K_CONTIGUOUS, l).x;
        if (HAS_FILTER_ZERO && column < out_channels)
            w_zeros[l] = int(w_zero_bits(w_zero_offset +
                                         (group * out_channels + column) * w_zero_stride).x);
#endif
    }
#define LOAD(k) \
    [[unroll]] for (uint l = 0u; l < LOADS; ++l) { \
        uint left = end - (k); \
        x_next[l] = input_at(rows[l], place_of(INPUT_K_CONTIGUOUS, l).y, left, x_zero); \
        uvec2 at = place_of(FILTER_K_CONTIGUOUS, l); \
        w_next[l] = filter_at(column_tile + at.x, filter_from, at.y, left, w_zeros[l]); \
    }

    // Blocks of rows across, of columns down. Neighbours store contiguous elements.
    uint across = OUTPUT_ALONG_ROWS ? i % 16u : i / 16u, down = OUTPUT_ALONG_ROWS ? i / 16u : i % 16u;
    FOUR sums[BLOCKS * 4u][BLOCKS];
    [[unroll]] for (uint c = 0u; c < BLOCKS * 4u; ++c)
        [[unroll]] for (uint r = 0u; r < BLOCKS; ++r) sums[c][r] = FOUR(0);
    if (begin < end) {
        LOAD(begin)
    }
    for (uint k = begin; k < end; k += TILE_K) {
        barrier();
        [[unroll]] for (uint l = 0u; l < LOADS; ++l) {
            uvec2 at = place_of(INPUT_K_CONTIGUOUS, l);
            s_x[at.y * PITCH + at.x / 4u][at.x % 4u] = x_next[l];
            at = place_of(FILTER_K_CONTIGUOUS, l);
            s_w[at.y * PITCH + at.x / 4u][at.x % 4u] = w_next[l];
        }
        TABLE(k + TILE_K)
        barrier();
        if (k + TILE_K < end) {
            LOAD(k + TILE_K)
        }
        [[unroll]] for (uint d = 0u; d < TILE_K; ++d) {
            FOUR a[BLOCKS], b[BLOCKS];
            [[unroll]] for (uint r = 0u; r < BLOCKS; ++r) {
                a[r] = s_x[d * PITCH + r * 16u + across];
                b[r] = s_w[d * PITCH + r * 16u + down];
            }
            [[unroll]] for (uint c = 0u; c < BLOCKS * 4u; ++c)
                [[unroll]] for (uint r = 0u; r < BLOCKS; ++r)
                    sums[c][r] += a[r] * b[c / 4u][c % 4u];
        }
    }

    uint places[BLOCKS * 4u];  // of the rows, in the output
    [[unroll]] for (uint r = 0u; r < BLOCKS * 4u; ++r) {
        uint to;
        input_row(taps, row_tile + r / 4u * 64u + across * 4u + r % 4u, group, to);
        places[r] = to;
    }
#if !defined(ACC_i32)
    // Separate from the stores: compilers do not unroll a loop of both, and sums go to memory.
    [[unroll]] for (uint c = 0u; c < BLOCKS * 4u; ++c) {
        uint column = min(column_tile + c / 4u * 64u + down * 4u + c % 4u, out_channels - 1u);
        column += group * out_channels;
        float added = 0.0;
        if (HAS_BIAS) added = bias_float(bias_offset + column * bias_stride);
        [[unroll]] for (uint r = 0u; r < BLOCKS * 4u; ++r) {
            uint place = places[r] == NOWHERE ? 0u : places[r] + column * y_strides[2] - y_offset;
            float sum = sums[c][r / 4u][r % 4u];
            sums[c][r / 4u][r % 4u] = finish(HAS_BIAS ? sum + added : sum, place);
        }
    }
#endif
    [[unroll]] for (uint r = 0u; r < BLOCKS * 4u; ++r) {
        if (places[r] == NOWHERE) continue;
        uint to = places[r] + split * y_strides[0];
        [[unroll]] for (uint c = 0u; c < BLOCKS * 4u; ++c) {
            uint column = column_tile + c / 4u * 64u + down * 4u + c % 4u;
            if (column >= out_channels) continue;
            column += group * out_channels;
            NUMBER result = sums[c][r / 4u][r % 4u];
#if defined(ACC_i32)
            y_store_bits(to + column * y_strides[2], uvec2(result, 0u));
#else
            y_store_float(to + column * y_strides[2], result);
#endif
        }
    }
}
