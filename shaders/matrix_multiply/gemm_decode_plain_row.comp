//@ op -
//@ variants PRODUCTS: p1(parts=1) p2(parts=2) p3(parts=3)
//@ unchecked *
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require
// One FLOAT16 row times one to three FLOAT16 matrices. The row may be normalized by its root mean square. GATED:
// the output is SiLU of the first product times the second. Else each product has an output of its own, and C is
// added.
//
// Reading the matrices takes the time, so nothing is waited for before they are asked for. ACROSS neighbours read
// neighbouring vectors of eight columns. Such a team asks for those of eight rows of K at a time, and for the
// same part of the row, which is one vector. The teams of a workgroup take turns at K. GATED: half of the teams
// have the first matrix, half the second. The norm's factor multiplies the sums at the end, where subgroups add
// up theirs. So workgroups wait once.
#define PARTS PRODUCTS_parts
layout(local_size_x = 256, local_size_x_id = 0) in;
const uint INVOCATIONS = gl_WorkGroupSize.x;
layout(constant_id = 1) const uint ACROSS = 4u;  // no more than a subgroup has
layout(constant_id = 2) const uint LEAST = 4u;  // invocations of a subgroup, or fewer
layout(constant_id = 3) const bool NORMALIZES = false;
layout(constant_id = 4) const bool HAS_C = false;
layout(constant_id = 5) const bool GATED = false;
layout(push_constant) uniform Push {
    uint K;
    uint tiles;
    uint starts[2];  // the tiles at which the second and the third part begin
    uint b_row[PARTS];  // vectors
    float epsilon;
    uint x_offset;
    uint gamma_offset;
    uint b0_offset;
    uint c0_offset;
    uint y0_offset;
#if PARTS > 1
    uint b1_offset;
    uint c1_offset;
    uint y1_offset;
#endif
#if PARTS > 2
    uint b2_offset;
    uint c2_offset;
    uint y2_offset;
#endif
};
#include "include/grid.glsl"
#include "include/typed.glsl"
layout(binding = 0) readonly buffer X { uvec4 x_vectors[]; };
layout(binding = 1) readonly buffer Gamma { uvec4 gamma_vectors[]; };
#define PART(n, first) \
    layout(binding = first) readonly buffer B##n { uvec4 b##n##_vectors[]; }; \
    layout(binding = first + 1) readonly buffer C##n { uint c##n##_words[]; }; \
    layout(binding = first + 2) writeonly buffer Y##n { uint y##n##_words[]; };
PART(0, 2)
#if PARTS > 1
PART(1, 5)
#endif
#if PARTS > 2
PART(2, 8)
#endif
#if PARTS == 1
#define OF_PART(part, use) { use(0) }
#elif PARTS == 2
#define OF_PART(part, use) { if ((part) == 0u) use(0) else use(1) }
#else
#define OF_PART(part, use) { if ((part) == 0u) use(0) else if ((part) == 1u) use(1) else use(2) }
#endif

const uint EACH = 8u;  // elements of a vector
const uint SIDES = GATED ? 2u : 1u;  // matrices of a tile
const uint OWN = INVOCATIONS / SIDES;  // invocations of a matrix
const uint TEAMS = OWN / ACROSS;
const uint PAIRS = ACROSS * EACH / 2u;  // of columns of a tile

shared float s_sums[INVOCATIONS / LEAST * ACROSS * EACH];  // of subgroups: columns of a tile
shared float s_squares[INVOCATIONS / LEAST];

vec4 floats_of(uvec2 x) { return vec4(halves_to_floats(x.x), halves_to_floats(x.y)); }

float square_of(uvec4 x) {
    vec4 low = floats_of(x.xy), high = floats_of(x.zw);
    return dot(low, low) + dot(high, high);
}

// Eight rows of K.
void find(out uvec4 found[EACH], uint part, uint vector, uint v) {
#define FIND(i) { \
        uint from = b##i##_offset / EACH + vector + v * EACH * b_row[i]; \
        [[unroll]] for (uint n = 0u; n < EACH; ++n) found[n] = b##i##_vectors[from + n * b_row[i]]; \
    }
    OF_PART(part, FIND)
}

// Stores two neighbouring columns.
void store(uint part, uint column, vec2 sums) {
#define STORE(n) { \
        if (HAS_C) sums += halves_to_floats(c##n##_words[(c##n##_offset + column) / 2u]); \
        y##n##_words[(y##n##_offset + column) / 2u] = floats_to_halves(sums.x, sums.y); \
    }
    OF_PART(part, STORE)
}

void main() {
    uint tile = group_index(), part = 0u;
    if (tile >= tiles) return;
#if PARTS > 1
    if (!GATED && tile >= starts[0]) part = 1u;
#endif
#if PARTS > 2
    if (!GATED && tile >= starts[1]) part = 2u;
#endif
    if (part > 0u) tile -= starts[part - 1u];
    uint local = gl_LocalInvocationIndex % OWN, side = gl_LocalInvocationIndex / OWN;
    uint own = GATED ? side : part, vector = tile * ACROSS + local % ACROSS, count = K / EACH;
    float squares = 0.0;
    if (NORMALIZES)
        for (uint n = gl_LocalInvocationIndex; n < count; n += INVOCATIONS)
            squares += square_of(x_vectors[x_offset / EACH + n]);
    vec4 low = vec4(0.0), high = vec4(0.0);
    for (uint v = local / ACROSS; v < count; v += TEAMS) {
        uvec4 now[EACH];
        find(now, own, vector, v);
        uvec4 x = x_vectors[x_offset / EACH + v];
        vec4 factors[2] = {floats_of(x.xy), floats_of(x.zw)};
        if (NORMALIZES) {
            uvec4 gamma = gamma_vectors[gamma_offset / EACH + v];
            factors[0] *= floats_of(gamma.xy);
            factors[1] *= floats_of(gamma.zw);
        }
        [[unroll]] for (uint n = 0u; n < EACH; ++n) {
            low += factors[n / 4u][n % 4u] * floats_of(now[n].xy);
            high += factors[n / 4u][n % 4u] * floats_of(now[n].zw);
        }
    }
    // Neighbours in a subgroup add up their sums, then invocations those of subgroups.
    uint width = min(gl_SubgroupSize, OWN), subgroups = OWN / width, at = local % width;
    [[unroll]] for (uint d = 1u; d < 128u; d *= 2u)
        if (d < width) {
            if (d >= ACROSS) {
                low += subgroupShuffleXor(low, d);
                high += subgroupShuffleXor(high, d);
            }
            if (NORMALIZES) squares += subgroupShuffleXor(squares, d);
        }
    uint subgroup = gl_LocalInvocationIndex / width;
    if (at < ACROSS)
        [[unroll]] for (uint e = 0u; e < 4u; ++e) {
            uint to = (subgroup * ACROSS + at) * EACH + e;
            s_sums[to] = low[e];
            s_sums[to + 4u] = high[e];
        }
    if (NORMALIZES && at == 0u) s_squares[subgroup] = squares;
    barrier();
    uint pair = gl_LocalInvocationIndex;
    if (pair >= PAIRS) return;
    vec2 sums[SIDES];
    [[unroll]] for (uint i = 0u; i < SIDES; ++i) {
        sums[i] = vec2(0.0);
        for (uint s = i * subgroups; s < (i + 1u) * subgroups; ++s) {
            uint from = 2u * (s * PAIRS + pair);
            sums[i] += vec2(s_sums[from], s_sums[from + 1u]);
        }
    }
    if (NORMALIZES) {
        float sum = 0.0;
        for (uint s = 0u; s < SIDES * subgroups; ++s) sum += s_squares[s];
        float root = 1.0 / sqrt(sum / float(K) + epsilon);
        [[unroll]] for (uint i = 0u; i < SIDES; ++i) sums[i] *= root;
    }
    if (GATED) sums[0] = sums[0] / (1.0 + exp(-sums[0])) * sums[SIDES - 1u];
    store(part, 2u * (tile * PAIRS + pair), sums[0]);
}
