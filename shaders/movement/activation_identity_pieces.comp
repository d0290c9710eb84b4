//@ op DML_OPERATOR_ACTIVATION_IDENTITY
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/grid.glsl"
#include "include/vectors.glsl"
#include "include/parts.glsl"

// Copies elements as bits where pieces of whole vectors are contiguous in both tensors. P is the
// dimension whose pieces are neighbours in the input, Q the one whose pieces are neighbours in the
// output. A group of LANES copies TILE_P by TILE_Q pieces, TILE_K vectors of each, and an invocation EACH
// vectors. The sizes are those of a piece (in vectors), of P and of Q. The strides are those of P and Q.
layout(constant_id = 2) const uint TILE_K = 4u;
layout(constant_id = 3) const uint TILE_P = 8u;
layout(constant_id = 4) const uint TILE_Q = 8u;
const uint EACH = 4u;
const uint LANES = TILE_K * TILE_P * TILE_Q / EACH;

void main() {
    uint lane = gl_LocalInvocationID.x % LANES;
    uint tile = group_index() * (gl_WorkGroupSize.x / LANES) + gl_LocalInvocationID.x / LANES;
    uvec3 tiles = (uvec3(sizes[0], sizes[1], sizes[2]) + uvec3(TILE_K, TILE_P, TILE_Q) - 1u)
        / uvec3(TILE_K, TILE_P, TILE_Q);
    uint rest = tile / tiles.x;
    uvec3 first = uvec3(tile - rest * tiles.x, rest % tiles.y, rest / tiles.y % tiles.z)
        * uvec3(TILE_K, TILE_P, TILE_Q);
    uint plane = rest / (tiles.y * tiles.z);
    if (plane >= count) return;
    uvec2 at = part_offsets(plane);
    bool aligned = is_aligned();

    uvec4 vectors[EACH];
    uint to[EACH];
    bool there[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        uint v = e * LANES + lane;
        uvec3 kpq = first + uvec3(v % TILE_K, v / (TILE_K * TILE_Q), v / TILE_K % TILE_Q);
        uvec3 last = uvec3(sizes[0], sizes[1], sizes[2]) - 1u;
        there[e] = all(lessThanEqual(kpq, last));
        // Beyond an edge the last vector is read again, because conditional loads do not overlap.
        kpq = min(kpq, last);
        uvec2 place = at + kpq.x * PER_VECTOR + kpq.y * uvec2(in_strides[0], out_strides[0])
            + kpq.z * uvec2(in_strides[1], out_strides[1]);
        to[e] = place.y;
        vectors[e] = x_vectors[place.x / PER_VECTOR];
        if (!aligned) vectors[e] = load_vector(place.x);
    }
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        if (!there[e]) continue;
        if (aligned) y_vectors[to[e] / PER_VECTOR] = vectors[e];
        else store_vector(to[e], PER_VECTOR, vectors[e]);
    }
}
