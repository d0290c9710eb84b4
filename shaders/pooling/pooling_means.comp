//@ op DML_OPERATOR_AVERAGE_POOLING DML_OPERATOR_AVERAGE_POOLING1
//@ variants LAYOUT: first last ; SUB: tree subgroups
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#if defined(SUB_subgroups)
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
// Means of whole planes of floats. Channels first: a plane is contiguous, and a workgroup adds up a part of one.
// Channels last: each invocation adds up a vector of channels, of some pixels of a part. The last workgroup of
// a plane or of LANES vectors adds up the parts.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint LANES = 1u;  // vectors of channels of a workgroup
layout(constant_id = 3) const uint DEEP = 8u;   // vectors that an invocation reads at once
layout(push_constant) uniform Push {
    uint groups;       // planes, or LANES vectors of channels, in all images
    uint per_image;
    uint vectors;      // of channels: of an image
    uint pixels;       // or vectors of a plane
    uint parts;
    uint part_pixels;
    uint x_strides[3];  // image, plane or vector of channels, pixel, all in vectors
    uint y_strides[2];
    float count;
    uint x_offset;
    uint y_offset;
    uint totals_offset;
    uint arrived_offset;
};
#include "include/grid.glsl"
#include "include/typed.glsl"
#include "include/planes_vector.glsl"
INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, TYPE)
layout(binding = 2) coherent buffer Totals { float totals[]; };
#define ARRIVED_BINDING 3
#include "include/arrived.glsl"
#if defined(LAYOUT_first)
const uint WIDTH = 1u, ROOM = 1u;
#else
const uint WIDTH = VECTOR, ROOM = 8u;
#endif
const uint SHARES = gl_WorkGroupSize.x / LANES, OWN = LANES * WIDTH, PITCH = SHARES + 1u;
shared float s_sums[gl_WorkGroupSize.x * ROOM + LANES * ROOM];

#if defined(SUB_subgroups)
uint number() { return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID; }

// Adds up the sums of the workgroup's invocations for each of its OWN channels. Subgroups are full: each has several
// shares of all lanes.
float added_up(float sums[WIDTH], uint i) {
    barrier();  // what an earlier call left has been read
    for (uint step = LANES; step < gl_SubgroupSize; step *= 2u)
        [[unroll]] for (uint e = 0u; e < WIDTH; ++e) sums[e] += subgroupShuffleXor(sums[e], step);
    if (gl_SubgroupInvocationID < LANES)
        [[unroll]] for (uint e = 0u; e < WIDTH; ++e)
            s_sums[gl_SubgroupID * OWN + gl_SubgroupInvocationID * WIDTH + e] = sums[e];
    barrier();
    float sum = 0.0;
    for (uint k = 0u; k < gl_NumSubgroups; ++k) sum += s_sums[k * OWN + min(i, OWN - 1u)];
    return sum;
}
#else
uint number() { return gl_LocalInvocationIndex; }

// Adds up the sums of the workgroup's invocations for each of its OWN channels, eight at a time.
float added_up(float sums[WIDTH], uint i) {
    uint lane = i % LANES, share = i / LANES;
    [[unroll]] for (uint e = 0u; e < WIDTH; ++e) s_sums[(lane * WIDTH + e) * PITCH + share] = sums[e];
    for (uint n = SHARES; n > 1u; n = (n + 7u) / 8u) {
        barrier();
        uint left = (n + 7u) / 8u, channel = i / left, first = i % left;
        float some = 0.0;
        if (channel < OWN)
            [[unroll]] for (uint k = 0u; k < 8u; ++k)
                if (first * 8u + k < n) some += s_sums[channel * PITCH + first * 8u + k];
        barrier();
        if (channel < OWN) s_sums[channel * PITCH + first] = some;
    }
    barrier();
    return s_sums[min(i, OWN - 1u) * PITCH];
}
#endif

void main() {
    uint part = group_index() % parts, group = group_index() / parts;
    if (group >= groups) return;
    uint i = number(), lane = i % LANES, share = i / LANES;
    uint image = group / per_image, own = (group - image * per_image) * LANES + lane;
    uint from = x_offset / VECTOR + image * x_strides[0] + min(own, vectors - 1u) * x_strides[1];
    uint begin = part * part_pixels, end = min(begin + part_pixels, pixels);
    float sums[WIDTH];
    [[unroll]] for (uint e = 0u; e < WIDTH; ++e) sums[e] = 0.0;
    for (uint p = begin + share; p < end; p += DEEP * SHARES) {
        uvec4 read[DEEP];
        [[unroll]] for (uint d = 0u; d < DEEP; ++d)
            read[d] = x_vectors[from + min(p + d * SHARES, end - 1u) * x_strides[2]];
        [[unroll]] for (uint d = 0u; d < DEEP; ++d) {
            bool there = p + d * SHARES < end;
            uvec4 vector = there ? read[d] : uvec4(0u);
            float some = 0.0;
            [[unroll]] for (uint e = 0u; e < VECTOR; ++e) {
                if (WIDTH == 1u) some += element(vector, e);
                else sums[min(e, WIDTH - 1u)] += element(vector, e);
            }
            if (WIDTH == 1u) sums[0] += some;
        }
    }
    float sum = added_up(sums, i);
    if (parts > 1u) {
        uint to = totals_offset + (group * parts + part) * OWN;
        if (i < OWN) totals[to + i] = sum;
        if (!arrives_last(group, parts)) return;
        [[unroll]] for (uint e = 0u; e < WIDTH; ++e) sums[e] = 0.0;
        for (uint p = share; p < parts; p += SHARES) {
            uint at = totals_offset + (group * parts + p) * OWN + lane * WIDTH;
            [[unroll]] for (uint e = 0u; e < WIDTH; ++e) sums[e] += totals[at + e];
        }
        sum = added_up(sums, i);
    }
    uint channel = (group - image * per_image) * OWN + i;
    if (i < OWN && channel < vectors * WIDTH)
        y_store_float(y_offset + image * y_strides[0] + channel * y_strides[1], sum / count);
}
