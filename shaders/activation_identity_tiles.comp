//@ op DML_OPERATOR_ACTIVATION_IDENTITY
//@ variants T: b16 b32
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/grid.glsl"
#include "include/vectors.glsl"
#include "include/parts.glsl"

// Copies elements as bits where what lies gapless in the input, P, is not what does in the output, Q.
// A workgroup turns TILE_P * TILE_Q elements of each of PLANES such planes. An invocation reads a
// square block along P, one vector a row, turns it in registers and leaves it in shared memory, from
// where all write along Q. The sizes are those of P and Q, inner and outer part each; the strides are
// those of Q in the input, of P in the output.
layout(constant_id = 2) const uint TILE_P = 64u;
layout(constant_id = 3) const uint TILE_Q = 64u;
layout(constant_id = 4) const uint PLANES = 1u;

const uint SIDE = PER_VECTOR;  // of a block
const uint P_BLOCKS = TILE_P / SIDE;
const uint Q_BLOCKS = TILE_Q / SIDE;
// Blocks of a row change places, by their row: then columns of blocks meet all banks.
const uint SWIZZLE = Q_BLOCKS < 8u ? Q_BLOCKS - 1u : 7u;
shared uvec4 s_tile[256u * SIDE];

uint tile_index(uint plane, uint p_block, uint q_block, uint e) {
    uint row = (plane * P_BLOCKS + p_block) * SIDE + e;
    return row * Q_BLOCKS + (q_block ^ p_block & SWIZZLE);
}

uint in_q(uint q) {
    uint outer = sizes[3] == 1u ? 0u : q / sizes[2];
    return (q - outer * sizes[2]) * in_strides[0] + outer * in_strides[1];
}

uint out_p(uint p) {
    uint outer = sizes[1] == 1u ? 0u : p / sizes[0];
    return (p - outer * sizes[0]) * out_strides[0] + outer * out_strides[1];
}

// What there is of a vector that begins at element ``from``.
uvec4 load_part(uint from, uint have) {
    if (have >= PER_VECTOR) return load_vector(from);
    uvec4 vector = uvec4(0u);
    for (uint e = 0u; e < have; ++e) set_element(vector, e, LOAD_ELEMENT(in_words, from + e));
    return vector;
}

void turn(uvec4 rows[SIDE], out uvec4 columns[SIDE]) {
    [[unroll]] for (uint c = 0u; c < 4u; ++c) {
#if defined(ELEMENT_BITS)
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            uint even = rows[2u * i][c], odd = rows[2u * i + 1u][c];
            columns[2u * c][i] = even & 0xFFFFu | odd << 16u;
            columns[2u * c + 1u][i] = even >> 16u | odd & 0xFFFF0000u;
        }
#else
        columns[c] = uvec4(rows[0][c], rows[1][c], rows[2][c], rows[3][c]);
#endif
    }
}

void main() {
    uint p_size = sizes[0] * sizes[1];
    uint q_size = sizes[2] * sizes[3];
    uint p_tiles = (p_size + TILE_P - 1u) / TILE_P;
    uint q_tiles = (q_size + TILE_Q - 1u) / TILE_Q;
    uint rest = group_index() / p_tiles;
    uint p_begin = (group_index() - rest * p_tiles) * TILE_P;
    uint first_plane = rest / q_tiles;
    uint q_begin = (rest - first_plane * q_tiles) * TILE_Q;
    first_plane *= PLANES;
    if (first_plane >= count) return;
    // Nothing lies beyond an edge, all vectors are aligned: then no loads and stores hang on
    // conditions, and many are under way.
    uint inner = (sizes[1] == 1u ? 0u : sizes[0]) | (sizes[3] == 1u ? 0u : sizes[2]);
    bool plain = is_aligned() && inner % PER_VECTOR == 0u && first_plane + PLANES <= count
        && p_begin + TILE_P <= p_size && q_begin + TILE_Q <= q_size;

    uint block = gl_LocalInvocationID.x;
    uint plane = block / (P_BLOCKS * Q_BLOCKS);
    bool there = first_plane + plane < count;
    uvec2 at = part_offsets(first_plane + plane);
    uint p_block = block % P_BLOCKS;
    uint q_block = block / P_BLOCKS % Q_BLOCKS;
    uint p = p_begin + p_block * SIDE;
    uint q = q_begin + q_block * SIDE;
    uvec4 rows[SIDE];
    if (plain) {
        uint from = at.x + p + in_q(q);
        [[unroll]] for (uint e = 0u; e < SIDE; ++e)
            rows[e] = in_vectors[(from + e * in_strides[0]) / PER_VECTOR];
    } else {
        [[unroll]] for (uint e = 0u; e < SIDE; ++e) {
            rows[e] = uvec4(0u);
            if (there && p < p_size && q + e < q_size)
                rows[e] = load_part(at.x + p + in_q(q + e), p_size - p);
        }
    }
    uvec4 columns[SIDE];
    turn(rows, columns);
    [[unroll]] for (uint e = 0u; e < SIDE; ++e)
        s_tile[tile_index(plane, p_block, q_block, e)] = columns[e];
    barrier();

    q_block = block % Q_BLOCKS;
    p_block = block / Q_BLOCKS % P_BLOCKS;
    p = p_begin + p_block * SIDE;
    q = q_begin + q_block * SIDE;
    if (plain) {
        uint to = at.y + q + out_p(p);
        [[unroll]] for (uint e = 0u; e < SIDE; ++e)
            out_vectors[(to + e * out_strides[0]) / PER_VECTOR]
                = s_tile[tile_index(plane, p_block, q_block, e)];
    } else if (there && q < q_size) {
        for (uint e = 0u; e < SIDE && p + e < p_size; ++e)
            store_vector(at.y + q + out_p(p + e), min(PER_VECTOR, q_size - q),
                         s_tile[tile_index(plane, p_block, q_block, e)]);
    }
}
