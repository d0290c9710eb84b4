//@ op DML_OPERATOR_CONVOLUTION
//@ variants LAYOUT: first last1x1 last1x4 last1x8 last2x4 last4x2
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Depthwise convolutions: each channel has one filter, of at most two axes. They are bound by memory, so
// each read serves several outputs.
// Channels first: an invocation computes EACH neighbours of OUTPUTS rows, of one channel.
// Channels last: it computes a vector of channels for LINES rows and OUTPUTS columns. Shared memory
// holds the filters of the workgroup's LANES vectors of channels.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool HAS_BIAS = false;
layout(constant_id = 3) const uint TAPS_Y = 3u;
layout(constant_id = 4) const uint TAPS_X = 3u;
layout(constant_id = 5) const uint STRIDE_Y = 1u;
layout(constant_id = 6) const uint STRIDE_X = 1u;
layout(constant_id = 7) const uint DILATION_Y = 1u;
layout(constant_id = 8) const uint DILATION_X = 1u;
layout(constant_id = 9) const uint EACH = 1u;      // 2: a word of two FLOAT16
layout(constant_id = 10) const bool ODD = false;   // whether a window begins inside a word
layout(constant_id = 11) const uint LANES = 1u;
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint batches;
    uint channels;
    uint x_sizes[2];    // y, x
    uint y_sizes[2];
    int padding[2];
    uint x_strides[4];  // batch, channel, y, x
    uint y_strides[4];
    uint w_strides[3];  // channel, y, x
    uint w_first;
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
#include "include/params.glsl"
#include "include/typed.glsl"
#define TAIL_BINDING 4
#define TAIL_TYPE TYPE
#include "include/tail.glsl"
INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(w, 1, TYPE)
OUTPUT_TENSOR(y, 2, TYPE)
INPUT_TENSOR(bias, 3, TYPE)
const uint MAX_TAPS = 7u;

float filter_at(uint channel, uint ky, uint kx) {
    return w_float(w_offset + w_first + channel * w_strides[0] + ky * w_strides[1] +
                   kx * w_strides[2]);
}

vec2 halves(uint word) {
    return vec2(half_to_float(word & 0xFFFFu), half_to_float(word >> 16));
}

#if defined(LAYOUT_first)
const uint OUTPUTS = 4u;
const uint SPAN = (EACH - 1u) * STRIDE_X + (TAPS_X - 1u) * DILATION_X + 1u;
const uint ROWS = (OUTPUTS - 1u) * STRIDE_Y + (TAPS_Y - 1u) * DILATION_Y + 1u;
const uint MAX_SPAN = 24u;

void main() {
    uint index = invocation_index();
    uint across = (y_sizes[1] - 1u) / EACH + 1u, down = (y_sizes[0] - 1u) / OUTPUTS + 1u;
    uint next = index / across;
    uint ox = (index - next * across) * EACH;
    index = next / down;
    uint oy = (next - index * down) * OUTPUTS;
    uint batch = index / channels, channel = index - batch * channels;
    if (batch >= batches) return;

    float taps[MAX_TAPS * MAX_TAPS];
    [[unroll]] for (uint ky = 0u; ky < TAPS_Y; ++ky)
        [[unroll]] for (uint kx = 0u; kx < TAPS_X; ++kx)
            taps[ky * MAX_TAPS + kx] = filter_at(channel, ky, kx);
    float sums[OUTPUTS][2];
    [[unroll]] for (uint p = 0u; p < OUTPUTS; ++p) sums[p][0] = sums[p][1] = 0.0;
    int first = int(ox * STRIDE_X) - padding[1];
    uint from = x_offset + batch * x_strides[0] + channel * x_strides[1];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        uint iy = uint(int(oy * STRIDE_Y + r) - padding[0]);
        bool row_inside = iy < x_sizes[0];
        uint row = from + iy * x_strides[2];
        float line[MAX_SPAN];
        if (EACH == 2u) {
            const uint SHIFT = ODD ? 1u : 0u;
            [[unroll]] for (uint v = 0u; v < (SPAN + SHIFT + 1u) / 2u; ++v) {
                uint at = uint(first) - SHIFT + 2u * v;  // a word is inside the row, or outside
                bool inside = row_inside && at < x_sizes[1];
                vec2 two = halves(x_words[inside ? (row + at) / 2u : 0u]);
                [[unroll]] for (uint e = 0u; e < 2u; ++e)
                    if (2u * v + e >= SHIFT)
                        line[2u * v + e - SHIFT] = inside && at + e < x_sizes[1] ? two[e] : 0.0;
            }
        } else {
            [[unroll]] for (uint e = 0u; e < SPAN; ++e) {
                uint at = uint(first) + e;
                bool inside = row_inside && at < x_sizes[1];
                float x = x_float(inside ? row + at * x_strides[3] : 0u);
                line[e] = inside ? x : 0.0;
            }
        }
        [[unroll]] for (uint p = 0u; p < OUTPUTS; ++p) {
            if (r < p * STRIDE_Y || (r - p * STRIDE_Y) % DILATION_Y != 0u) continue;
            uint ky = (r - p * STRIDE_Y) / DILATION_Y;
            if (ky >= TAPS_Y) continue;
            [[unroll]] for (uint kx = 0u; kx < TAPS_X; ++kx)
                [[unroll]] for (uint e = 0u; e < EACH; ++e)
                    sums[p][e] += taps[ky * MAX_TAPS + kx] * line[kx * DILATION_X + e * STRIDE_X];
        }
    }
    float added = HAS_BIAS ? bias_float(bias_offset + channel * bias_stride) : 0.0;
    uint to = y_offset + batch * y_strides[0] + channel * y_strides[1] + oy * y_strides[2] +
              ox * y_strides[3];
    [[unroll]] for (uint p = 0u; p < OUTPUTS; ++p) {
        if (oy + p >= y_sizes[0]) continue;
        uint at = to + p * y_strides[2];
        float one = finish(sums[p][0] + added, at - y_offset);
        if (EACH == 2u)
            y_words[at / 2u] = float_to_half(one) |
                               float_to_half(finish(sums[p][1] + added, at + 1u - y_offset))
                                   << 16;
        else
            y_store_float(at, one);
    }
}
#else
#if defined(LAYOUT_last1x1)
const uint LINES = 1u, OUTPUTS = 1u;
#elif defined(LAYOUT_last1x4)
const uint LINES = 1u, OUTPUTS = 4u;
#elif defined(LAYOUT_last1x8)
const uint LINES = 1u, OUTPUTS = 8u;
#elif defined(LAYOUT_last2x4)
const uint LINES = 2u, OUTPUTS = 4u;
#else
const uint LINES = 4u, OUTPUTS = 2u;
#endif
const uint VECTOR = BYTES_OF(TYPE) == 2u ? 8u : 4u;
const uint SPAN = (OUTPUTS - 1u) * STRIDE_X + (TAPS_X - 1u) * DILATION_X + 1u;
const uint ROWS = (LINES - 1u) * STRIDE_Y + (TAPS_Y - 1u) * DILATION_Y + 1u;
shared vec4 s_taps[1024];

void four(uvec4 vector, out vec4 low, out vec4 high) {
    if (BYTES_OF(TYPE) == 2u) {
        low = vec4(halves(vector.x), halves(vector.y));
        high = vec4(halves(vector.z), halves(vector.w));
    } else {
        low = uintBitsToFloat(vector);
        high = vec4(0.0);
    }
}

// Computes block ``place`` of outputs, for a vector of channels.
void make_block(uint place, uint lane, uint channel, vec4 added[2]) {
    const uint FOURS = LANES * VECTOR / 4u;
    uint across = (y_sizes[1] - 1u) / OUTPUTS + 1u;
    uint next = place / across;
    uint ox = (place - next * across) * OUTPUTS;
    uint down = (y_sizes[0] - 1u) / LINES + 1u;
    uint batch = next / down, oy = (next - batch * down) * LINES;
    if (batch >= batches) return;

    vec4 low[LINES][OUTPUTS], high[LINES][OUTPUTS];
    [[unroll]] for (uint q = 0u; q < LINES; ++q)
        [[unroll]] for (uint p = 0u; p < OUTPUTS; ++p) low[q][p] = high[q][p] = vec4(0.0);
    int first = int(ox * STRIDE_X) - padding[1];
    uint from = x_offset + batch * x_strides[0] + channel;
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        uint iy = uint(int(oy * STRIDE_Y + r) - padding[0]);
        bool row_inside = iy < x_sizes[0];
        uint row = from + iy * x_strides[2];
        [[unroll]] for (uint e = 0u; e < SPAN; ++e) {
            uint at = uint(first) + e;
            bool inside = row_inside && at < x_sizes[1];
            uvec4 vector = x_vectors[inside ? (row + at * x_strides[3]) / VECTOR : 0u];
            vec4 x_low, x_high;
            four(inside ? vector : uvec4(0u), x_low, x_high);
            [[unroll]] for (uint q = 0u; q < LINES; ++q) {
                if (r < q * STRIDE_Y || (r - q * STRIDE_Y) % DILATION_Y != 0u) continue;
                uint ky = (r - q * STRIDE_Y) / DILATION_Y;
                if (ky >= TAPS_Y) continue;
                [[unroll]] for (uint p = 0u; p < OUTPUTS; ++p) {
                    if (e < p * STRIDE_X || (e - p * STRIDE_X) % DILATION_X != 0u) continue;
                    uint kx = (e - p * STRIDE_X) / DILATION_X;
                    if (kx >= TAPS_X) continue;
                    uint tap = (ky * TAPS_X + kx) * FOURS + lane * (VECTOR / 4u);
                    low[q][p] += x_low * s_taps[tap];
                    if (VECTOR == 8u) high[q][p] += x_high * s_taps[tap + 1u];
                }
            }
        }
    }
    uint to = y_offset + batch * y_strides[0] + channel;
    [[unroll]] for (uint q = 0u; q < LINES; ++q) {
        [[unroll]] for (uint p = 0u; p < OUTPUTS; ++p) {
            if (oy + q >= y_sizes[0] || ox + p >= y_sizes[1]) continue;
            vec4 a = low[q][p] + added[0], b = high[q][p] + added[1];
            uint at = to + (oy + q) * y_strides[2] + (ox + p) * y_strides[3];
            [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                a[e] = finish(a[e], at + e - y_offset);
                if (VECTOR == 8u) b[e] = finish(b[e], at + 4u + e - y_offset);
            }
            uvec4 bits = floatBitsToUint(a);
            if (VECTOR == 8u)
                bits = uvec4(float_to_half(a.x) | float_to_half(a.y) << 16,
                             float_to_half(a.z) | float_to_half(a.w) << 16,
                             float_to_half(b.x) | float_to_half(b.y) << 16,
                             float_to_half(b.z) | float_to_half(b.w) << 16);
            y_vectors[at / VECTOR] = bits;
        }
    }
}

void main() {
    uint lanes = (channels / VECTOR - 1u) / LANES + 1u;  // workgroups along the channels
    uint group = group_index();
    uint i = gl_LocalInvocationIndex;
    uint first_channel = group % lanes * LANES * VECTOR;
    const uint FOURS = LANES * VECTOR / 4u;
    for (uint n = i; n < TAPS_Y * TAPS_X * FOURS; n += gl_WorkGroupSize.x) {
        uint channel = first_channel + n % FOURS * 4u, tap = n / FOURS;
        vec4 some;
        [[unroll]] for (uint e = 0u; e < 4u; ++e)
            some[e] = filter_at(min(channel + e, channels - 1u), tap / TAPS_X, tap % TAPS_X);
        s_taps[n] = some;
    }
    barrier();
    uint lane = i % LANES, channel = first_channel + lane * VECTOR;
    if (channel >= channels) return;
    vec4 added[2];
    [[unroll]] for (uint e = 0u; e < 8u; ++e)
        added[e / 4u][e % 4u] = HAS_BIAS && e < VECTOR
            ? bias_float(bias_offset + (channel + e) * bias_stride) : 0.0;
    make_block(group / lanes * (gl_WorkGroupSize.x / LANES) + i / LANES, lane, channel, added);
}
#endif
