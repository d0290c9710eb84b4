//@ op DML_OPERATOR_CONVOLUTION
//@ variants LAYOUT: first(rows=4, columns=1)
//@     last1x1(rows=1, columns=1) last1x4(rows=1, columns=4) last1x8(rows=1, columns=8)
//@     last2x4(rows=2, columns=4) last4x2(rows=4, columns=2)
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Depthwise convolutions: each channel has one filter, of at most two axes. They are bound by memory, so
// each read serves several outputs.
// Channels first: an invocation computes EACH neighbours of OUTPUTS rows, of one channel.
// Channels last: it computes four channels of LINES rows and OUTPUTS columns. Shared memory holds the
// filters of the workgroup's 4 * LANES channels.
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
layout(constant_id = 12) const uint EARLY = 1u;  // rows of the input that are read before the filters: 1 to ROWS
#include "include/depthwise.glsl"
const uint MAX_TAPS = 7u;

#if defined(LAYOUT_first)
const uint OUTPUTS = LAYOUT_rows;
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
                vec2 two = halves_to_floats(x_words[inside ? (row + at) / 2u : 0u]);
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
    float added = bias_at(channel);
    uint to = y_offset + batch * y_strides[0] + channel * y_strides[1] + oy * y_strides[2] +
              ox * y_strides[3];
    [[unroll]] for (uint p = 0u; p < OUTPUTS; ++p) {
        if (oy + p >= y_sizes[0]) continue;
        uint at = to + p * y_strides[2];
        float one = finish(sums[p][0] + added, at - y_offset);
        if (EACH == 2u)
            y_words[at / 2u] = floats_to_halves(one, finish(sums[p][1] + added, at + 1u - y_offset));
        else
            y_store_float(at, one);
    }
}
#else
const uint LINES = LAYOUT_rows, OUTPUTS = LAYOUT_columns;
const uint SPAN = (OUTPUTS - 1u) * STRIDE_X + (TAPS_X - 1u) * DILATION_X + 1u;
const uint ROWS = (LINES - 1u) * STRIDE_Y + (TAPS_Y - 1u) * DILATION_Y + 1u;
const bool HALVES = BYTES_OF(TYPE) == 2u;
shared vec4 s_taps[TAPS_Y * TAPS_X * LANES];

// Four channels of a pixel, of a row that begins at ``row``.
uvec4 read(uint row, bool row_inside, uint column) {
    bool inside = row_inside && column < x_sizes[1];
    uint at = inside ? (row + column * x_strides[3]) / 4u : 0u;
    uvec4 bits = HALVES ? uvec4(x_pairs[at], 0u, 0u) : x_vectors[at];
    return inside ? bits : uvec4(0u);
}

vec4 four(uvec4 bits) {
    return HALVES ? vec4(halves_to_floats(bits.x), halves_to_floats(bits.y)) : uintBitsToFloat(bits);
}

void main() {
    uint lanes = (channels / 4u - 1u) / LANES + 1u;  // workgroups along the channels
    uint group = group_index(), i = gl_LocalInvocationIndex;
    uint first_channel = group % lanes * LANES * 4u;
    uint lane = i % LANES, channel = first_channel + lane * 4u;
    uint place = group / lanes * (gl_WorkGroupSize.x / LANES) + i / LANES;
    uint across = (y_sizes[1] - 1u) / OUTPUTS + 1u, down = (y_sizes[0] - 1u) / LINES + 1u;
    uint next = place / across;
    uint ox = (place - next * across) * OUTPUTS;
    uint batch = next / down, oy = (next - batch * down) * LINES;
    bool there = batch < batches && channel < channels;
    uint left = uint(int(ox * STRIDE_X) - padding[1]), top = uint(int(oy * STRIDE_Y) - padding[0]);
    uint from = x_offset + batch * x_strides[0] + channel;

    // The first rows are on their way while the taps are placed.
    uvec4 early[EARLY][SPAN];
    [[unroll]] for (uint r = 0u; r < EARLY; ++r)
        [[unroll]] for (uint e = 0u; e < SPAN; ++e)
            early[r][e] = read(from + (top + r) * x_strides[2], there && top + r < x_sizes[0], left + e);
    for (uint n = i; n < TAPS_Y * TAPS_X * LANES; n += gl_WorkGroupSize.x) {
        uint own = first_channel + n % LANES * 4u, tap = n / LANES;
        vec4 some;
        [[unroll]] for (uint e = 0u; e < 4u; ++e)
            some[e] = filter_at(min(own + e, channels - 1u), tap / TAPS_X, tap % TAPS_X);
        s_taps[n] = some;
    }
    barrier();
    if (!there) return;

    vec4 sums[LINES][OUTPUTS];
    [[unroll]] for (uint q = 0u; q < LINES; ++q)
        [[unroll]] for (uint p = 0u; p < OUTPUTS; ++p) sums[q][p] = vec4(0.0);
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        vec4 line[SPAN];
        [[unroll]] for (uint e = 0u; e < SPAN; ++e)
            line[e] = four(r < EARLY ? early[min(r, EARLY - 1u)][e]
                                     : read(from + (top + r) * x_strides[2], top + r < x_sizes[0], left + e));
        [[unroll]] for (uint q = 0u; q < LINES; ++q) {
            if (r < q * STRIDE_Y || (r - q * STRIDE_Y) % DILATION_Y != 0u) continue;
            uint ky = (r - q * STRIDE_Y) / DILATION_Y;
            if (ky >= TAPS_Y) continue;
            [[unroll]] for (uint kx = 0u; kx < TAPS_X; ++kx) {
                vec4 tap = s_taps[(ky * TAPS_X + kx) * LANES + lane];  // read once for all columns
                [[unroll]] for (uint p = 0u; p < OUTPUTS; ++p)
                    sums[q][p] += line[p * STRIDE_X + kx * DILATION_X] * tap;
            }
        }
    }
    vec4 added;
    [[unroll]] for (uint e = 0u; e < 4u; ++e)
        added[e] = bias_at(channel + e);
    uint to = y_offset + batch * y_strides[0] + channel;
    [[unroll]] for (uint q = 0u; q < LINES; ++q) {
        [[unroll]] for (uint p = 0u; p < OUTPUTS; ++p) {
            if (oy + q >= y_sizes[0] || ox + p >= y_sizes[1]) continue;
            vec4 made = sums[q][p] + added;
            uint at = to + (oy + q) * y_strides[2] + (ox + p) * y_strides[3];
            [[unroll]] for (uint e = 0u; e < 4u; ++e) made[e] = finish(made[e], at + e - y_offset);
            if (HALVES) y_pairs[at / 4u] = floats_to_halves(made);
            else y_vectors[at / 4u] = floatBitsToUint(made);
        }
    }
}
#endif
