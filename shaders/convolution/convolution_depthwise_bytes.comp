//@ op DML_OPERATOR_CONVOLUTION_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION
//@ variants TO: sums floats bytes ; BLOCK: last1x1(rows=1, columns=1) last1x4(rows=1, columns=4) last2x4(rows=2, columns=4)
//@ tail floats
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Depthwise convolutions of bytes, channels last: an invocation computes four channels, a word of the
// input, of LINES rows and COLUMNS columns. Shared memory holds the filters of the workgroup's 4 * LANES
// channels. The INT32 sums are stored, or scaled (to floats), or quantized. Outside of the image lies the
// input's zero point.
layout(constant_id = 1) const uint TYPE = 17u;
layout(constant_id = 2) const uint FILTER_TYPE = 17u;
layout(constant_id = 3) const bool HAS_INPUT_ZERO = false;
layout(constant_id = 4) const bool HAS_FILTER_ZERO = false;
layout(constant_id = 5) const bool HAS_BIAS = false;
layout(constant_id = 6) const bool HAS_INPUT_SCALE = false;
layout(constant_id = 7) const bool HAS_OUTPUT_ZERO = false;
layout(constant_id = 8) const uint OUTPUT_TYPE = 17u;
layout(constant_id = 9) const uint TAPS_Y = 3u;
layout(constant_id = 10) const uint TAPS_X = 3u;
layout(constant_id = 11) const uint STRIDE_Y = 1u;
layout(constant_id = 12) const uint STRIDE_X = 1u;
layout(constant_id = 13) const uint DILATION_Y = 1u;
layout(constant_id = 14) const uint DILATION_X = 1u;
layout(constant_id = 15) const uint LANES = 1u;
layout(constant_id = 16) const int PADDING_Y = 0;  // before the first row
layout(constant_id = 17) const int PADDING_X = 0;
layout(constant_id = 18) const bool RANGED = false;  // the range of the floats is an output, too
layout(constant_id = 19) const uint RANGE_TYPE = 1u;
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint batches;
    uint channels;
    uint x_sizes[2];    // y, x
    uint y_sizes[2];
    uint x_strides[3];  // batch, y, x
    uint y_strides[3];
    uint w_strides[3];  // channel, y, x
    uint w_zero_stride;
    uint w_scale_stride;
    uint bias_stride;
    uint x_offset;
    uint w_offset;
    uint y_offset;
    uint x_zero_offset;
    uint w_zero_offset;
    uint bias_offset;
    uint x_scale_offset;
    uint w_scale_offset;
#if defined(TO_bytes)
    uint y_scale_offset;
    uint y_zero_offset;
#else
    TAIL_FIELD
    uint zeroed_offset;
    uint range_scale_offset;
    uint range_zero_offset;
    uint params_offset;
#endif
};
const uint activation_at = 0u;
#include "include/grid.glsl"
#include "include/typed.glsl"
layout(binding = 0) readonly buffer Input { uint x_words[]; };
INPUT_TENSOR(w, 1, FILTER_TYPE)
layout(binding = 2) writeonly buffer Output { uint y_words[]; };
layout(binding = 2) writeonly buffer OutputVectors { uvec4 y_vectors[]; };
INPUT_TENSOR(x_zero, 3, TYPE)
INPUT_TENSOR(w_zero, 4, FILTER_TYPE)
#if !defined(TO_sums)
layout(binding = 5) readonly buffer Bias { int bias[]; };
layout(binding = 6) readonly buffer InputScale { float x_scale[]; };
layout(binding = 7) readonly buffer FilterScale { float w_scale[]; };
#endif
#if defined(TO_bytes)
layout(binding = 8) readonly buffer OutputScale { float y_scale[]; };
INPUT_TENSOR(y_zero, 9, OUTPUT_TYPE)
#include "include/requantized.glsl"
#elif defined(TO_floats)
layout(binding = AFTER_TAIL(8)) coherent buffer Zeroed { uint zeroed[]; };
layout(binding = AFTER_TAIL(9)) writeonly buffer RangeScale { uint range_scale[]; };
layout(binding = AFTER_TAIL(10)) buffer RangeZero { uint range_zero[]; };
#define SCALE_AT range_scale_offset
#define ZERO_AT range_zero_offset
#define PARAMS_BINDING AFTER_TAIL(11)
#include "include/params.glsl"
#define TAIL_BINDING 8
#define TAIL_TYPE 36u
#include "include/tail.glsl"
#include "include/scaled.glsl"
#include "include/made_range.glsl"
#endif

const uint LINES = BLOCK_rows, COLUMNS = BLOCK_columns;
const uint SPAN = (COLUMNS - 1u) * STRIDE_X + (TAPS_X - 1u) * DILATION_X + 1u;
const uint ROWS = (LINES - 1u) * STRIDE_Y + (TAPS_Y - 1u) * DILATION_Y + 1u;
shared ivec4 s_taps[TAPS_Y * TAPS_X * LANES];
uint words[ROWS][SPAN];  // of the input
int zero;

ivec4 four(uint word) {
    if (IS_SIGNED(TYPE)) {
        int bits = int(word);
        return ivec4(bitfieldExtract(bits, 0, 8), bitfieldExtract(bits, 8, 8),
                     bitfieldExtract(bits, 16, 8), bitfieldExtract(bits, 24, 8));
    }
    return ivec4(word & 0xFFu, bitfieldExtract(word, 8, 8), bitfieldExtract(word, 16, 8), word >> 24);
}

// Sums and outputs, from the words of the input and the taps.
void finish_block(uint lane, uint channel, uint batch, uint oy, uint ox) {
    ivec4 sums[LINES][COLUMNS];
    [[unroll]] for (uint q = 0u; q < LINES; ++q)
        [[unroll]] for (uint p = 0u; p < COLUMNS; ++p) sums[q][p] = ivec4(0);
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        ivec4 line[SPAN];
        [[unroll]] for (uint e = 0u; e < SPAN; ++e) line[e] = four(words[r][e]) - zero;
        [[unroll]] for (uint q = 0u; q < LINES; ++q) {
            if (r < q * STRIDE_Y || (r - q * STRIDE_Y) % DILATION_Y != 0u) continue;
            uint ky = (r - q * STRIDE_Y) / DILATION_Y;
            if (ky >= TAPS_Y) continue;
            [[unroll]] for (uint kx = 0u; kx < TAPS_X; ++kx) {
                ivec4 tap = s_taps[(ky * TAPS_X + kx) * LANES + lane];  // read once for all columns
                [[unroll]] for (uint p = 0u; p < COLUMNS; ++p)
                    sums[q][p] += line[p * STRIDE_X + kx * DILATION_X] * tap;
            }
        }
    }
#if !defined(TO_sums)
    ivec4 added;
    vec4 scales;
    [[unroll]] for (uint e = 0u; e < 4u; ++e) {
        added[e] = HAS_BIAS ? bias[bias_offset + (channel + e) * bias_stride] : 0;
        precise float scale = w_scale[w_scale_offset + (channel + e) * w_scale_stride];
        if (HAS_INPUT_SCALE) scale = x_scale[x_scale_offset] * scale;
#if defined(TO_bytes)
        scale = scale / y_scale[y_scale_offset];
#endif
        scales[e] = scale;
    }
#endif
#if defined(TO_bytes)
    if (HAS_OUTPUT_ZERO) out_zero = int(y_zero_bits(y_zero_offset).x);
#endif
    uint to = y_offset + batch * y_strides[0] + channel;
    [[unroll]] for (uint q = 0u; q < LINES; ++q) {
        [[unroll]] for (uint p = 0u; p < COLUMNS; ++p) {
            if (oy + q >= y_sizes[0] || ox + p >= y_sizes[1]) continue;
            uint at = to + (oy + q) * y_strides[1] + (ox + p) * y_strides[2];
#if defined(TO_sums)
            y_vectors[at / 4u] = uvec4(sums[q][p]);
#elif defined(TO_bytes)
            y_words[at / 4u] = requantized(sums[q][p] + added, scales);
#else
            vec4 others = tail_four(at - y_offset);
            vec4 made;
            [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                float x = scaled(sums[q][p][e], scales[e], HAS_BIAS, intBitsToFloat(added[e]));
                made[e] = finish_beside(x, others[e]);
                if (RANGED) take_number(made[e]);
            }
            y_vectors[at / 4u] = floatBitsToUint(made);
#endif
        }
    }
}

void main() {
    uint lanes = (channels / 4u - 1u) / LANES + 1u;  // workgroups along the channels
    uint group = group_index(), i = gl_LocalInvocationIndex;
    uint first_channel = group % lanes * LANES * 4u;
    uint lane = i % LANES, channel = first_channel + lane * 4u;
    uint place = group / lanes * (gl_WorkGroupSize.x / LANES) + i / LANES;
    uint across = (y_sizes[1] - 1u) / COLUMNS + 1u, down = (y_sizes[0] - 1u) / LINES + 1u;
    uint next = place / across;
    uint ox = (place - next * across) * COLUMNS;
    uint batch = next / down, oy = (next - batch * down) * LINES;
    bool there = batch < batches && channel < channels;
    // All words are on their way while the taps are placed.
    uint left = uint(int(ox * STRIDE_X) - PADDING_X), top = uint(int(oy * STRIDE_Y) - PADDING_Y);
    uint from = x_offset + batch * x_strides[0] + channel;
    zero = HAS_INPUT_ZERO ? int(x_zero_bits(x_zero_offset).x) : 0;
    uint outside = uint(zero & 0xFF) * 0x01010101u;
    [[unroll]] for (uint r = 0u; r < ROWS; ++r)
        [[unroll]] for (uint e = 0u; e < SPAN; ++e) {
            bool inside = there && top + r < x_sizes[0] && left + e < x_sizes[1];
            uint word = x_words[inside ? (from + (top + r) * x_strides[1] + (left + e) * x_strides[2]) / 4u
                                       : 0u];
            words[r][e] = inside ? word : outside;
        }
    for (uint n = i; n < TAPS_Y * TAPS_X * LANES; n += gl_WorkGroupSize.x) {
        uint own = first_channel + n % LANES * 4u, tap = n / LANES;
        ivec4 some;
        [[unroll]] for (uint e = 0u; e < 4u; ++e) {
            uint one = min(own + e, channels - 1u);
            some[e] = int(w_bits(w_offset + one * w_strides[0] + tap / TAPS_X * w_strides[1] +
                                 tap % TAPS_X * w_strides[2]).x);
            if (HAS_FILTER_ZERO) some[e] -= int(w_zero_bits(w_zero_offset + one * w_zero_stride).x);
        }
        s_taps[n] = some;
    }
    barrier();
    if (there) finish_block(lane, channel, batch, oy, ox);
#if defined(TO_floats)
    uint places = gl_WorkGroupSize.x / LANES, groups = lanes * ((batches * down * across - 1u) / places + 1u);
    if (RANGED && group < groups) end_range(groups);
#endif
}
