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
#if defined(T_b8)
#include "include/bytes.glsl"
#endif

// Copies elements as bits where P is contiguous in the input, and Q in the output.
// A workgroup transposes a tile, whose sides are powers of two, of each of several planes. An invocation reads a square
// block, one vector along P at a time. It transposes the block in registers and stores it in shared
// memory. From there, all invocations write vectors along Q. The sizes are those of P and Q, each with an
// inner and an outer part. The strides are those of Q in the input, and of P in the output.
layout(constant_id = 2) const uint VECTORS = 1024u;  // of the tiles of all planes

const uint SIDE = PER_VECTOR;  // of a block
#define P_BITS tile_bits[0]
#define Q_BITS tile_bits[1]
#define TILE_P (SIDE << P_BITS)
#define TILE_Q (SIDE << Q_BITS)
#define P_BLOCKS (1u << P_BITS)
#define Q_BLOCKS (1u << Q_BITS)
#define PLANES (1u << tile_bits[2])
shared uvec4 s_tile[VECTORS];

// Vectors are permuted within a row of blocks, so that neighbours along P and Q use all banks.
uint tile_index(uint row, uint q_block) {
    return (row << Q_BITS) + q_block ^ row / SIDE & 7u;
}

uint in_q(uint q) {
    uint outer = sizes[3] == 1u ? 0u : q / sizes[2];
    return (q - outer * sizes[2]) * in_strides[0] + outer * in_strides[1];
}

uint out_p(uint p) {
    uint outer = sizes[1] == 1u ? 0u : p / sizes[0];
    return (p - outer * sizes[0]) * out_strides[0] + outer * out_strides[1];
}

// The first ``have`` elements of a vector that begins at element ``from``.
uvec4 load_part(uint from, uint have) {
    if (have >= PER_VECTOR) return load_vector(from);
    uvec4 vector = uvec4(0u);
    for (uint e = 0u; e < have; ++e) set_element(vector, e, x_bits(from + e));
    return vector;
}

void transpose_words(uvec4 a, uvec4 b, uvec4 c, uvec4 d, out uvec4 x, out uvec4 y, out uvec4 z, out uvec4 w) {
    x = uvec4(a.x, b.x, c.x, d.x);
    y = uvec4(a.y, b.y, c.y, d.y);
    z = uvec4(a.z, b.z, c.z, d.z);
    w = uvec4(a.w, b.w, c.w, d.w);
}

// Two rows' elements of 16 bits: those in the lower halves of words, and those in the upper ones.
uvec4 lower(uvec4 even, uvec4 odd) {
    return even & 0xFFFFu | odd << 16u;
}

uvec4 upper(uvec4 even, uvec4 odd) {
    return even >> 16u | odd & 0xFFFF0000u;
}

void transpose_block(uvec4 r[SIDE], out uvec4 c[SIDE]) {
#if defined(T_b64)
    c[0] = uvec4(r[0].xy, r[1].xy);
    c[1] = uvec4(r[0].zw, r[1].zw);
#elif defined(T_b8)
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        [[unroll]] for (uint w = 0u; w < 4u; ++w) {
            uint k = 4u * i;
            uvec4 columns = transposed(uvec4(r[k][w], r[k + 1u][w], r[k + 2u][w], r[k + 3u][w]));
            [[unroll]] for (uint j = 0u; j < 4u; ++j) c[4u * w + j][i] = columns[j];
        }
    }
#elif defined(T_b16)
    transpose_words(lower(r[0], r[1]), lower(r[2], r[3]), lower(r[4], r[5]), lower(r[6], r[7]),
               c[0], c[2], c[4], c[6]);
    transpose_words(upper(r[0], r[1]), upper(r[2], r[3]), upper(r[4], r[5]), upper(r[6], r[7]),
               c[1], c[3], c[5], c[7]);
#else
    transpose_words(r[0], r[1], r[2], r[3], c[0], c[1], c[2], c[3]);
#endif
}

void main() {
    uint p_size = sizes[0] * sizes[1];
    uint q_size = sizes[2] * sizes[3];
    uint p_tiles = (p_size + TILE_P - 1u) / SIDE >> P_BITS;
    uint q_tiles = (q_size + TILE_Q - 1u) / SIDE >> Q_BITS;
    uint rest = group_index() / p_tiles;
    uint p_begin = (group_index() - rest * p_tiles) * TILE_P;
    uint first_plane = rest / q_tiles;
    uint q_begin = (rest - first_plane * q_tiles) * TILE_Q;
    first_plane *= PLANES;
    if (first_plane >= count) return;
    // The tile crosses no edge, and all vectors are aligned. Then loads and stores are unconditional, and
    // many are in flight.
    uint inner = (sizes[1] == 1u ? 0u : sizes[0]) | (sizes[3] == 1u ? 0u : sizes[2]);
    bool plain = is_aligned() && inner % PER_VECTOR == 0u && first_plane + PLANES <= count
        && p_begin + TILE_P <= p_size && q_begin + TILE_Q <= q_size;

    uint block = gl_LocalInvocationID.x;
    uint plane = block >> P_BITS + Q_BITS;
    bool there = first_plane + plane < count;
    uvec2 at = part_offsets(first_plane + plane);
    uint p_block = block & P_BLOCKS - 1u;
    uint q_block = block >> P_BITS & Q_BLOCKS - 1u;
    uint p = p_begin + p_block * SIDE;
    uint q = q_begin + q_block * SIDE;
    uvec4 rows[SIDE];
    if (plain) {
        uint from = at.x + p + in_q(q);
        [[unroll]] for (uint e = 0u; e < SIDE; ++e)
            rows[e] = x_vectors[(from + e * in_strides[0]) / PER_VECTOR];
    } else {
        // Rows pass through shared memory, because a loop that is not unrolled cannot index registers.
        uint slot = gl_LocalInvocationID.x;
        for (uint e = 0u; e < SIDE; ++e) {
            uvec4 row = uvec4(0u);
            if (there && p < p_size && q + e < q_size)
                row = load_part(at.x + p + in_q(q + e), p_size - p);
            s_tile[e * gl_WorkGroupSize.x + slot] = row;
        }
        [[unroll]] for (uint e = 0u; e < SIDE; ++e) rows[e] = s_tile[e * gl_WorkGroupSize.x + slot];
        barrier();
    }
    uvec4 columns[SIDE];
    transpose_block(rows, columns);
    [[unroll]] for (uint e = 0u; e < SIDE; ++e)
        s_tile[tile_index(plane * TILE_P + p_block * SIDE + e, q_block)] = columns[e];
    barrier();

    q_block = block & Q_BLOCKS - 1u;
    p_block = block >> Q_BITS & P_BLOCKS - 1u;
    q = q_begin + q_block * SIDE;
    // Memory writes at least two vectors at once. So where a row of the tile is one vector, neighbouring
    // invocations write consecutive rows.
    if (plain && Q_BITS > 0u) {
        uint to = at.y + q + out_p(p_begin + p_block * SIDE);
        [[unroll]] for (uint e = 0u; e < SIDE; ++e)
            y_vectors[(to + e * out_strides[0]) / PER_VECTOR]
                = s_tile[tile_index(plane * TILE_P + p_block * SIDE + e, q_block)];
        return;
    }
    [[unroll]] for (uint e = 0u; e < SIDE; ++e) {
        uint row = e * P_BLOCKS + p_block;
        uint to = at.y + q + out_p(p_begin + row);
        uvec4 vector = s_tile[tile_index(plane * TILE_P + row, q_block)];
        if (plain) y_vectors[to / PER_VECTOR] = vector;
        else if (there && p_begin + row < p_size && q < q_size)
            store_vector(to, min(PER_VECTOR, q_size - q), vector);
    }
}
