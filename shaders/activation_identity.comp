//@ op DML_OPERATOR_ACTIVATION_IDENTITY
//@ variants T: b16 b32 ; PATH: lines tiles
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/grid.glsl"
#include "include/vectors.glsl"

// Copies elements as bits.
// Path lines: WHOLE where the output's last dimension lies gapless and the input's too, or repeats one
// element; an invocation makes the part of a line that falls into one vector of output, and a packed
// tensor is one line. Otherwise it copies one element through strides.
// Path tiles: what lies gapless in the input, P, is not what does in the output, Q; a workgroup turns
// TILE_P * TILE_Q elements of each of PLANES such planes in shared memory.
#if defined(PATH_lines)
layout(constant_id = 1) const bool WHOLE = false;
#else
layout(constant_id = 2) const uint TILE_P = 64u;
layout(constant_id = 3) const uint TILE_Q = 64u;
layout(constant_id = 4) const uint PLANES = 1u;
#endif

// With tiles the first four sizes are those of P and Q, inner and outer part each; the first two
// strides are those of Q in the input, of P in the output.
layout(push_constant) uniform Push {
    uint in_offset;
    uint out_offset;
    uint count;
    uint rank;
    uint sizes[10];
    uint in_strides[8];
    uint out_strides[8];
};

#if defined(PATH_lines)
// 0 where every line of the output begins with a vector.
uint out_unaligned() {
    uint sum = out_offset;
    for (uint d = 0u; d + 1u < rank; ++d) sum |= out_strides[d];
    return sum % PER_VECTOR;
}

void copy_line_part(uint index) {
    uint size = sizes[rank - 1u];
    // A line meets so many vectors at most, one less where all begin and end with a vector.
    uint per_line = (size + PER_VECTOR - 2u) / PER_VECTOR + 1u;
    if (size % PER_VECTOR == 0u && out_unaligned() == 0u) --per_line;
    uint line = index / per_line;
    uint part = index - line * per_line;
    if (line >= count) return;
    uint from = in_offset;
    uint to = out_offset;
    for (uint d = rank - 1u; d-- > 0u;) {
        uint next = d == 0u ? 0u : line / sizes[d];
        uint coordinate = line - next * sizes[d];
        from += coordinate * in_strides[d];
        to += coordinate * out_strides[d];
        line = next;
    }
    uint vector = to / PER_VECTOR + part;
    uint first = max(vector * PER_VECTOR, to);
    uint last = min((vector + 1u) * PER_VECTOR, to + size);
    if (first >= last) return;
    bool repeats = in_strides[rank - 1u] == 0u;
    if (!repeats) from += first - to;
    if (last - first == PER_VECTOR) {
        out_vectors[vector] = repeats ? filled_vector(LOAD_ELEMENT(in_words, from)) : load_vector(from);
        return;
    }
    uint step = repeats ? 0u : 1u;
    for (uint e = first; e < last; ++e)
        STORE_ELEMENT(out_words, e, LOAD_ELEMENT(in_words, from + (e - first) * step));
}

void copy_element(uint index) {
    if (index >= count) return;
    uint from = in_offset;
    uint to = out_offset;
    for (uint d = rank; d-- > 0u;) {
        uint next = index / sizes[d];
        uint coordinate = index - next * sizes[d];
        from += coordinate * in_strides[d];
        to += coordinate * out_strides[d];
        index = next;
    }
    STORE_ELEMENT(out_words, to, LOAD_ELEMENT(in_words, from));
}

void main() {
    if (WHOLE) copy_line_part(invocation_index());
    else copy_element(invocation_index());
}
#else

#ifndef ELEMENT_BITS
#define ELEMENTS_PER_WORD 1u
#endif
const uint INVOCATIONS = 256u;  // the workgroup's, too
const uint P_WORDS = TILE_P / ELEMENTS_PER_WORD;
const uint P_VECTORS = TILE_P / PER_VECTOR;
const uint Q_VECTORS = TILE_Q / PER_VECTOR;
const uint PITCH = P_WORDS + 1u;  // so that columns meet all banks
const uint VECTORS = PLANES * TILE_Q * P_VECTORS;
const uint BLOCKS = PLANES * P_WORDS * Q_VECTORS;
shared uint s_tile[4096u + 1024u];  // a tile of 16 KiB, and the pitch of its shortest rows

void put(uint v, uvec4 vector) {
    uint word = v / P_VECTORS * PITCH + v % P_VECTORS * 4u;
    s_tile[word] = vector.x;
    s_tile[word + 1u] = vector.y;
    s_tile[word + 2u] = vector.z;
    s_tile[word + 3u] = vector.w;
}

shared uvec2 s_planes[256];  // where they begin

uvec2 plane_offsets(uint plane) {
    uvec2 at = uvec2(in_offset, out_offset);
    for (uint d = rank; d-- > 0u;) {
        uint next = d == 0u ? 0u : plane / sizes[4u + d];
        at += (plane - next * sizes[4u + d]) * uvec2(in_strides[2u + d], out_strides[2u + d]);
        plane = next;
    }
    return at;
}

// Where the vector that has number v in a tile begins in the input.
uint from_of(uint v, uint p_begin, uint q_begin, uint begin) {
    uint p = p_begin + v % P_VECTORS * PER_VECTOR;
    uint q = q_begin + v / P_VECTORS % TILE_Q;
    uint outer = sizes[3] == 1u ? 0u : q / sizes[2];
    if (PLANES > 1u) begin = s_planes[v / (P_VECTORS * TILE_Q)].x;
    return begin + p + (q - outer * sizes[2]) * in_strides[0] + outer * in_strides[1];
}

void main() {
    uint p_size = sizes[0] * sizes[1];
    uint q_size = sizes[2] * sizes[3];
    uint p_tiles = (p_size + TILE_P - 1u) / TILE_P;
    uint q_tiles = (q_size + TILE_Q - 1u) / TILE_Q;
    uint rest = group_index() / p_tiles;
    uint p_begin = (group_index() - rest * p_tiles) * TILE_P;
    uint first_plane = rest / q_tiles * PLANES;
    uint q_begin = rest % q_tiles * TILE_Q;
    if (first_plane >= count) return;
    uvec2 at = uvec2(0u);
    if (PLANES == 1u) {
        at = plane_offsets(first_plane);
    } else {
        for (uint i = gl_LocalInvocationID.x; i < PLANES; i += INVOCATIONS)
            s_planes[i] = plane_offsets(first_plane + i);
        barrier();
    }
    // Nothing lies beyond an edge, all vectors are aligned: then no loads and stores hang on
    // conditions, and many are under way.
    uint unaligned = in_offset | out_offset;
    for (uint i = 0u; i < 2u + rank; ++i) unaligned |= in_strides[i] | out_strides[i];
    bool plain = unaligned % PER_VECTOR == 0u && first_plane + PLANES <= count
        && p_begin + TILE_P <= p_size && q_begin + TILE_Q <= q_size;

    if (plain && VECTORS == 4u * INVOCATIONS) {
        uint v = gl_LocalInvocationID.x;
        uvec4 w = in_vectors[from_of(v, p_begin, q_begin, at.x) / PER_VECTOR];
        uvec4 x = in_vectors[from_of(v + INVOCATIONS, p_begin, q_begin, at.x) / PER_VECTOR];
        uvec4 y = in_vectors[from_of(v + 2u * INVOCATIONS, p_begin, q_begin, at.x) / PER_VECTOR];
        uvec4 z = in_vectors[from_of(v + 3u * INVOCATIONS, p_begin, q_begin, at.x) / PER_VECTOR];
        put(v, w);
        put(v + INVOCATIONS, x);
        put(v + 2u * INVOCATIONS, y);
        put(v + 3u * INVOCATIONS, z);
    } else {
        for (uint v = gl_LocalInvocationID.x; v < VECTORS; v += INVOCATIONS) {
            uint p = p_begin + v % P_VECTORS * PER_VECTOR;
            uint q = q_begin + v / P_VECTORS % TILE_Q;
            uint plane = first_plane + v / (P_VECTORS * TILE_Q);
            if (p >= p_size || q >= q_size || plane >= count) continue;
            uint from = from_of(v, p_begin, q_begin, at.x);
            uvec4 vector = uvec4(0u);
            if (p + PER_VECTOR <= p_size) {
                vector = load_vector(from);
            } else {
                for (uint e = 0u; e < p_size - p; ++e)
                    set_element(vector, e, LOAD_ELEMENT(in_words, from + e));
            }
            put(v, vector);
        }
    }
    barrier();
    for (uint v = gl_LocalInvocationID.x; v < BLOCKS; v += INVOCATIONS) {
        uint q_in_tile = v % Q_VECTORS * PER_VECTOR;
        uint column = v / Q_VECTORS % P_WORDS;
        uint plane = v / (Q_VECTORS * P_WORDS);
        uint q = q_begin + q_in_tile;
        if (!plain && (q >= q_size || first_plane + plane >= count)) continue;
        uint begin = (PLANES > 1u ? s_planes[plane].y : at.y) + q;
        uint word = (plane * TILE_Q + q_in_tile) * PITCH + column;
        uint words[PER_VECTOR];
        [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e) words[e] = s_tile[word + e * PITCH];
        [[unroll]] for (uint part = 0u; part < ELEMENTS_PER_WORD; ++part) {
            uint p = p_begin + column * ELEMENTS_PER_WORD + part;
            uvec4 turned;
#if defined(ELEMENT_BITS)
            [[unroll]] for (uint i = 0u; i < 4u; ++i)
                turned[i] = part == 0u ? words[2u * i] & 0xFFFFu | words[2u * i + 1u] << 16u
                                       : words[2u * i] >> 16u | words[2u * i + 1u] & 0xFFFF0000u;
#else
            turned = uvec4(words[0], words[1], words[2], words[3]);
#endif
            uint outer = sizes[1] == 1u ? 0u : p / sizes[0];
            uint to = begin + (p - outer * sizes[0]) * out_strides[0] + outer * out_strides[1];
            if (plain) out_vectors[to / PER_VECTOR] = turned;
            else if (p < p_size) store_vector(to, min(PER_VECTOR, q_size - q), turned);
        }
    }
}
#endif
