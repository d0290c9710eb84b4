//@ op DML_OPERATOR_ELEMENT_WISE_QUANTIZED_LINEAR_ADD
#version 450
#extension GL_GOOGLE_include_directive : require
// Computes the three factors of a sum, for devices that do not bind 9 storage buffers at once.
layout(local_size_x = 1) in;
layout(constant_id = 2) const uint OUT_TYPE = 1u;
layout(constant_id = 3) const uint A_TYPE = 1u;
layout(constant_id = 4) const uint B_TYPE = 1u;
layout(push_constant) uniform Push {
    uint a_scale_offset;
    uint a_zero_offset;
    uint b_scale_offset;
    uint b_zero_offset;
    uint out_scale_offset;
    uint out_zero_offset;
    uint factors_offset;
};
#include "include/typed.glsl"
#define SCALARS_BINDING 0
#include "include/quantized_linear_add.glsl"
layout(binding = 6) writeonly buffer Factors { float factors[]; };

void main() {
    vec3 known = sum_factors();
    for (uint i = 0u; i < 3u; ++i) factors[factors_offset + i] = known[i];
}
