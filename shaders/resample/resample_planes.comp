//@ op DML_OPERATOR_UPSAMPLE_2D DML_OPERATOR_RESAMPLE DML_OPERATOR_RESAMPLE1 DML_OPERATOR_RESAMPLE2 DML_OPERATOR_RESAMPLE3
//@ variants LAYOUT: first last
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Linear resampling of two axes, if all blocks of ROWS x COLUMNS outputs have the same weights and taps.
// An invocation computes a block of one channel, or of a vector of contiguous channels.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint ROWS = 4u;     // up to 4
layout(constant_id = 3) const uint COLUMNS = 4u;  // up to 8
layout(constant_id = 4) const uint SPAN_Y = 4u;   // elements of input that a block takes
layout(constant_id = 5) const uint SPAN_X = 4u;
layout(constant_id = 6) const uint FIRST_Y = 0u;  // the first tap of each row, 4 bits each
layout(constant_id = 7) const uint FIRST_X = 0u;
// The weights of second taps, as bits: constants spare instructions.
layout(constant_id = 8) const uint WEIGHT_Y0 = 0u;
layout(constant_id = 9) const uint WEIGHT_Y1 = 0u;
layout(constant_id = 10) const uint WEIGHT_Y2 = 0u;
layout(constant_id = 11) const uint WEIGHT_Y3 = 0u;
layout(constant_id = 12) const uint WEIGHT_X0 = 0u;
layout(constant_id = 13) const uint WEIGHT_X1 = 0u;
layout(constant_id = 14) const uint WEIGHT_X2 = 0u;
layout(constant_id = 15) const uint WEIGHT_X3 = 0u;
layout(constant_id = 16) const uint WEIGHT_X4 = 0u;
layout(constant_id = 17) const uint WEIGHT_X5 = 0u;
layout(constant_id = 18) const uint WEIGHT_X6 = 0u;
layout(constant_id = 19) const uint WEIGHT_X7 = 0u;
// Channels first: the elements from the LEAD-th on that a block takes are a chunk of so many words, unless 0.
layout(constant_id = 20) const uint WORDS = 0u;  // 1, 2 or 4
layout(constant_id = 21) const uint LEAD = 0u;
layout(push_constant) uniform Push {
    uint batches;
    uint channels;       // or vectors of channels
    int x_sizes[2];      // height, width
    uint y_sizes[2];
    uint x_strides[4];   // batch, channel, height, width
    uint y_strides[4];
    int begin[2];        // first tap of the first block
    int step[2];         // elements of the input from block to block
    uint x_offset;
    uint y_offset;
};
#include "include/grid.glsl"
#include "include/typed.glsl"
#include "include/planes.glsl"
INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, TYPE)
const uint MOST_SPAN = 16u;

// Avoids 0 times infinity.
#define BLEND(a, b, second) ((second) == 0.0 ? (a) : (a) * (1.0 - (second)) + (b) * (second))

#if defined(LAYOUT_first)
#define VALUE float
layout(binding = 0) readonly buffer XPairs { uvec2 x_pairs[]; };
const uint PER_WORD = 4u / BYTES_OF(TYPE), CHUNK = WORDS * PER_WORD;
VALUE load(uint at) { return x_float(at); }
#else
struct Eight {
    vec4 low;
    vec4 high;
};
#define VALUE Eight
VALUE load(uint at) {
    uvec4 v = x_vectors[at / VECTOR];
    if (!HALVES) return Eight(uintBitsToFloat(v), vec4(0.0));
    return Eight(vec4(halves_to_floats(v.x), halves_to_floats(v.y)),
                 vec4(halves_to_floats(v.z), halves_to_floats(v.w)));
}
#endif

VALUE blend(VALUE a, VALUE b, float second) {
#if defined(LAYOUT_first)
    return BLEND(a, b, second);
#else
    return Eight(BLEND(a.low, b.low, second), BLEND(a.high, b.high, second));
#endif
}

void main() {
    float weights_y[4] = float[4](uintBitsToFloat(WEIGHT_Y0), uintBitsToFloat(WEIGHT_Y1), uintBitsToFloat(WEIGHT_Y2),
                                  uintBitsToFloat(WEIGHT_Y3));
    float weights_x[8] = float[8](uintBitsToFloat(WEIGHT_X0), uintBitsToFloat(WEIGHT_X1), uintBitsToFloat(WEIGHT_X2),
                                  uintBitsToFloat(WEIGHT_X3), uintBitsToFloat(WEIGHT_X4), uintBitsToFloat(WEIGHT_X5),
                                  uintBitsToFloat(WEIGHT_X6), uintBitsToFloat(WEIGHT_X7));
    Block block = block_at(invocation_index(), y_sizes[0], y_sizes[1]);
    if (block.batch >= batches) return;

    uint from = x_offset + block.batch * x_strides[0] + block.channel * x_strides[1];
    int top = begin[0] + int(block.y) * step[0], left = begin[1] + int(block.x) * step[1];
    uint columns[MOST_SPAN];
    [[unroll]] for (uint i = 0u; i < SPAN_X; ++i)
        columns[i] = uint(clamp(left + int(i), 0, x_sizes[1] - 1)) * x_strides[3];
    VALUE above[8], here[8], made[4][8];
    [[unroll]] for (uint r = 0u; r < SPAN_Y; ++r) {
        uint row = from + uint(clamp(top + int(r), 0, x_sizes[0] - 1)) * x_strides[2];
        VALUE line[MOST_SPAN];
#if defined(LAYOUT_first)
        uint word = (row + block.x * CHUNK) / PER_WORD;
        uvec4 chunk;
        if (WORDS == 4u) chunk = x_vectors[word / 4u];
        if (WORDS == 2u) chunk.xy = x_pairs[word / 2u];
        if (WORDS == 1u) chunk.x = x_words[word];
        [[unroll]] for (uint i = 0u; i < CHUNK; ++i) {
            uint bits = chunk[i / PER_WORD & 3u];
            line[LEAD + i] = PER_WORD == 2u ? halves_to_floats(bits)[i % 2u] : uintBitsToFloat(bits);
        }
        [[unroll]] for (uint i = 0u; i < SPAN_X; ++i)
            if (i < LEAD || i >= LEAD + CHUNK) line[i] = load(row + columns[i]);
#else
        [[unroll]] for (uint i = 0u; i < SPAN_X; ++i) line[i] = load(row + columns[i]);
#endif
        [[unroll]] for (uint e = 0u; e < COLUMNS; ++e) {
            uint first = FIRST_X >> 4u * e & 15u;
            here[e] = blend(line[first], line[first + 1u], weights_x[e]);
        }
        [[unroll]] for (uint q = 0u; q < ROWS; ++q)
            if (r == (FIRST_Y >> 4u * q & 15u) + 1u)
                [[unroll]] for (uint e = 0u; e < COLUMNS; ++e)
                    made[q][e] = blend(above[e], here[e], weights_y[q]);
        [[unroll]] for (uint e = 0u; e < COLUMNS; ++e) above[e] = here[e];
    }

    uint to = y_offset + block.batch * y_strides[0] + block.channel * y_strides[1];
    [[unroll]] for (uint q = 0u; q < ROWS; ++q) {
        uint y = block.y * ROWS + q, x = block.x * COLUMNS;
        if (y >= y_sizes[0]) continue;
        uint at = to + y * y_strides[2] + x * y_strides[3];
#if defined(LAYOUT_first)
        // Whole vectors, because the width consists of whole blocks.
        if (BYTES_OF(TYPE) == 4u)
            y_vectors[at / 4u] = floatBitsToUint(
                vec4(made[q][0], made[q][1], made[q][2], made[q][3]));
        else
            y_vectors[at / 8u] = uvec4(
                floats_to_halves(made[q][0], made[q][1]), floats_to_halves(made[q][2], made[q][3]),
                floats_to_halves(made[q][4], made[q][5]), floats_to_halves(made[q][6], made[q][7]));
#else
        [[unroll]] for (uint e = 0u; e < COLUMNS; ++e) {
            if (x + e >= y_sizes[1]) continue;
            vec4 low = made[q][e].low, high = made[q][e].high;
            y_vectors[(at + e * y_strides[3]) / VECTOR] =
                HALVES ? uvec4(floats_to_halves(low), floats_to_halves(high)) : floatBitsToUint(low);
        }
#endif
    }
}
