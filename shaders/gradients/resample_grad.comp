//@ op DML_OPERATOR_RESAMPLE_GRAD DML_OPERATOR_RESAMPLE_GRAD1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation computes the gradients of EACH neighbours of the forward operator's input: the weighted sums
// of the gradients of the outputs that read them. AXES dimensions are resampled, and neighbours may lie along
// the last one. A table of each axis has three words for each coordinate: the first output that reads it, how
// many do, and where their weights are among the params.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint AXES = 2u;  // up to 4
layout(constant_id = 3) const uint EACH = 1u;
layout(constant_id = 4) const bool ALONG_AXIS = true;  // neighbours lie along the last axis
layout(constant_id = 5) const bool VECTORS = false;    // EACH gradients are a vector
layout(constant_id = 6) const uint TAPS = 0u;  // the most that read an element along the last axis, if few
layout(push_constant) uniform Push {
    uint count;
    uint dy_strides[4];
    uint tables[4];
    uint dy_offset;
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
OUTPUT_TENSOR(dx, 1, TYPE)
OUTPUT_EACH(dx, TYPE)
// dx, dy (without the axes), the axes' coordinates
WALK(walk, 6)

struct Taps {
    uint from;  // the place of the first one
    uint count;
    uint weights;
};

Taps taps_of(uint x, uint axis) {
    uint at = tables[axis] + 3u * x;
    return Taps(param(at) * dy_strides[axis], param(at + 1u), param(at + 2u));
}

const uint LAST = AXES == 0u ? 0u : AXES - 1u;
const bool ALONG = ALONG_AXIS && AXES != 0u;
const uint OUTER = ALONG ? LAST : AXES;

Taps along[EACH];
float weights[EACH * (TAPS == 0u ? 1u : TAPS)];

// Adds ``by`` times the gradients at ``from``, or times the weighted sums of those along the last axis.
void add_row(inout float sums[EACH], float by, uint from) {
    if (ALONG) {
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            float row = 0.0;
            uint at = from + along[e].from;
            if (TAPS != 0u) {
                [[unroll]] for (uint t = 0u; t < TAPS; ++t)
                    if (t < along[e].count) row += weights[e * TAPS + t] * dy_float(at + t * dy_strides[LAST]);
            } else {
                for (uint t = 0u; t < along[e].count; ++t)
                    row += param_float(along[e].weights + t) * dy_float(at + t * dy_strides[LAST]);
            }
            sums[e] += by * row;
        }
    } else {
        float row[EACH];
        dy_load_each(from, row);
        [[unroll]] for (uint e = 0u; e < EACH; ++e) sums[e] += by * row[e];
    }
}

void main() {
    uint item = invocation_index();
    if (item >= count) return;
    uint[6] at = walk(0u, item);
    Taps taps[4];
    [[unroll]] for (uint a = 0u; a < 4u; ++a)
        taps[a] = a < OUTER ? taps_of(at[2u + a], a) : Taps(0u, 1u, 0u);
    if (ALONG) {
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            along[e] = taps_of(at[2u + LAST] + e, LAST);
            [[unroll]] for (uint t = 0u; t < TAPS; ++t)
                if (t < along[e].count) weights[e * TAPS + t] = param_float(along[e].weights + t);
        }
    }
    float sums[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) sums[e] = 0.0;
    uint begin = dy_offset + at[1] + taps[0].from + taps[1].from + taps[2].from + taps[3].from;
    bool is_read = true;
    [[unroll]] for (uint a = 0u; a < OUTER; ++a) is_read = is_read && taps[a].count != 0u;
    if (is_read) {
        // A driver on the CPU runs a loop's body once more than it has passes, unless its test comes last.
        uvec4 t;
        t.x = 0u;
        do {
            float by_x = OUTER < 1u ? 1.0 : param_float(taps[0].weights + t.x);
            t.y = 0u;
            do {
                float by_y = OUTER < 2u ? by_x : by_x * param_float(taps[1].weights + t.y);
                t.z = 0u;
                do {
                    float by_z = OUTER < 3u ? by_y : by_y * param_float(taps[2].weights + t.z);
                    t.w = 0u;
                    do {
                        float by = OUTER < 4u ? by_z : by_z * param_float(taps[3].weights + t.w);
                        add_row(sums, by, begin + t.x * dy_strides[0] + t.y * dy_strides[1]
                                          + t.z * dy_strides[2] + t.w * dy_strides[3]);
                    } while (++t.w < taps[3].count);
                } while (++t.z < taps[2].count);
            } while (++t.y < taps[1].count);
        } while (++t.x < taps[0].count);
    }
    uvec2 made[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) made[e] = uvec2(bits_of(sums[e], TYPE), 0u);
    dx_store_each(dx_offset + at[0], made);
}
