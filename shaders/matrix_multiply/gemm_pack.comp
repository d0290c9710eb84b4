//@ op DML_OPERATOR_GEMM
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Puts FLOAT16 B into the order in which gemm_coopmat.comp's tiles with PACKED_B read it. A strip has 64
// columns, a step of a strip 16 of K, and a fragment of a step 16 columns. Invocation l of a subgroup of 32
// reads a vector of each fragment: columns l / 4 and l / 4 + 8, each with K 2 (l % 4), + 1, + 8 and + 9
// (DeviceTraits.fragments_alike). What is beyond B is 0. A workgroup of 256 packs 64 of K of a strip,
// through shared memory.

// The axis along which B is read in vectors of eight elements: 0 for none, 1 for K, 2 for columns. SHIFTED:
// lines begin anywhere, so eight elements lie in two vectors.
layout(constant_id = 1) const uint VECTORS = 0u;
layout(constant_id = 2) const bool SHIFTED = false;

layout(push_constant) uniform Push {
    uint batches;
    uint K;
    uint columns;
    uint b_k;
    uint b_column;
    uint b_offset;
    uint packed_offset;
    uint params_offset;
};
#define PARAMS_BINDING 2
#include "include/grid.glsl"
#include "include/walk.glsl"
layout(binding = 0) readonly buffer B { uint b_words[]; };
layout(binding = 0) readonly buffer BVectors { uvec4 b_vectors[]; };
layout(binding = 1) writeonly buffer Packed { uvec4 packed_vectors[]; };
WALK(walk, 1)

const uint SIDE = 64u, INVOCATIONS = 256u;
// Pairs along K of each column. A word of padding avoids bank conflicts.
const uint PITCH = SIDE / 2u + 1u;
shared uint s_pairs[SIDE * PITCH];

// Where an element lies; beyond an edge, another one.
uint place_of(uint from, uint k, uint column) {
    return from + min(k, K - 1u) * b_k + min(column, columns - 1u) * b_column;
}

uint element(uint word, uint at, uint k, uint column) {
    return k < K && column < columns ? bitfieldExtract(word, int(at % 2u * 16u), 16) : 0u;
}

uvec4 vector_at(uint from, uint k, uint column) {
    bool inside = k < K && column < columns;
    uint at = place_of(from, k, column);
    uvec4 low = b_vectors[at / 8u];
    if (!SHIFTED) return inside ? low : uvec4(0u);
    uvec4 high = b_vectors[min(at / 8u + 1u, place_of(from, K, columns) / 8u)];
    if ((at & 4u) != 0u) {
        low = uvec4(low.zw, high.xy);
        high.xy = high.zw;
    }
    if ((at & 2u) != 0u) {
        low = uvec4(low.yzw, high.x);
        high.x = high.y;
    }
    if ((at & 1u) != 0u) low = low >> 16u | uvec4(low.yzw, high.x) << 16u;
    uint left = !inside ? 0u : VECTORS == 1u ? K - k : columns - column;
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        low[i] &= left > 2u * i + 1u ? ~0u : left > 2u * i ? 0xFFFFu : 0u;
    return low;
}

void main() {
    uint strips = (columns - 1u) / SIDE + 1u, slices = (K - 1u) / SIDE + 1u;
    uint index = group_index(), strip = index / slices % strips, batch = index / (slices * strips);
    if (batch >= batches) return;
    uint first_column = strip * SIDE, first_k = index % slices * SIDE;
    uint from = b_offset + (batches > 1u ? walk(0u, batch)[0] : 0u);
    uint own = gl_LocalInvocationIndex;
    if (VECTORS == 2u) {
        // Eight columns of two neighbours along K.
        uint pair = own / 8u, column = own % 8u * 8u;
        uvec4 low = vector_at(from, first_k + 2u * pair, first_column + column);
        uvec4 high = vector_at(from, first_k + 2u * pair + 1u, first_column + column);
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            s_pairs[(column + 2u * i) * PITCH + pair] = (low[i] & 0xFFFFu) | high[i] << 16u;
            s_pairs[(column + 2u * i + 1u) * PITCH + pair] = low[i] >> 16u | (high[i] & 0xFFFF0000u);
        }
    } else if (VECTORS == 1u) {
        [[unroll]] for (uint n = 0u; n < 2u; ++n) {
            uint column = own / 8u + n * 32u, vector = own % 8u;
            uvec4 found = vector_at(from, first_k + vector * 8u, first_column + column);
            [[unroll]] for (uint i = 0u; i < 4u; ++i) s_pairs[column * PITCH + vector * 4u + i] = found[i];
        }
    } else {
        // All words are asked for before one is used.
        const uint PAIRS = SIDE * SIDE / 2u / INVOCATIONS;
        bool across = b_column < b_k;  // neighbours read neighbours
        uint low[PAIRS], high[PAIRS];
#define FIND_PAIR \
            uint n = own + i * INVOCATIONS, pair = across ? n / SIDE : n % (SIDE / 2u); \
            uint column = across ? n % SIDE : n / (SIDE / 2u); \
            uint k = first_k + 2u * pair, low_at = place_of(from, k, first_column + column); \
            uint high_at = place_of(from, k + 1u, first_column + column);
        [[unroll]] for (uint i = 0u; i < PAIRS; ++i) {
            FIND_PAIR
            low[i] = b_words[low_at / 2u];
            high[i] = b_words[high_at / 2u];
        }
        [[unroll]] for (uint i = 0u; i < PAIRS; ++i) {
            FIND_PAIR
            s_pairs[column * PITCH + pair] = element(low[i], low_at, k, first_column + column)
                | element(high[i], high_at, k + 1u, first_column + column) << 16u;
        }
    }
    barrier();
    uint to = packed_offset / 8u + index * (SIDE * SIDE / 8u);
    [[unroll]] for (uint n = 0u; n < 2u; ++n) {
        uint place = own + n * INVOCATIONS, lane = place % 32u;
        uint column = place / 32u % 4u * 16u + lane / 4u, pair = place / 128u * 8u + lane % 4u;
        uvec4 x;
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            x[i] = s_pairs[(column + i / 2u * 8u) * PITCH + pair + i % 2u * 4u];
        packed_vectors[to + place] = x;
    }
}
