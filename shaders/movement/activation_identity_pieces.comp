//@ op DML_OPERATOR_ACTIVATION_IDENTITY
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/grid.glsl"
#include "include/vectors.glsl"
#define MOST_RANK 6  // two of the dimensions or more are in a part
#define PARTS_FIELDS uint tile_bits[3];
#include "include/parts.glsl"

// Copies elements as bits where pieces of whole vectors are contiguous in both tensors. P is the
// dimension whose pieces are neighbours in the input, Q the one whose pieces are neighbours in the
// output. A group of lanes copies a tile of pieces, some vectors of each: powers of two, whose logarithms are
// the tile's bits. An invocation copies EACH vectors. The sizes are those of a piece (in vectors), of P and of Q. The strides are those of P and Q.
#define K_BITS tile_bits[0]
#define P_BITS tile_bits[1]
#define Q_BITS tile_bits[2]
const uint EACH_BITS = 2u, EACH = 1u << EACH_BITS;

void main() {
    uint lane_bits = K_BITS + P_BITS + Q_BITS - EACH_BITS, lanes = 1u << lane_bits;
    uint lane = gl_LocalInvocationID.x & lanes - 1u;
    uint tile = group_index() * (gl_WorkGroupSize.x >> lane_bits) + (gl_LocalInvocationID.x >> lane_bits);
    uvec3 bits = uvec3(K_BITS, P_BITS, Q_BITS);
    uvec3 tiles = uvec3(sizes[0], sizes[1], sizes[2]) + (uvec3(1u) << bits) - 1u >> bits;
    uint rest = tile / tiles.x;
    uvec3 first = uvec3(tile - rest * tiles.x, rest % tiles.y, rest / tiles.y % tiles.z) << bits;
    uint plane = rest / (tiles.y * tiles.z);
    if (plane >= count) return;
    uvec2 at = part_offsets(plane);
    bool aligned = is_aligned();

    uvec4 vectors[EACH];
    uint to[EACH];
    bool there[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        uint v = (e << lane_bits) + lane;
        uvec3 kpq = first + uvec3(v & (1u << K_BITS) - 1u, v >> K_BITS + Q_BITS, v >> K_BITS & (1u << Q_BITS) - 1u);
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
