//@ op -
//@ variants PRODUCTS: p1(parts=1) p2(parts=2) p3(parts=3)
//@ unchecked *
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// One FLOAT16 row times one to three matrices of 4-bit elements in blocks of K. The row may be normalized by its
// root mean square. GATED: the output is SiLU of the first product times the second. Else each product has an
// output of its own, and C is added.
//
// Reading the matrices takes the time, so they are asked for before the row is there. Each invocation of a team has
// one vector of 16 bytes along K of four columns at a time, in TURNS turns, and asks for those of the next turn
// before it multiplies. Its own part of the row stays in registers, multiplied by a power of two, so that sums
// of four products are FLOAT16, which are added in FLOAT32. The norm's factor multiplies the sums at the end, where
// subgroups add up theirs. So workgroups wait once. Columns and words are spelled out: drivers may move arrays
// to memory.
#define PARTS PRODUCTS_parts
layout(local_size_x = 128, local_size_x_id = 0) in;
const uint INVOCATIONS = gl_WorkGroupSize.x;
layout(constant_id = 2) const bool SIGNED = false;
layout(constant_id = 3) const bool HAS_ZERO = false;
layout(constant_id = 4) const uint BLOCK = 32u;  // elements of K, whole vectors
layout(constant_id = 5) const uint TEAM = 128u;  // whole subgroups
layout(constant_id = 7) const bool NORMALIZES = false;
layout(constant_id = 8) const bool HAS_C = false;
layout(constant_id = 9) const uint LEAST = 4u;  // invocations of a subgroup, or fewer
layout(constant_id = 11) const bool GATED = false;
layout(constant_id = 12) const uint TURNS = 1u;
layout(push_constant) uniform Push {
    uint K;
    uint workers;
    uint starts[2];  // the workgroups at which the second and the third part begin
    uint columns[PARTS];
    uint b_column;  // strides between columns: in vectors, scales and zero points
    uint scale_column;
    uint zero_column;
    float epsilon;
    uint x_offset;
    uint gamma_offset;
    uint b0_offset;
    uint scale0_offset;
    uint zero0_offset;
    uint c0_offset;
    uint y0_offset;
#if PARTS > 1
    uint b1_offset;
    uint scale1_offset;
    uint zero1_offset;
    uint c1_offset;
    uint y1_offset;
#endif
#if PARTS > 2
    uint b2_offset;
    uint scale2_offset;
    uint zero2_offset;
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
    layout(binding = first + 1) readonly buffer Scale##n { uint scale##n##_words[]; }; \
    layout(binding = first + 2) readonly buffer Zero##n { uint zero##n##_words[]; }; \
    layout(binding = first + 3) readonly buffer C##n { uint c##n##_words[]; }; \
    layout(binding = first + 4) writeonly buffer Y##n { uint y##n##_words[]; };
PART(0, 2)
#if PARTS > 1
PART(1, 7)
#endif
#if PARTS > 2
PART(2, 12)
#endif
#if PARTS == 1
#define OF_PART(part, use) { use(0) }
#elif PARTS == 2
#define OF_PART(part, use) { if ((part) == 0u) use(0) else use(1) }
#else
#define OF_PART(part, use) { if ((part) == 0u) use(0) else if ((part) == 1u) use(1) else use(2) }
#endif

const uint EACH = 32u;  // elements of a vector of B
const uint FLIPPED = SIGNED ? 0x88888888u : 0u;
const uint TEAMS = INVOCATIONS / TEAM;
const uint OUTPUTS = GATED ? 2u : 4u;  // of a team's turn
const uint SUBGROUPS = TEAM / LEAST;  // of a team, or more
const int LARGEST = 9;  // a power of two above this times 4 * 15 is no FLOAT16

shared vec4 s_sums[TURNS * TEAMS * SUBGROUPS];
shared float s_squares[TEAMS * SUBGROUPS];

// Eight neighbours in the order in which elements of B come out of their words.
uvec4 in_order(uvec4 x) {
    uvec4 low = x & 0xFFFFu, high = x >> 16u;
    return uvec4(low.x | low.z << 16u, high.x | high.z << 16u, low.y | low.w << 16u, high.y | high.w << 16u);
}

vec4 floats_of(uvec2 x) { return vec4(halves_to_floats(x.x), halves_to_floats(x.y)); }

// The largest size of FLOAT16 numbers, as bits.
uint largest_of(uvec4 x) {
    x &= 0x7FFF7FFFu;
    uvec4 y = max(x & 0xFFFFu, x >> 16u);
    return max(max(y.x, y.y), max(y.z, y.w));
}

float square_of(uvec4 x) {
    vec4 low = floats_of(x.xy), high = floats_of(x.zw);
    return dot(low, low) + dot(high, high);
}

// Eight of the row's elements as they are multiplied.
uvec4 factors_of(uvec4 x, uvec4 gamma, float factor) {
    vec4 low = factor * floats_of(x.xy), high = factor * floats_of(x.zw);
    if (NORMALIZES) {
        low *= floats_of(gamma.xy);
        high *= floats_of(gamma.zw);
    }
    return in_order(uvec4(floats_to_halves(low), floats_to_halves(high)));
}

// Sums of the products of a word's elements without their zero points, by twos. In the bits of 1024 and 64, the
// lowest four and the next four count ones.
float word_by(uint word, uvec4 x, f16vec2 low, f16vec2 high) {
    word ^= FLIPPED;
    uint other = word >> 8u;
    f16vec2 sum = (unpackFloat2x16(word & 0x000F000Fu | 0x64006400u) - low) * unpackFloat2x16(x.x);
    sum = fma(unpackFloat2x16(word & 0x00F000F0u | 0x54005400u) - high, unpackFloat2x16(x.y), sum);
    sum = fma(unpackFloat2x16(other & 0x000F000Fu | 0x64006400u) - low, unpackFloat2x16(x.z), sum);
    sum = fma(unpackFloat2x16(other & 0x00F000F0u | 0x54005400u) - high, unpackFloat2x16(x.w), sum);
    return float(sum.x) + float(sum.y);
}

uint scale_at(uint column, uint v) { return column * scale_column + v * EACH / BLOCK; }

uint zero_at(uint column, uint v) { return column * zero_column + v * EACH / BLOCK; }

// Column i of four; the second two are the second matrix's, if GATED.
#define OF_FOUR(use, n) use(n, 0, x) use(n, 1, y) use(n, 2, z) use(n, 3, w)
#define COLUMN(first, i) ((first) + (GATED ? uint(i) % 2u : uint(i)))
#define DECLARE(n, i, e) uvec4 next##i = uvec4(0u);
#define ASK_ONE(n, i, e) \
    next##i = b##n##_vectors[b##n##_offset / 16u + COLUMN(first, i) * b_column + v]; \
    scales.e = scale##n##_words[(scale##n##_offset + scale_at(COLUMN(first, i), v)) / 2u]; \
    if (HAS_ZERO) zeros.e = zero##n##_words[(zero##n##_offset * 2u + zero_at(COLUMN(first, i), v)) / 8u];
#define SCALE_ONE(n, i, e) { \
        vec2 pair = halves_to_floats(now_scales.e); \
        by.e = (scale##n##_offset + scale_at(COLUMN(now_first, i), v)) % 2u == 0u ? pair.x : pair.y; \
        if (HAS_ZERO) { \
            uint at = zero##n##_offset * 2u + zero_at(COLUMN(now_first, i), v); \
            zero.e = bitfieldExtract(now_zeros.e, int(at % 8u * 4u), 4) ^ (SIGNED ? 8u : 0u); \
        } \
    }
#if PARTS > 1
#define OF_MATRICES(use, n) \
    if (GATED) { use(0, 0, x) use(0, 1, y) use(1, 2, z) use(1, 3, w) } else { OF_FOUR(use, n) }
#else
#define OF_MATRICES(use, n) OF_FOUR(use, n)
#endif
#define ASK(n) { OF_MATRICES(ASK_ONE, n) }
#define SCALE(n) { OF_MATRICES(SCALE_ONE, n) }
#define KEEP(n, i, e) uvec4 now##i = next##i;
#define MULTIPLY(n, i, e) { \
        f16vec2 low = unpackFloat2x16(0x64006400u | zero.e << 16u | zero.e); \
        f16vec2 high = unpackFloat2x16(0x54005400u | zero.e << 20u | zero.e << 4u); \
        sums.e = by.e * (word_by(now##i.x, own0, low, high) + word_by(now##i.y, own1, low, high) \
                         + word_by(now##i.z, own2, low, high) + word_by(now##i.w, own3, low, high)); \
    }

void store(uint part, uint column, vec2 sums, vec2 others) {
    if (GATED) {
        sums = sums / (1.0 + exp(-sums)) * others;
        y0_words[(y0_offset + column) / 2u] = floats_to_halves(sums.x, sums.y);
        return;
    }
#define STORE(n) { \
        vec4 four = vec4(sums, others); \
        if (HAS_C) \
            four += floats_of(uvec2(c##n##_words[(c##n##_offset + column) / 2u], \
                                    c##n##_words[(c##n##_offset + column) / 2u + 1u])); \
        uvec2 pairs = floats_to_halves(four); \
        y##n##_words[(y##n##_offset + column) / 2u] = pairs.x; \
        y##n##_words[(y##n##_offset + column) / 2u + 1u] = pairs.y; \
    }
    OF_PART(part, STORE)
}

void main() {
    uint worker = group_index(), part = 0u;
    if (worker >= workers) return;
#if PARTS > 1
    if (!GATED && worker >= starts[0]) part = 1u;
#endif
#if PARTS > 2
    if (!GATED && worker >= starts[1]) part = 2u;
#endif
    if (part > 0u) worker -= starts[part - 1u];
    uint width_of_part = columns[part];
    uint count = K / EACH, team = gl_LocalInvocationIndex / TEAM, lane = gl_LocalInvocationIndex % TEAM;
    const uint step = TEAMS * OUTPUTS;  // from turn to turn
    uint begin = worker * TURNS * step, first = begin + team * OUTPUTS, v = min(lane, count - 1u);
    OF_FOUR(DECLARE, 0)
    uvec4 scales = uvec4(0u), zeros = uvec4(0u);
    if (first < width_of_part) OF_PART(part, ASK)

    // This invocation's part of the row.
    uint from = x_offset / 8u + v * 4u;
    uvec4 own0 = x_vectors[from], own1 = x_vectors[from + 1u], own2 = x_vectors[from + 2u];
    uvec4 own3 = x_vectors[from + 3u];
    uvec4 gamma0 = uvec4(0u), gamma1 = gamma0, gamma2 = gamma0, gamma3 = gamma0;
    uint most = max(max(largest_of(own0), largest_of(own1)), max(largest_of(own2), largest_of(own3)));
    float bound = halves_to_floats(most).x, squares = 0.0;
    if (NORMALIZES) {
        from = gamma_offset / 8u + v * 4u;
        gamma0 = gamma_vectors[from];
        gamma1 = gamma_vectors[from + 1u];
        gamma2 = gamma_vectors[from + 2u];
        gamma3 = gamma_vectors[from + 3u];
        most = max(max(largest_of(gamma0), largest_of(gamma1)), max(largest_of(gamma2), largest_of(gamma3)));
        bound *= halves_to_floats(most).x;
        if (lane < count) squares = square_of(own0) + square_of(own1) + square_of(own2) + square_of(own3);
    }
    // Infinite numbers stay so, and 0.
    int power = clamp(int(floatBitsToUint(bound) >> 23u), 32, 254) - 127 - LARGEST;
    float factor = lane < count ? uintBitsToFloat(uint(127 - power) << 23u) : 0.0;
    float lift = uintBitsToFloat(uint(127 + power) << 23u);
    own0 = factors_of(own0, gamma0, factor);
    own1 = factors_of(own1, gamma1, factor);
    own2 = factors_of(own2, gamma2, factor);
    own3 = factors_of(own3, gamma3, factor);

    uint width = min(gl_SubgroupSize, TEAM), subgroups = TEAM / width;
    uint subgroup = lane / width, place = lane % width;
    [[dont_unroll]] for (uint turn = 0u; turn < TURNS && first < width_of_part; ++turn) {
        OF_FOUR(KEEP, 0)
        uint now_first = first;
        uvec4 now_scales = scales, now_zeros = zeros, zero = uvec4(8u);
        first += step;
        if (turn + 1u < TURNS && first < width_of_part) OF_PART(part, ASK)
        vec4 by, sums;
        OF_PART(part, SCALE)
        OF_FOUR(MULTIPLY, 0)
        sums *= lift;
        // Each of two neighbours keeps half of the sums, and gives the other half.
        if (width >= 4u) {
            bool upper = (place & 1u) != 0u, right = (place & 2u) != 0u;
            vec2 pair = (upper ? sums.zw : sums.xy) + subgroupShuffleXor(upper ? sums.xy : sums.zw, 1u);
            float sum = (right ? pair.y : pair.x) + subgroupShuffleXor(right ? pair.x : pair.y, 2u);
            [[unroll]] for (uint d = 4u; d < 128u; d *= 2u)
                if (d < width) sum += subgroupShuffleXor(sum, d);
            if (place < 4u) s_sums[(turn * TEAMS + team) * SUBGROUPS + subgroup][place % 2u * 2u + place / 2u] = sum;
        } else {
            if (width == 2u) sums += subgroupShuffleXor(sums, 1u);
            if (place == 0u) s_sums[(turn * TEAMS + team) * SUBGROUPS + subgroup] = sums;
        }
    }
    if (NORMALIZES) {
        [[unroll]] for (uint d = 1u; d < 128u; d *= 2u)
            if (d < width) squares += subgroupShuffleXor(squares, d);
        if (place == 0u) s_squares[team * SUBGROUPS + subgroup] = squares;
    }
    barrier();

    float root = 1.0;
    if (NORMALIZES) {
        float sum = 0.0;
        for (uint s = 0u; s < subgroups; ++s) sum += s_squares[s];
        root = 1.0 / sqrt(sum / float(K) + epsilon);
    }
    for (uint n = gl_LocalInvocationIndex; n < TURNS * TEAMS; n += INVOCATIONS) {
        uint column = begin + n * OUTPUTS;
        if (column >= width_of_part) break;
        vec4 sum = vec4(0.0);
        for (uint s = 0u; s < subgroups; ++s) sum += s_sums[n * SUBGROUPS + s];
        sum *= root;
        store(part, column, sum.xy, sum.zw);
    }
}
