//@ op DML_OPERATOR_AVERAGE_POOLING_GRAD DML_OPERATOR_MAX_POOLING_GRAD
//@ variants OP: average max
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Sums for each element the gradients of the windows that contain it, in the order of the windows. For max
// pooling, of those in which it is the largest. An invocation computes EACH neighbours along the width or
// the channels. Along the width it visits each window once.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool INCLUDE_PADDING = false;
layout(constant_id = 3) const uint EACH = 1u;
layout(constant_id = 4) const bool ALONG_WIDTH = true;
layout(constant_id = 5) const bool VECTORS = false;  // EACH gradients are a vector
layout(constant_id = 6) const uint REACH_D = 1u;     // elements from a window's first to its last one
layout(constant_id = 7) const uint REACH_H = 1u;
layout(constant_id = 8) const uint REACH_W = 1u;
layout(constant_id = 9) const uint STEP_D = 1u;
layout(constant_id = 10) const uint STEP_H = 1u;
layout(constant_id = 11) const uint STEP_W = 1u;
layout(push_constant) uniform Push {
    uint count;
    int x_sizes[3];
    uint y_sizes[3];
    int paddings[3];
    int ends[3];  // sizes with the end padding
    uint dy_strides[3];
    uint winners_strides[3];
    uint number_step;  // between neighbours
    uint dy_offset;
    uint winners_offset;
    uint dx_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/each.glsl"

INPUT_TENSOR(dy, 0, TYPE)
INPUT_EACH(dy, TYPE, VECTORS && dy_offset % EACH == 0u)
layout(binding = 1) readonly buffer Winners { uint winners[]; };
OUTPUT_TENSOR(dx, 2, TYPE)
OUTPUT_EACH(dx, TYPE)
// dx, dy and winners (their planes), the element's coordinates, and its number
WALK(walk, 7)

// The first window that contains an element, and the one after the last.
uint first_window(uint p, uint reach, uint step) { return p >= reach ? (p - reach) / step + 1u : 0u; }
uint end_window(uint p, uint step, uint d) { return min(p / step + 1u, y_sizes[d]); }

// The elements of window o that count, along a dimension.
uint counted(uint o, uint reach, uint step, uint d) {
    int first = int(o * step) - paddings[d], end = first + int(reach);
    if (INCLUDE_PADDING) return uint(min(end, ends[d]) - first);
    return uint(min(end, x_sizes[d]) - max(first, 0));
}

void main() {
    uint i = invocation_index();
    if (i >= count) return;
    uint[7] at = walk(0u, i);
    uvec3 p = uvec3(at[3], at[4], at[5]) + uvec3(paddings[0], paddings[1], paddings[2]);
    uvec3 low = uvec3(first_window(p.x, REACH_D, STEP_D), first_window(p.y, REACH_H, STEP_H),
                      first_window(p.z, REACH_W, STEP_W));
    const uint along = ALONG_WIDTH ? EACH - 1u : 0u;
    uvec3 high = uvec3(end_window(p.x, STEP_D, 0u), end_window(p.y, STEP_H, 1u),
                       end_window(p.z + along, STEP_W, 2u));
    float sums[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) sums[e] = 0.0;
    if (all(lessThan(low, high))) {
        // A driver on the CPU runs a loop's body once more than it has passes, unless its test comes last.
        uvec3 o;
        o.x = low.x;
        do {
            o.y = low.y;
            do {
                uint row = dy_offset + at[1] + o.x * dy_strides[0] + o.y * dy_strides[1];
                uint found = winners_offset + at[2] + o.x * winners_strides[0] + o.y * winners_strides[1];
#if defined(OP_average)
                uint rows = counted(o.x, REACH_D, STEP_D, 0u) * counted(o.y, REACH_H, STEP_H, 1u);
#endif
                o.z = low.z;
                do {
                    uint from = row + o.z * dy_strides[2];
                    float gradients[EACH];
                    if (ALONG_WIDTH) gradients[0] = dy_float(from);  // neighbours share it
                    else dy_load_each(from, gradients);
#if defined(OP_average)
                    float elements = float(rows * counted(o.z, REACH_W, STEP_W, 2u));
                    if (ALONG_WIDTH) gradients[0] /= elements;
#else
                    uint winner = found + o.z * winners_strides[2], largest = winners[winner];
#endif
                    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                        float gradient = gradients[ALONG_WIDTH ? 0u : e];
#if defined(OP_average)
                        if (!ALONG_WIDTH) gradient /= elements;
                        bool takes = !ALONG_WIDTH || p.z + e - o.z * STEP_W < REACH_W;
#else
                        if (!ALONG_WIDTH && e != 0u) largest = winners[winner + e];
                        bool takes = largest == at[6] + e * number_step;
#endif
                        if (takes) sums[e] += gradient;
                    }
                } while (++o.z < high.z);
            } while (++o.y < high.y);
        } while (++o.x < high.x);
    }
    uvec2 made[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) made[e] = uvec2(bits_of(sums[e], TYPE), 0u);
    dx_store_each(dx_offset + at[0], made);
}
