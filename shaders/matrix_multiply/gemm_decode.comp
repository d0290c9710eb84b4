//@ op -
//@ variants MATH: floats halves ; ROWS: r1(rows=1) r2(rows=2) r4(rows=4) r8(rows=8) ; PRODUCTS: p1(parts=1) p2(parts=2) p3(parts=3)
//@ unchecked *
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require
#if defined(MATH_halves)
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
// A few FLOAT16 rows times one to three matrices of 4- or 8-bit elements in blocks of K, as a decoder does
// for each token. The rows may be normalized first, by their root mean square. GATED: the output is SiLU of
// the first product times the second. Else each product has an output of its own, and C is added.
//
// Reading the matrices takes the time. A team of LANES neighbours reads neighbouring vectors of 16 bytes of
// COLUMNS columns along K, one step ahead, and multiplies them by the same part of the rows. That part lies
// in shared memory, HELD vectors of K at a time. The first vectors are asked for before the rows are read.
// WORKERS workgroups take turns at tiles of columns, so that the rows are read and normalized once for several.
//
// With halves, four or two products are added in FLOAT16, and these sums in FLOAT32. Rows whose numbers are so
// large that such a sum might overflow are multiplied by a power of 2 before, and the sums divided by it.
const uint TILE_ROWS = ROWS_rows;
#define PARTS PRODUCTS_parts
layout(local_size_x = 128, local_size_x_id = 0) in;
const uint INVOCATIONS = gl_WorkGroupSize.x;
layout(constant_id = 1) const uint BITS = 4u;
layout(constant_id = 2) const bool SIGNED = false;
layout(constant_id = 3) const bool HAS_ZERO = false;
layout(constant_id = 4) const uint BLOCK = 32u;  // elements of K: 16, or whole vectors
layout(constant_id = 5) const uint LANES = 32u;
layout(constant_id = 6) const uint HELD = 64u;  // a multiple of LANES
layout(constant_id = 7) const bool NORMALIZES = false;
layout(constant_id = 8) const bool HAS_C = false;
layout(constant_id = 9) const bool C_ROWS = false;  // whether C has a row for each row, as the output has
layout(constant_id = 10) const uint COLUMNS = 4u;  // of a team: 2 or 4
layout(constant_id = 11) const bool GATED = false;
layout(push_constant) uniform Push {
    uint rows;
    uint K;
    uint tiles;
    uint workers;
    uint x_row;
    uint starts[2];  // the tiles at which the second and the third part begin
    uint b_column;  // strides between columns: in vectors, scales and zero points
    uint scale_column;
    uint zero_column;
    uint y_row[PARTS];
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

const uint EACH = 128u / BITS;  // elements of a vector of B
const uint PIECES = EACH / 8u;  // vectors of the rows for it
const uint PER_WORD = 32u / BITS;
const uint MIDDLE = 1u << (BITS - 1u);
const uint ALL_MIDDLES = BITS == 4u ? 0x88888888u : 0x80808080u;
const bool TWO_SCALES = BLOCK < EACH;  // in a vector
const uint SCALES = TWO_SCALES ? 2u : 1u;
const uint WORDS = 4u / SCALES;  // of a scale
const uint TEAMS = INVOCATIONS / LANES;

// Vector v of K of row m: its pieces are apart, so that neighbours read neighbouring vectors.
const uint PITCH = HELD + 2u;
shared uvec4 s_rows[TILE_ROWS * PIECES * PITCH];
// Sums of each subgroup, which has four invocations or more.
shared vec4 s_sums[INVOCATIONS / 4u * TILE_ROWS];
const uint WHOLE_ROWS = (TILE_ROWS + 3u) / 4u * 4u;  // vectors begin at whole vectors
shared float s_factors[WHOLE_ROWS];
shared float s_lifts[WHOLE_ROWS];  // what the sums are multiplied by

// What a team reads at a time: vectors of its columns, and the words with their scales and zero points.
struct Found {
    uvec4 vectors[4];
    uint scales[2][4];
    uint zeros[2][4];
};

uint scale_at(uint column, uint k) { return column * scale_column + k / BLOCK; }

uint zero_at(uint column, uint k) { return column * zero_column + k / BLOCK; }

void find(out Found f, uint part, uint first, uint v) {
    [[unroll]] for (uint c = 0u; c < 4u; ++c) {
        if (c >= COLUMNS) continue;
        uint own = GATED ? c / 2u : part, column = first + (GATED ? c % 2u : c);
#define FIND(n) { \
            f.vectors[c] = b##n##_vectors[b##n##_offset / 16u + column * b_column + v]; \
            [[unroll]] for (uint s = 0u; s < SCALES; ++s) { \
                uint k = v * EACH + s * BLOCK; \
                f.scales[s][c] = scale##n##_words[(scale##n##_offset + scale_at(column, k)) / 2u]; \
                f.zeros[s][c] = HAS_ZERO \
                    ? zero##n##_words[(zero##n##_offset * (8u / BITS) + zero_at(column, k)) / PER_WORD] : 0u; \
            } \
        }
        OF_PART(own, FIND)
    }
}

float scale_of(Found f, uint offset, uint column, uint k, uint s, uint c) {
    vec2 pair = halves_to_floats(s == 0u ? f.scales[0][c] : f.scales[1][c]);
    return (offset + scale_at(column, k)) % 2u == 0u ? pair.x : pair.y;
}

// As if all elements were unsigned.
float zero_of(Found f, uint offset, uint column, uint k, uint s, uint c) {
    if (!HAS_ZERO) return float(MIDDLE);
    uint at = offset * (8u / BITS) + zero_at(column, k), word = s == 0u ? f.zeros[0][c] : f.zeros[1][c];
    uint zero = bitfieldExtract(word, int(at % PER_WORD * BITS), int(BITS));
    return float(SIGNED ? zero ^ MIDDLE : zero);
}

// 2^23, 2^19, 2^15 and 2^11. In their bits, the lowest, second, third and fourth 4 bits (8 bits: the lowest
// and the third) of a word count ones. So a mask makes a float of an element, and a difference takes the
// zero point off, both exactly.
const uvec4 POWERS = BITS == 4u ? uvec4(0x4B000000u, 0x49000000u, 0x47000000u, 0x45000000u)
                                : uvec4(0x4B000000u, 0x47000000u, 0x4B000000u, 0x47000000u);

vec4 without_zero(uint word, uint i, vec4 taken) {
    uvec4 bits;
    if (BITS == 4u) {
        bits = uvec4(word >> (16u * i)) & uvec4(0xFu, 0xF0u, 0xF00u, 0xF000u);
    } else {
        bits = uvec4(word, word, word >> 16, word >> 16) & uvec4(0xFFu, 0xFF00u, 0xFFu, 0xFF00u);
    }
    precise vec4 difference = uintBitsToFloat(bits | POWERS) - taken;
    return difference;
}

vec4 floats_of(uvec2 x) { return vec4(halves_to_floats(x.x), halves_to_floats(x.y)); }

#if defined(MATH_halves)
#define FINDS_FACTORS true
const float MOST = BITS == 4u ? 1024.0 : 128.0;  // times 4 * 15, or 2 * 255, it is a FLOAT16
#else
#define FINDS_FACTORS NORMALIZES
#endif

// The factor of each row: the inverse root of its mean square, and the power of 2.
void find_factors() {
    uint width = min(gl_SubgroupSize, INVOCATIONS), own = gl_LocalInvocationIndex / width;
    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
        uint from = (x_offset + min(m, rows - 1u) * x_row) / 8u;
        vec2 found = vec2(0.0);  // the sum of squares, and the largest number
        for (uint p = gl_LocalInvocationIndex; p < K / 8u; p += INVOCATIONS) {
            uvec4 x = x_vectors[from + p];
            vec4 low = floats_of(x.xy), high = floats_of(x.zw);
            if (NORMALIZES) {
                found.x += dot(low, low) + dot(high, high);
                uvec4 gamma = gamma_vectors[gamma_offset / 8u + p];
                low *= floats_of(gamma.xy);
                high *= floats_of(gamma.zw);
            }
            vec4 largest = max(abs(low), abs(high));
            found.y = max(found.y, max(max(largest.x, largest.y), max(largest.z, largest.w)));
        }
        [[unroll]] for (uint d = 1u; d < 128u; d *= 2u)
            if (d < width) {
                vec2 other = subgroupShuffleXor(found, d);
                found = vec2(found.x + other.x, max(found.y, other.y));
            }
        if (gl_LocalInvocationIndex % width == 0u) s_sums[own * TILE_ROWS + m].xy = found;
    }
    barrier();
    if (gl_LocalInvocationIndex < TILE_ROWS) {
        vec2 found = vec2(0.0);
        for (uint s = 0u; s < INVOCATIONS / width; ++s) {
            vec2 other = s_sums[s * TILE_ROWS + gl_LocalInvocationIndex].xy;
            found = vec2(found.x + other.x, max(found.y, other.y));
        }
        float factor = NORMALIZES ? 1.0 / sqrt(found.x / float(K) + epsilon) : 1.0, lift = 1.0;
#if defined(MATH_halves)
        float beyond = found.y * factor / MOST;
        if (beyond > 1.0) lift = uintBitsToFloat(min(((floatBitsToUint(beyond) >> 23u) + 1u), 151u) << 23u);
#endif
        s_factors[gl_LocalInvocationIndex] = factor / lift;
        s_lifts[gl_LocalInvocationIndex] = lift;
    }
    barrier();
}

// Eight neighbours in the order in which elements of B come out of their words.
uvec4 in_order(uvec4 x) {
#if defined(MATH_halves)
    uvec4 low = x & 0xFFFFu, high = x >> 16u;
    if (BITS == 4u)
        return uvec4(low.x | low.z << 16u, high.x | high.z << 16u, low.y | low.w << 16u, high.y | high.w << 16u);
    return uvec4(low.x | low.y << 16u, high.x | high.y << 16u, low.z | low.w << 16u, high.z | high.w << 16u);
#else
    return x;
#endif
}

// Copies the vectors from ``first`` on.
void hold(uint first) {
    uint count = K / EACH;
    for (uint n = gl_LocalInvocationIndex; n < TILE_ROWS * HELD * PIECES; n += INVOCATIONS) {
        uint m = n / (HELD * PIECES), piece = n % (HELD * PIECES), v = first + piece / PIECES;
        if (v >= count) continue;
        uint at = v * PIECES + piece % PIECES;
        uvec4 x = x_vectors[(x_offset + min(m, rows - 1u) * x_row) / 8u + at];
        if (FINDS_FACTORS) {
            float factor = s_factors[m];
            vec4 low = factor * floats_of(x.xy), high = factor * floats_of(x.zw);
            if (NORMALIZES) {
                uvec4 gamma = gamma_vectors[gamma_offset / 8u + at];
                low *= floats_of(gamma.xy);
                high *= floats_of(gamma.zw);
            }
            x = uvec4(floats_to_halves(low), floats_to_halves(high));
        }
        s_rows[(m * PIECES + piece % PIECES) * PITCH + piece / PIECES] = in_order(x);
    }
}

#if defined(MATH_halves)
const uint PAIRS = PER_WORD / 2u;

struct Taken {
    f16vec2 low;
    f16vec2 high;
};

Taken taken_of(float zero) {
    uint z = uint(zero);
    return Taken(unpackFloat2x16(0x64006400u | z << 16u | z), unpackFloat2x16(0x54005400u | z << 20u | z << 4u));
}

// Pairs of a word's elements without their zero points: those 16 bits apart. In the bits of 1024 and 64, the
// lowest four and the next four count ones.
f16vec2 pair_of(uint word, uint n, Taken taken) {
    if (BITS == 8u) return unpackFloat2x16(word >> (8u * n) & 0x00FF00FFu | 0x64006400u) - taken.low;
    uint part = word >> (n / 2u * 8u);
    return n % 2u == 0u ? unpackFloat2x16(part & 0x000F000Fu | 0x64006400u) - taken.low
                        : unpackFloat2x16(part & 0x00F000F0u | 0x54005400u) - taken.high;
}

// The sum of the products of word w of a vector with row m.
float product_of(f16vec2 pairs[4], uint m, uint w, uint v) {
    uvec4 piece = s_rows[(m * PIECES + w * PER_WORD / 8u) * PITCH + v];
    f16vec2 sum = f16vec2(0.0);
    [[unroll]] for (uint n = 0u; n < PAIRS; ++n)
        sum = fma(pairs[n], unpackFloat2x16(piece[BITS == 4u ? n : w % 2u * 2u + n]), sum);
    return float(sum.x) + float(sum.y);
}
#else
// Four elements of row m: part i of word w of a vector.
vec4 four_of_row(uint m, uint w, uint i, uint v) {
    uint four = w * (EACH / 16u) + i;
    uvec4 piece = s_rows[(m * PIECES + four / 2u) * PITCH + v];
    return floats_of(four % 2u == 0u ? piece.xy : piece.zw);
}
#endif

// A row's finished sums of neighbouring columns.
void store(uint part, uint m, uint column, vec4 sums) {
    if (GATED) {
        // SiLU of the first two times the others.
        vec2 gate = sums.xy, y = gate / (1.0 + exp(-gate)) * sums.zw;
        y0_words[(y0_offset + m * y_row[0] + column) / 2u] = floats_to_halves(vec4(y, y)).x;
        return;
    }
#define STORE(n) { \
        uint to = m * y_row[n] + column, from = (c##n##_offset + (C_ROWS ? to : column)) / 2u; \
        if (HAS_C) { \
            sums.xy += halves_to_floats(c##n##_words[from]); \
            if (COLUMNS == 4u) sums.zw += halves_to_floats(c##n##_words[from + 1u]); \
        } \
        uvec2 pairs = floats_to_halves(sums); \
        y##n##_words[(y##n##_offset + to) / 2u] = pairs.x; \
        if (COLUMNS == 4u) y##n##_words[(y##n##_offset + to) / 2u + 1u] = pairs.y; \
    }
    OF_PART(part, STORE)
}

// The part of a tile, and the first column of this team.
uvec2 place_of(uint tile) {
    uint part = 0u;
#if PARTS > 1
    if (!GATED && tile >= starts[0]) part = 1u;
#endif
#if PARTS > 2
    if (!GATED && tile >= starts[1]) part = 2u;
#endif
    tile -= part == 0u ? 0u : starts[part - 1u];
    return uvec2(part, (tile * TEAMS + gl_LocalInvocationIndex / LANES) * (GATED ? COLUMNS / 2u : COLUMNS));
}

void main() {
    uint tile = group_index();
    if (tile >= workers) return;
    const uint OUTPUTS = GATED ? COLUMNS / 2u : COLUMNS;  // of a team
    uint lane = gl_LocalInvocationIndex % LANES, count = K / EACH;
    bool whole = count <= HELD;
    uvec2 ahead = place_of(tile);
    Found next;
    find(next, ahead.x, ahead.y, min(lane, count - 1u));
    if (FINDS_FACTORS) find_factors();
    if (whole) {
        hold(0u);
        barrier();
    }
    for (; tile < tiles; tile += workers) {
        uint part = ahead.x, column = ahead.y;
        ahead = place_of(min(tile + workers, tiles - 1u));
        float sums[TILE_ROWS * 4u];
        [[unroll]] for (uint n = 0u; n < TILE_ROWS * 4u; ++n) sums[n] = 0.0;
        for (uint first = 0u; first < count; first += HELD) {
            if (!whole) {
                barrier();
                hold(first);
                barrier();
            }
            uint last = min(count, first + HELD);
            for (uint v = first + lane; v < last; v += LANES) {
                Found now = next;
                if (v + LANES < count) find(next, part, column, v + LANES);
                else find(next, ahead.x, ahead.y, min(lane, count - 1u));
                float zeros[4], by[4], parts[TILE_ROWS * 4u];
                [[unroll]] for (uint w = 0u; w < 4u; ++w) {
                    if (w % WORDS == 0u) {
                        uint s = w / WORDS, k = v * EACH + s * BLOCK;
                        [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                            if (c >= COLUMNS) continue;
                            uint own = GATED ? c / 2u : part, at = column + (GATED ? c % 2u : c);
#define SCALE(n) { \
                                zeros[c] = zero_of(now, zero##n##_offset, at, k, s, c); \
                                by[c] = scale_of(now, scale##n##_offset, at, k, s, c); \
                            }
                            OF_PART(own, SCALE)
                        }
                        [[unroll]] for (uint n = 0u; n < TILE_ROWS * 4u; ++n) parts[n] = 0.0;
                    }
#if defined(MATH_halves)
                    [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                        if (c >= COLUMNS) continue;
                        uint word = now.vectors[c][w] ^ (SIGNED ? ALL_MIDDLES : 0u);
                        Taken taken = taken_of(zeros[c]);
                        f16vec2 pairs[4];
                        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) pairs[n] = pair_of(word, n, taken);
                        [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m)
                            parts[m * 4u + c] += product_of(pairs, m, w, v - first);
                    }
#else
                    [[unroll]] for (uint i = 0u; i < EACH / 16u; ++i) {
                        vec4 y[4];
                        [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                            if (c >= COLUMNS) continue;
                            y[c] = without_zero(now.vectors[c][w] ^ (SIGNED ? ALL_MIDDLES : 0u), i,
                                                uintBitsToFloat(POWERS) + zeros[c]);
                        }
                        [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
                            vec4 x = four_of_row(m, w, i, v - first);
                            [[unroll]] for (uint c = 0u; c < 4u; ++c)
                                [[unroll]] for (uint e = 0u; e < 4u; ++e)
                                    if (c < COLUMNS) parts[m * 4u + c] += x[e] * y[c][e];
                        }
                    }
#endif
                    if (w % WORDS == WORDS - 1u)
                        [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m)
                            [[unroll]] for (uint c = 0u; c < 4u; ++c)
                                if (c < COLUMNS) sums[m * 4u + c] += by[c] * parts[m * 4u + c];
                }
            }
        }
        // Neighbours in a subgroup add up their sums, then an invocation those of a team.
        uint width = min(LANES, gl_SubgroupSize), along = LANES / width, own = gl_LocalInvocationIndex / width;
        barrier();  // the last tile's have been read
        [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
            vec4 four = vec4(sums[m * 4u], sums[m * 4u + 1u], sums[m * 4u + 2u], sums[m * 4u + 3u]);
            [[unroll]] for (uint d = 1u; d < 128u; d *= 2u)
                if (d < width) four += subgroupShuffleXor(four, d);
            if (gl_LocalInvocationIndex % width == 0u) s_sums[own * TILE_ROWS + m] = four;
        }
        barrier();
        uint n = gl_LocalInvocationIndex;
        if (n < min(rows, TILE_ROWS) * TEAMS) {
            uint m = n / TEAMS, group = n % TEAMS;
            vec4 four = vec4(0.0);
            for (uint s = 0u; s < along; ++s) four += s_sums[(group * along + s) * TILE_ROWS + m];
#if defined(MATH_halves)
            four *= s_lifts[m];
#endif
            uint team = gl_LocalInvocationIndex / LANES;
            store(part, m, column + group * OUTPUTS - team * OUTPUTS, four);
        }
    }
}
