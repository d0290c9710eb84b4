// What the shaders of depthwise convolutions share: push constants, tensors, filters and bias. The includer
// has the constants TYPE, of all tensors, and HAS_BIAS.
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint batches;
    uint channels;
    uint x_sizes[2];    // y, x
    uint y_sizes[2];
    int padding[2];     // before the first row and column
    uint x_strides[4];  // batch, channel, y, x
    uint y_strides[4];
    uint w_strides[3];  // channel, y, x; along y and x in the order of the input, also of mirrored filters
    uint w_first;       // the first tap of a filter in this order
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
layout(binding = 0) readonly buffer XPairs { uvec2 x_pairs[]; };
layout(binding = 2) writeonly buffer YPairs { uvec2 y_pairs[]; };

float filter_at(uint channel, uint ky, uint kx) {
    return w_float(w_offset + w_first + channel * w_strides[0] + ky * w_strides[1] +
                   kx * w_strides[2]);
}

float bias_at(uint channel) {
    return HAS_BIAS ? bias_float(bias_offset + channel * bias_stride) : 0.0;
}
