//@ op DML_OPERATOR_AVERAGE_POOLING_GRAD DML_OPERATOR_MAX_POOLING_GRAD
//@ variants STEP: average winners maximum
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// ``winners`` stores the largest element of each window. The other steps sum the gradients of all windows
// that contain an element, in the order of the windows.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool INCLUDE_PADDING = false;
layout(push_constant) uniform Push {
    uint count;
    uint x_sizes[3];
    uint y_sizes[3];
    uint window[3];
    uint steps[3];
    uint dilations[3];
    uint paddings[3];
    uint ends[3];     // sizes with the end padding
    uint strides[3];  // of x (winners) or of dy
    uint x_offset;
    uint dy_offset;
    uint winners_offset;
    uint dx_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/float_bits.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(dy, 1, TYPE)
layout(binding = 2) buffer Winners { uint winners[]; };
OUTPUT_TENSOR(dx, 3, TYPE)

const uint NONE = 0xFFFFFFFFu;

#if defined(STEP_winners)
// x (its plane), and the window's coordinates
WALK(walk, 4)

void main() {
    uint i = invocation_index();
    if (i >= count) return;
    uint[4] at = walk(0u, i);
    uint winner = NONE;
    float best = 0.0;
    uvec3 k;
    for (k.x = 0u; k.x < window[0]; ++k.x)
    for (k.y = 0u; k.y < window[1]; ++k.y)
    for (k.z = 0u; k.z < window[2]; ++k.z) {
        uint from = x_offset + at[0], place = 0u;
        bool inside = true;
        [[unroll]] for (uint d = 0u; d < 3u; ++d) {
            // A coordinate below 0 wraps and is then too large.
            uint p = at[1u + d] * steps[d] + k[d] * dilations[d] - paddings[d];
            inside = inside && p < x_sizes[d];
            place = place * x_sizes[d] + p;
            from += p * strides[d];
        }
        if (!inside) continue;
        float value = x_float(from);
        if (winner == NONE || !is_nan(best) && (is_nan(value) || less(best, value))) {
            winner = place;
            best = value;
        }
    }
    winners[winners_offset + i] = winner;
}
#else
// dx, dy and winners (their planes), and the element's coordinates
WALK(walk, 6)

#if defined(STEP_average)
// The elements of window o that count, along a dimension.
uint counted(uint o, uint d) {
    int first = int(o * steps[d]) - int(paddings[d]), end = first + int(window[d]);
    if (INCLUDE_PADDING) return uint(min(end, int(ends[d])) - first);
    return uint(min(end, int(x_sizes[d])) - max(first, 0));
}
#endif

void main() {
    uint i = invocation_index();
    if (i >= count) return;
    uint[6] at = walk(0u, i);
    uvec3 low, high;
    uint place = 0u;
    [[unroll]] for (uint d = 0u; d < 3u; ++d) {
        uint p = at[3u + d] + paddings[d], reach = (window[d] - 1u) * dilations[d];
        low[d] = p > reach ? (p - reach - 1u) / steps[d] + 1u : 0u;
        high[d] = min(p / steps[d] + 1u, y_sizes[d]);
        place = place * x_sizes[d] + at[3u + d];
    }
    float sum = 0.0;
    uvec3 o;
    for (o.x = low.x; o.x < high.x; ++o.x)
    for (o.y = low.y; o.y < high.y; ++o.y)
    for (o.z = low.z; o.z < high.z; ++o.z) {
        float gradient = dy_float(dy_offset + at[1] + o.x * strides[0] + o.y * strides[1]
                                  + o.z * strides[2]);
#if defined(STEP_average)
        sum += gradient / float(counted(o.x, 0u) * counted(o.y, 1u) * counted(o.z, 2u));
#else
        uint window_at = (o.x * y_sizes[1] + o.y) * y_sizes[2] + o.z;
        if (winners[winners_offset + at[2] + window_at] == place) sum += gradient;
#endif
    }
    dx_store_float(dx_offset + at[0], sum);
}
#endif
