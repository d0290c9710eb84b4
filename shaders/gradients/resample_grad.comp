//@ op DML_OPERATOR_RESAMPLE_GRAD DML_OPERATOR_RESAMPLE_GRAD1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation computes the gradient of one element x of the forward operator's input: the weighted sum
// of the gradients of the outputs y that read x. It searches a range that contains all of these y. The
// weight comes from the forward operator's own expression.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool LINEAR = true;
layout(constant_id = 3) const uint ROUNDING = 0u;  // 0: halves up, 1: up, 2: down
layout(constant_id = 34) const bool IEEE_UNITS = false;
#define HAS_IEEE_UNITS IEEE_UNITS
layout(push_constant) uniform Push {
    uint count;
    uint x_sizes[4];
    uint y_sizes[4];
    uint y_strides[4];
    float scales[4];
    float x_offsets[4];
    float y_offsets[4];
    uint dy_offset;
    uint dx_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/float_pairs.glsl"

INPUT_TENSOR(dy, 0, TYPE)
OUTPUT_TENSOR(dx, 1, TYPE)
// dx, and its four coordinates
WALK(walk, 5)

uint clamped(float i, uint axis) {
    return uint(clamp(int(i), 0, int(x_sizes[axis]) - 1));
}

// The weight of x in y along an axis.
float weight(uint y, uint x, uint axis) {
    precise float place = float(y) - y_offsets[axis];
    place = divide(place, scales[axis]);
    place = place - x_offsets[axis];
    place = clamp(place, -1.0, float(x_sizes[axis]));
    if (!LINEAR) {
        float whole = ROUNDING == 0u ? floored(place + 0.5)
                    : ROUNDING == 1u ? ceiled(place) : floored(place);
        return clamped(whole, axis) == x ? 1.0 : 0.0;
    }
    float whole = floored(place), second = place - whole, result = 0.0;
    if (clamped(whole, axis) == x) result += 1.0 - second;
    if (clamped(whole + 1.0, axis) == x) result += second;
    return result;
}

// The first y that may read x; with ``side`` 1, one past the last. Rounding makes the range wider by two
// than exact arithmetic would need.
uint bound(uint x, uint axis, uint side) {
    uint edge = side == 0u ? 0u : x_sizes[axis] - 1u;
    if (x == edge) return side == 0u ? 0u : y_sizes[axis];
    float place = float(x) + (side == 0u ? -1.0 : 1.0) + x_offsets[axis];
    float y = place * scales[axis] + y_offsets[axis] + (side == 0u ? -3.0 : 4.0);
    return uint(clamp(y, 0.0, float(y_sizes[axis])));
}

void main() {
    uint item = invocation_index();
    if (item >= count) return;
    uint[5] at = walk(0u, item);
    uint low[4], high[4];
    [[unroll]] for (uint a = 0u; a < 4u; ++a) {
        low[a] = bound(at[1u + a], a, 0u);
        high[a] = bound(at[1u + a], a, 1u);
    }
    float sum = 0.0;
    for (uint n = low[0]; n < high[0]; ++n) {
        float by_n = weight(n, at[1], 0u);
        if (by_n == 0.0) continue;
        for (uint c = low[1]; c < high[1]; ++c) {
            float by_c = by_n * weight(c, at[2], 1u);
            if (by_c == 0.0) continue;
            for (uint h = low[2]; h < high[2]; ++h) {
                float by_h = by_c * weight(h, at[3], 2u);
                if (by_h == 0.0) continue;
                uint row = dy_offset + n * y_strides[0] + c * y_strides[1] + h * y_strides[2];
                for (uint w = low[3]; w < high[3]; ++w) {
                    float by_w = by_h * weight(w, at[4], 3u);
                    if (by_w != 0.0) sum += by_w * dy_float(row + w * y_strides[3]);
                }
            }
        }
    }
    dx_store_float(dx_offset + at[0], sum);
}
