//@ op DML_OPERATOR_CONVOLUTION_INTEGER
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A dynamically quantized convolution of images of one position: the range of the small input, its
// quantization, the product of bytes, scales, bias and activation, in one dispatch. Every workgroup finds
// the range and quantizes ROWS images. It computes 16 channels of these, 16 invocations each.
layout(constant_id = 1) const uint ROWS = 1u;
layout(constant_id = 2) const uint WORDS = 1u;  // of four channels of an image
layout(constant_id = 3) const bool HAS_BIAS = false;
layout(constant_id = 4) const uint QUANTIZED_TYPE = 1u;
layout(constant_id = 5) const bool FILTER_SIGNED = true;
layout(push_constant) uniform Push {
    uint images;
    uint out_channels;
    uint w_stride;  // from channel to channel of the output
    uint w_scale_stride;
    uint bias_stride;
    uint y_strides[2];
    uint activation_at;
    uint x_offset;
    uint w_offset;
    uint y_offset;
    uint bias_offset;
    uint w_scale_offset;
    uint params_offset;
};
#define PARAMS_BINDING 5
#include "include/grid.glsl"
#include "include/params.glsl"
#include "include/typed.glsl"
#include "include/activation.glsl"
#include "include/quantization.glsl"
#include "include/scaled.glsl"
#include "include/range_numbers.glsl"
layout(binding = 0) readonly buffer Input { uvec4 x_vectors[]; };
layout(binding = 1) readonly buffer Filter { uint w_words[]; };
layout(binding = 2) writeonly buffer Output { float y_numbers[]; };
layout(binding = 3) readonly buffer Bias { float bias[]; };
layout(binding = 4) readonly buffer FilterScale { float w_scale[]; };

const uint LANES = 16u, COLUMNS = 16u, INVOCATIONS = LANES * COLUMNS;
shared uint s_words[ROWS * WORDS];
shared int s_sums[ROWS * INVOCATIONS];
shared uvec2 s_range[INVOCATIONS];

ivec4 four(uint word, bool is_signed) {
    int bits = int(word);
    if (is_signed)
        return ivec4(bitfieldExtract(bits, 0, 8), bitfieldExtract(bits, 8, 8),
                     bitfieldExtract(bits, 16, 8), bitfieldExtract(bits, 24, 8));
    return ivec4(word & 0xFFu, bitfieldExtract(word, 8, 8), bitfieldExtract(word, 16, 8), word >> 24);
}

void main() {
    uint i = gl_LocalInvocationIndex, tiles = (out_channels - 1u) / COLUMNS + 1u;
    uint first_row = group_index() / tiles * ROWS, column = group_index() % tiles * COLUMNS + i / LANES;
    if (first_row >= images) return;
    uint lowest = 0x80000000u;
    int highest = 0;
    for (uint v = i; v < images * WORDS; v += INVOCATIONS) {
        uvec4 x = x_vectors[x_offset / 4u + v];
        [[unroll]] for (uint e = 0u; e < 4u; ++e) {
            uint bits = is_nan(uintBitsToFloat(x[e])) ? 0u : x[e];
            lowest = max(lowest, bits);
            highest = max(highest, int(bits));
        }
    }
    s_range[i] = uvec2(-rank_of(lowest), rank_of(uint(highest)));
    [[unroll]] for (uint step = INVOCATIONS / 2u; step > 0u; step /= 2u) {
        barrier();
        if (i < step) s_range[i] = max(s_range[i], s_range[i + step]);
    }
    barrier();
    float scale;
    int zero;
    quantization_of(-int(s_range[0].x), int(s_range[0].y), QUANTIZED_TYPE, scale, zero);
    for (uint n = i; n < ROWS * WORDS; n += INVOCATIONS) {
        uvec4 x = x_vectors[x_offset / 4u + min(first_row + n / WORDS, images - 1u) * WORDS + n % WORDS];
        uint word = 0u;
        [[unroll]] for (uint e = 0u; e < 4u; ++e) {
            int whole = whole_number(divide(uintBitsToFloat(x[e]), scale));
            word |= (quantized(whole, zero, QUANTIZED_TYPE) & 0xFFu) << (8u * e);
        }
        s_words[n] = word;
    }
    barrier();
    int sums[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) sums[r] = 0;
    uint from = (w_offset + min(column, out_channels - 1u) * w_stride) / 4u;
    for (uint n = i % LANES; n < WORDS; n += LANES) {
        ivec4 w = four(w_words[from + n], FILTER_SIGNED);
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            ivec4 products = (four(s_words[r * WORDS + n], IS_SIGNED(QUANTIZED_TYPE)) - zero) * w;
            sums[r] += products.x + products.y + products.z + products.w;
        }
    }
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) s_sums[r * INVOCATIONS + i] = sums[r];
    barrier();
    uint own = group_index() % tiles * COLUMNS + i % COLUMNS;
    for (uint r = i / COLUMNS; r < ROWS; r += INVOCATIONS / COLUMNS) {
        if (first_row + r >= images || own >= out_channels) continue;
        int sum = 0;
        [[unroll]] for (uint n = 0u; n < LANES; ++n)
            sum += s_sums[r * INVOCATIONS + i % COLUMNS * LANES + n];
        precise float both = scale * w_scale[w_scale_offset + own * w_scale_stride];
        float added = HAS_BIAS ? bias[bias_offset + own * bias_stride] : 0.0;
        y_numbers[y_offset + (first_row + r) * y_strides[0] + own * y_strides[1]] =
            activate(scaled(sum, both, HAS_BIAS, added));
    }
}
