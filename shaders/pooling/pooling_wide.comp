//@ op DML_OPERATOR_AVERAGE_POOLING DML_OPERATOR_AVERAGE_POOLING1 DML_OPERATOR_LP_POOLING DML_OPERATOR_LP_POOLING1 DML_OPERATOR_MAX_POOLING DML_OPERATOR_MAX_POOLING1 DML_OPERATOR_MAX_POOLING2 DML_OPERATOR_QUANTIZED_LINEAR_AVERAGE_POOLING
//@ variants OP: average lp max quantized
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// For windows of many elements. 1 << lane_bits invocations compute one element of the output.
#include "include/pooling.glsl"
#define LANES (1u << lane_bits)
layout(constant_id = 20) const bool SIDE_BY_SIDE = false;  // outputs of a workgroup are contiguous
layout(constant_id = 21) const bool CONTIGUOUS = false;  // a window is contiguous

shared TOTAL s_totals[gl_WorkGroupSize.x];

void main() {
    uint me = gl_LocalInvocationIndex, outputs = gl_WorkGroupSize.x >> lane_bits;
    uint lane = SIDE_BY_SIDE ? me / outputs : me & LANES - 1u;
    uint slot = SIDE_BY_SIDE ? me & outputs - 1u : me >> lane_bits;
    uint item = group_index() * outputs + slot;
    bool there = item < count;
    uint[7] at = walk(0u, min(item, count - 1u));
    ivec3 start = ivec3(at[3], at[4], at[5]) * ivec3(steps[0], steps[1], STEP_W)
        - ivec3(paddings[0], paddings[1], paddings[2]);
    ivec3 first = ivec3(first_tap(start.x, 0), first_tap(start.y, 1), first_tap(start.z, 2));
    uvec3 sizes = uvec3(taps(start.x, windows[0], 0), taps(start.y, windows[1], 1),
                        taps(start.z, windows[2], 2));
    ivec3 step = ivec3(tap_step(0), tap_step(1), tap_step(2));
    uvec3 begin = uvec3(start + first * step);
    uint n = sizes.x * sizes.y * sizes.z;
    uint plane = x_offset + at[1];

    TOTAL total = nothing();
    if (CONTIGUOUS) {
        const uint each = 16u / BYTES_OF(TYPE);
        uint from = plane + begin.z, last = from + n;
        // Elements before the first whole vector, and after the last one, are taken one by one.
        uint head = min((from + each - 1u) / each * each, last), tail = max(last / each * each, head);
        for (uint i = from + lane; i < head; i += LANES)
            take(total, x_bits(i), at[2] + begin.z + (i - from));
        for (uint v = head / each + lane; v < tail / each; v += 2u * LANES) {
            uint second = min(v + LANES, tail / each - 1u);
            uvec4 vectors[2] = uvec4[2](x_vectors[v], x_vectors[second]);
            [[unroll]] for (uint i = 0u; i < 2u; ++i) {
                if (i == 1u && second != v + LANES) continue;
                uint index = at[2] + begin.z + ((i == 0u ? v : second) * each - from);
                [[unroll]] for (uint e = 0u; e < each; ++e) {
                    uint byte = e * BYTES_OF(TYPE);
                    uvec2 bits = IS_WIDE ? (e == 0u ? vectors[i].xy : vectors[i].zw)
                                         : extended(vectors[i][byte / 4u & 3u], byte, TYPE);
                    take(total, bits, index + e);
                }
            }
        }
        for (uint i = tail + lane; i < last; i += LANES)
            take(total, x_bits(i), at[2] + begin.z + (i - from));
    } else {
        uvec3 near = uvec3(in_sizes[0], in_sizes[1], in_sizes[2]);
        for (uint t = lane; t < n; t += LANES) {
            uint rest = t / sizes.z, w = t - rest * sizes.z, d = rest / sizes.y;
            uvec3 p = begin + uvec3(d, rest - d * sizes.y, w) * uvec3(step);
            uint from = plane + p.x * x_strides[0] + p.y * x_strides[1] + p.z * x_strides[2];
            take(total, x_bits(from), at[2] + (p.x * near.y + p.y) * near.z + p.z);
        }
    }

    s_totals[me] = total;
    uint stride = SIDE_BY_SIDE ? outputs : 1u;
    for (uint kept = LANES / 2u; kept > 0u; kept /= 2u) {
        barrier();
        if (lane < kept) s_totals[me] = merged(s_totals[me], s_totals[me + kept * stride]);
    }
    if (lane != 0u || !there) return;
    total = s_totals[me];
    uint count = divisor(start.x, windows[0], 0) * divisor(start.y, windows[1], 1)
        * divisor(start.z, windows[2], 2);
#if defined(OP_quantized)
    uvec2 bits = quantized_result(total, n, count, at[2], param(0u) * WALK_WORDS + 1u);
#else
    uvec2 bits = result(total, count, 0u);
#endif
#if defined(OP_max)
    if (INDICES) store_index(indices_offset + at[6], total.index);
#endif
    if (VALUES) y_store_bits(y_offset + at[0], bits);
}
