//@ op DML_OPERATOR_CONVOLUTION
//@ glslang >= 14
//@ target vulkan1.1
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
// Convolutions of images with few channels on matrix units: the first layers of networks. A workgroup copies the part of the image that its outputs reach to shared memory, each pixel filled
// up to LANES channels. There the pixels of neighbouring outputs are rows of a matrix that overlap, so that
// nothing is stored twice. Each subgroup keeps its columns of the filter in registers.
layout(constant_id = 1) const bool HAS_BIAS = false;
layout(constant_id = 2) const uint FILTER_ROWS = 7u;
layout(constant_id = 3) const uint ROW_STEPS = 2u;    // steps of K for a row of the filter
layout(constant_id = 4) const uint LANES = 4u;
layout(constant_id = 5) const uint CHANNELS = 3u;     // of the image
layout(constant_id = 6) const uint PITCH = 1u;        // vectors of a row in shared memory
layout(constant_id = 7) const uint PATCH_ROWS = 1u;
layout(constant_id = 8) const uint STEP = 1u;         // vectors from output to output
layout(constant_id = 9) const uint ACROSS = 7u;       // fragments of 16 outputs along a row
layout(constant_id = 10) const uint DOWN = 2u;        // rows of outputs at a time
layout(constant_id = 11) const uint STRIDE_Y = 2u;
layout(constant_id = 12) const uint DILATION_Y = 1u;
layout(constant_id = 13) const uint STRIDE_X = 2u;
layout(constant_id = 14) const uint LOADS = 1u;       // vectors in shared memory for each invocation
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint column_tiles;
    uint x_tiles;
    uint y_tiles;
    uint bands;  // of DOWN rows, in a workgroup
    uint batches;
    uint out_channels;
    int in_sizes[2];  // y, x
    uint out_sizes[2];
    int first[2];  // the first tap of the first output
    uint x_strides[4];  // batch, channel, y, x
    uint y_strides[3];  // batch, y, x
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
uint group_index() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}
layout(binding = 0) readonly buffer Input { float16_t x_halves[]; };
const uint SIDEWAYS = 2u, SUBGROUPS = 4u, COLUMNS = 2u, STEPS = FILTER_ROWS * ROW_STEPS;
#include "include/resident_filter.glsl"

shared uvec4 s_patch[PATCH_ROWS * PITCH];
const uint PIXELS = 8u / LANES;  // in a vector

void main() {
    uint index = group_index();
    uint column_tile = index % column_tiles * TILE_COLUMNS;
    index /= column_tiles;
    uint x_begin = index % x_tiles * ACROSS * FRAGMENT;
    index /= x_tiles;
    uint y_begin = index % y_tiles * bands * DOWN;
    uint batch = index / y_tiles;
    if (batch >= batches) return;
    uint i = gl_LocalInvocationIndex;
    fill_bias(column_tile);
    uint part_column = gl_SubgroupID % SIDEWAYS * PART_COLUMNS;
    KEEP_FILTER(taps, column_tile, part_column)

    uint x_from = x_offset + batch * x_strides[0];
    int left = int(x_begin * STRIDE_X) + first[1];
    // What is asked for is not used before it is stored, so that nothing waits for it. ``kept`` has a bit for each
    // pixel inside the image.
    float16_t next[LOADS][PIXELS * CHANNELS];
    uint kept;
#define ASK(row) \
    { \
        int top = int((row) * STRIDE_Y) + first[0]; \
        kept = 0u; \
        [[unroll]] for (uint l = 0u; l < LOADS; ++l) { \
            uint at = i + l * INVOCATIONS; \
            int y = top + int(at / PITCH), x = left + int(at % PITCH * PIXELS); \
            [[unroll]] for (uint p = 0u; p < PIXELS; ++p) { \
                bool inside = uint(y) < uint(in_sizes[0]) && uint(x + int(p)) < uint(in_sizes[1]); \
                kept |= inside ? 1u << l * PIXELS + p : 0u; \
                uint from = inside ? x_from + uint(y) * x_strides[2] + uint(x + int(p)) * x_strides[3] : x_from; \
                [[unroll]] for (uint c = 0u; c < CHANNELS; ++c) \
                    next[l][p * CHANNELS + c] = x_halves[from + c * x_strides[1]]; \
            } \
        } \
    }
    ASK(y_begin)
    uint strip = gl_SubgroupID * STRIP;
    for (uint band = 0u; band < bands; ++band) {
        uint y_first = y_begin + band * DOWN;
        if (y_first >= out_sizes[0]) break;
        if (band > 0u) barrier();
        [[unroll]] for (uint l = 0u; l < LOADS; ++l) {
            uint at = i + l * INVOCATIONS;
            uvec4 vector;
            [[unroll]] for (uint w = 0u; w < 4u; ++w) {
                float16_t two[2];
                [[unroll]] for (uint e = 0u; e < 2u; ++e) {
                    uint c = (2u * w + e) % LANES, p = (2u * w + e) / LANES;
                    bool inside = (kept >> l * PIXELS + p & 1u) != 0u;
                    two[e] = c < CHANNELS && inside ? next[l][p * CHANNELS + min(c, CHANNELS - 1u)] : float16_t(0.0);
                }
                vector[w] = packFloat2x16(f16vec2(two[0], two[1]));
            }
            if (at < PATCH_ROWS * PITCH) s_patch[at] = vector;
        }
        barrier();
        ASK(y_first + DOWN)
        for (uint f = gl_SubgroupID / SIDEWAYS; f < ACROSS * DOWN; f += SUBGROUPS / SIDEWAYS) {
            Product products[COLUMNS];
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) products[c] = Product(0);
            uint from = f / ACROSS * STRIDE_Y * PITCH + f % ACROSS * FRAGMENT * STEP;
            [[unroll]] for (uint s = 0u; s < STEPS; ++s) {
                RowFragment pixels;
                coopMatLoad(pixels, s_patch, from + s / ROW_STEPS * DILATION_Y * PITCH + s % ROW_STEPS * 2u, STEP,
                            gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                    products[c] = coopMatMulAdd(pixels, taps[s][c], products[c]);
            }
            uint y = y_first + f / ACROSS, x = x_begin + f % ACROSS * FRAGMENT + gl_SubgroupInvocationID / 2u;
            bool there = y < out_sizes[0] && x < out_sizes[1];
            uint place = batch * y_strides[0] + y * y_strides[1] + x * y_strides[2];
            STORE(products, 0, there, place)
            STORE(products, 1, there, place)
        }
    }
}
