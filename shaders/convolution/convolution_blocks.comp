//@ op DML_OPERATOR_CONVOLUTION
//@ variants TILE:
//@     t8(rows=8, columns=8)
//@     t16(rows=16, columns=16)
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// convolution_lines.comp for drivers on which barriers and shared memory are slow: each invocation reads
// all that its block of the output takes.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint OUTPUT_TYPE = 36u;
layout(constant_id = 3) const bool HAS_BIAS = false;
layout(constant_id = 5) const bool PADDED = true;  // whether taps may lie outside of the input
layout(constant_id = 6) const uint FOURS = 0u;     // stored together: 1 rows, 2 columns
const bool CHANNELS_INNER = true;
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint row_tiles;
    uint column_tiles;
    uint groups;
    uint batches;
    uint in_channels;  // of a group
    uint out_channels;
    uint x_strides[2];  // batch, channel
    uint w_strides[3];  // group, output channel, input channel
    uint y_strides[3];  // -, batch, channel
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
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/convolution.glsl"
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

const uint ROWS = TILE_rows, COLUMNS = TILE_columns;

vec4 halves(uvec2 pair) {
    return vec4(half_to_float(pair.x & 0xFFFFu), half_to_float(pair.x >> 16),
                half_to_float(pair.y & 0xFFFFu), half_to_float(pair.y >> 16));
}

#define FOUR(side, at) \
    (BYTES_OF(TYPE) == 4u ? uintBitsToFloat(side##_vectors[(at) / 4u]) \
                          : halves(side##_pairs[(at) / 4u]))

void main() {
    uint index = invocation_index();
    uint first_column = index % column_tiles * COLUMNS;
    index /= column_tiles;
    uint first_row = index % row_tiles * ROWS;
    index /= row_tiles;
    uint group = index % groups;
    Taps taps = taps_of(index / groups);
    if (index / groups >= taps.phases) return;

    uint rows = batches * axis_word(0u, 9u) * axis_word(1u, 9u) * axis_word(2u, 9u);
    ivec4 at[ROWS];  // offset, z, y, x
    uint to[ROWS], w_from[COLUMNS];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        at[r] = input_row(taps, min(first_row + r, rows - 1u), group, to[r]);
        if (first_row + r >= rows) to[r] = NOWHERE;
    }
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
        w_from[c] = w_offset + group * w_strides[0] +
                    min(first_column + c, out_channels - 1u) * w_strides[1];
    uvec3 sizes, steps, x_steps, w_steps;
    [[unroll]] for (uint a = 0u; a < 3u; ++a) {
        sizes[a] = axis_word(a, 0u);
        steps[a] = axis_word(a, 2u);
        x_steps[a] = steps[a] * axis_word(a, 6u);
        w_steps[a] = axis_word(a, 3u);
    }
    float sums[ROWS][COLUMNS];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r)
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) sums[r][c] = 0.0;

    uint passes = taps.count.x * taps.count.y * taps.count.z * (in_channels / 4u), channel = 0u;
    uvec3 tap = uvec3(0u);
    for (uint pass = 0u; pass < passes; ++pass) {
        uvec3 x_added = tap * x_steps, w_added = taps.filter_first + tap * w_steps;
        vec4 a[ROWS], b[COLUMNS];
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            bool inside = !PADDED || all(lessThan(uvec3(at[r].yzw) + tap * steps, sizes));
            uint from = uint(at[r].x) + x_added.x + x_added.y + x_added.z + channel;
            a[r] = FOUR(x, inside ? from : x_offset);
            if (PADDED) a[r] = inside ? a[r] : vec4(0.0);
        }
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
            b[c] = FOUR(w, w_from[c] + w_added.x + w_added.y + w_added.z + channel);
        [[unroll]] for (uint r = 0u; r < ROWS; ++r)
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                [[unroll]] for (uint e = 0u; e < 4u; ++e) sums[r][c] += a[r][e] * b[c][e];
        channel += 4u;
        if (channel == in_channels) {
            channel = 0u;
            ++tap.z;
        }
        if (tap.z == taps.count.z) {
            tap.z = 0u;
            ++tap.y;
        }
        if (tap.y == taps.count.y) {
            tap.y = 0u;
            ++tap.x;
        }
    }

    uint columns = min(out_channels - first_column, COLUMNS);
    first_column += group * out_channels;
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
        uint column = first_column + min(c, columns - 1u);
        float added = HAS_BIAS ? bias_float(bias_offset + column * bias_stride) : 0.0;
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            uint place = to[r] == NOWHERE ? 0u : to[r] + column * y_strides[2] - y_offset;
            sums[r][c] = finish(sums[r][c] + added, place);
        }
    }
    // In fours of columns, of rows, or one by one.
    const uint ROW_STEP = FOURS == 1u ? 4u : 1u, COLUMN_STEP = FOURS == 2u ? 4u : 1u;
    [[unroll]] for (uint r = 0u; r < ROWS; r += ROW_STEP) {
        if (to[r] == NOWHERE) continue;
        [[unroll]] for (uint c = 0u; c < COLUMNS; c += COLUMN_STEP) {
            if (c >= columns) continue;
            uint to_column = to[r] + (first_column + c) * y_strides[2];
            if (FOURS == 0u) {
                y_store_float(to_column, sums[r][c]);
                continue;
            }
            vec4 four;
            [[unroll]] for (uint e = 0u; e < 4u; ++e)
                four[e] = FOURS == 1u ? sums[min(r + e, ROWS - 1u)][c]
                                      : sums[r][min(c + e, COLUMNS - 1u)];
            if (BYTES_OF(OUTPUT_TYPE) == 4u)
                y_vectors[to_column / 4u] = floatBitsToUint(four);
            else
                y_pairs[to_column / 4u] = floats_to_halves(four);
        }
    }
}
