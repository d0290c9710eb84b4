//@ op DML_OPERATOR_AVERAGE_POOLING DML_OPERATOR_AVERAGE_POOLING1 DML_OPERATOR_LP_POOLING DML_OPERATOR_LP_POOLING1 DML_OPERATOR_MAX_POOLING DML_OPERATOR_MAX_POOLING1 DML_OPERATOR_MAX_POOLING2 DML_OPERATOR_QUANTIZED_LINEAR_AVERAGE_POOLING
//@ variants OP: average lp max quantized
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation computes EACH neighbouring elements of the output, along the width or the channels.
#include "include/pooling.glsl"
layout(constant_id = 20) const uint EACH = 1u;
layout(constant_id = 21) const bool ALONG_WIDTH = true;
layout(constant_id = 22) const bool UNROLLED = true;  // a window of few elements
layout(constant_id = 23) const bool VECTORS = false;  // EACH elements of input are a vector
#include "include/each.glsl"
OUTPUT_EACH(y, OUT_TYPE)

TOTAL totals[EACH];

// The elements of one row of the window.
void take_row(uint row, uint row_index, bool there, int start, int kw) {
    int step = tap_step(2);
    if (ALONG_WIDTH) {
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            int w = start + int(e) * STEP_W + kw * step;
            // Unconditional loads overlap.
            uint near = uint(clamp(w, 0, in_sizes[2] - 1));
            uvec2 bits = x_bits(row + near * x_strides[2]);
            if (there && uint(w) < uint(in_sizes[2])) take(totals[e], bits, row_index + near);
        }
        return;
    }
    int w = start + kw * step;
    uint near = uint(clamp(w, 0, in_sizes[2] - 1));
    bool inside = there && uint(w) < uint(in_sizes[2]);
    uint from = row + near * x_strides[2];
    if (VECTORS && x_offset % EACH == 0u) {
        uvec4 vector = x_vectors[from / EACH];
        if (inside) {
            [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                uint byte = e * BYTES_OF(TYPE);
                take(totals[e], extended(vector[byte / 4u], byte, TYPE), row_index + near);
            }
        }
        return;
    }
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        uvec2 bits = x_bits(from + e);
        if (inside) take(totals[e], bits, row_index + near);
    }
}

void main() {
    uint item = invocation_index();
    if (item >= count) return;
    uint[7] at = walk(0u, item);
    ivec3 start = ivec3(at[3], at[4], at[5]) * ivec3(steps[0], steps[1], STEP_W)
        - ivec3(paddings[0], paddings[1], paddings[2]);
    [[unroll]] for (uint e = 0u; e < EACH; ++e) totals[e] = nothing();
    uint plane = x_offset + at[1];
    uint height = uint(in_sizes[1]), width = uint(in_sizes[2]);

    if (UNROLLED) {
        [[unroll]] for (int kd = 0; kd < WINDOW_D; ++kd)
            [[unroll]] for (int kh = 0; kh < WINDOW_H; ++kh) {
                ivec2 dh = start.xy + ivec2(kd, kh) * ivec2(tap_step(0), tap_step(1));
                uvec2 near = uvec2(clamp(dh, ivec2(0), ivec2(in_sizes[0], in_sizes[1]) - 1));
                bool there = uvec2(dh) == near;
                uint row = plane + near.x * x_strides[0] + near.y * x_strides[1];
                uint row_index = at[2] + (near.x * height + near.y) * width;
                [[unroll]] for (int kw = 0; kw < WINDOW_W; ++kw)
                    take_row(row, row_index, there, start.z, kw);
            }
    } else {
        int beyond = ALONG_WIDTH ? int(EACH - 1u) * STEP_W : 0;
        int first = first_tap(start.z + beyond, 2);
        int last = last_tap(start.z, in_sizes[2], windows[2], 2);
        int d_last = last_tap(start.x, in_sizes[0], windows[0], 0);
        int h_first = first_tap(start.y, 1);
        int h_last = last_tap(start.y, in_sizes[1], windows[1], 1);
        for (int kd = first_tap(start.x, 0); kd < d_last; ++kd)
            for (int kh = h_first; kh < h_last; ++kh) {
                uvec2 dh = uvec2(start.xy + ivec2(kd, kh) * ivec2(tap_step(0), tap_step(1)));
                uint row = plane + dh.x * x_strides[0] + dh.y * x_strides[1];
                uint row_index = at[2] + (dh.x * height + dh.y) * width;
                for (int kw = first; kw < last; ++kw) take_row(row, row_index, true, start.z, kw);
            }
    }

    uint n = divisor(start.x, windows[0], 0) * divisor(start.y, windows[1], 1);
    uint taken = taps(start.x, windows[0], 0) * taps(start.y, windows[1], 1);
    uvec2 made[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        int w = start.z + (ALONG_WIDTH ? int(e) * STEP_W : 0);
        uint count = n * divisor(w, windows[2], 2);
#if defined(OP_quantized)
        uint channel = at[2] + (ALONG_WIDTH ? 0u : e);
        made[e] = quantized_result(totals[e], taken * taps(w, windows[2], 2), count, channel,
                                   param(0u) * WALK_WORDS + 1u);
#else
        made[e] = result(totals[e], count, 0u);
#endif
#if defined(OP_max)
        if (INDICES) store_index(indices_offset + at[6] + e, totals[e].index);
#endif
    }
    if (VALUES) y_store_each(y_offset + at[0], made);
}
