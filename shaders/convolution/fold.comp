//@ op DML_OPERATOR_FOLD DML_OPERATOR_UNFOLD
//@ variants TO: image columns
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Copies blocks of an image {N, C, spatial..} to columns {N, C * window, blocks}, or sums columns to an
// image. An invocation computes one element. The params buffer has for each spatial dimension, the last
// one first: window, stride, dilation, start padding, size, blocks, stride of the image.
layout(constant_id = 1) const uint TYPE = 36u;
layout(push_constant) uniform Push {
    uint count;
    uint axes;
    uint channels;
    uint window;  // its points
    uint blocks;
    uint pixels;
    uint image_strides[2];   // batch, channel
    uint column_strides[3];  // batch, point, block
    uint x_offset;
    uint y_offset;
    uint params_offset;
};
#define PARAMS_BINDING 2
#include "include/grid.glsl"
#include "include/params.glsl"
#include "include/typed.glsl"
INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, TYPE)
const uint WORDS = 7u;

uvec2 plus(uvec2 a, uvec2 b) {
    uint carry;
    uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

#if defined(TO_columns)
void main() {
    uint index = invocation_index();
    if (index >= count) return;
    uint block = index % blocks, point = index / blocks % window;
    uint channel = index / blocks / window % channels, batch = index / blocks / window / channels;
    uint to = y_offset + batch * column_strides[0] +
              (channel * window + point) * column_strides[1] + block * column_strides[2];
    uint from = x_offset + batch * image_strides[0] + channel * image_strides[1];
    bool inside = true;
    for (uint a = 0u; a < axes; ++a) {
        uint at = a * WORDS;
        uint place = block % param(at + 5u) * param(at + 1u) +
                     point % param(at) * param(at + 2u) - param(at + 3u);
        inside = inside && place < param(at + 4u);
        from += place * param(at + 6u);
        block /= param(at + 5u);
        point /= param(at);
    }
    y_store_bits(to, inside ? x_bits(from) : uvec2(0u));
}
#else
void main() {
    uint index = invocation_index();
    if (index >= count) return;
    uint pixel = index % pixels, channel = index / pixels % channels;
    uint batch = index / pixels / channels;
    uint to = y_offset + batch * image_strides[0] + channel * image_strides[1];
    for (uint a = 0u, left = pixel; a < axes; ++a) {
        to += left % param(a * WORDS + 4u) * param(a * WORDS + 6u);
        left /= param(a * WORDS + 4u);
    }
    float sum = 0.0;
    uvec2 whole = uvec2(0u);
    for (uint point = 0u; point < window; ++point) {
        uint left = pixel, k = point, block = 0u, below = 1u;
        bool meets = true;
        for (uint a = 0u; a < axes; ++a) {
            uint at = a * WORDS, stride = param(at + 1u);
            uint place = left % param(at + 4u) + param(at + 3u), reach = k % param(at) * param(at + 2u);
            meets = meets && place >= reach && (place - reach) % stride == 0u &&
                    (place - reach) / stride < param(at + 5u);
            block += (place - reach) / stride * below;
            below *= param(at + 5u);
            left /= param(at + 4u);
            k /= param(at);
        }
        if (!meets) continue;
        uint from = x_offset + batch * column_strides[0] +
                    (channel * window + point) * column_strides[1] + block * column_strides[2];
        if (IS_FLOAT(TYPE)) sum += x_float(from);
        else whole = plus(whole, x_bits(from));
    }
    if (IS_FLOAT(TYPE)) y_store_float(to, sum);
    else y_store_bits(to, whole);
}
#endif
