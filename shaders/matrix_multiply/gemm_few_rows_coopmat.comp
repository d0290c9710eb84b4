//@ op DML_OPERATOR_GEMM
//@ variants B: k n n4; ROWS: r1(rows=1) r8(rows=8) r16(rows=16)
//@ without n.r16
//@ glslang >= 14
//@ target vulkan1.1
//@ tail *
//@ unchecked *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
// A few rows of FLOAT16 A times B, which is read once. A and B go from memory to their places in registers,
// and no subgroup waits for another before the end. Columns of B are rows of left operands, rows of A columns
// of right ones: invocation l of a subgroup of 32 holds elements of the l / 4 th and the l / 4 + 8 th
// (DeviceTraits.fragments_alike). The order along K is free: an invocation takes eight neighbours of a step
// of 32, four in each half. So is the order of columns: an invocation takes 2 FRAGMENTS neighbours.
//   k: B is read in vectors of eight elements along K, as A is.
//   n: it is read in vectors of eight columns, n4: of four. Eight invocations read neighbours of a row.
// Vectors that are not aligned are read in pieces: n in halves, the others also in words. The subgroups divide
// K, and add up their sums at the end.
const uint TILE_ROWS = ROWS_rows;
layout(local_size_x = 256, local_size_x_id = 0) in;
const uint INVOCATIONS = gl_WorkGroupSize.x, SUBGROUPS = INVOCATIONS / 32u;
#if defined(B_n)
const uint FRAGMENTS = 4u;
#define BVector uvec4
#define WHOLE 8u
#elif defined(B_n4)
const uint FRAGMENTS = 2u;
#define BVector uvec2
#define WHOLE 4u
#else
layout(constant_id = 12) const uint FRAGMENTS = 2u;  // of 16 columns
#define BVector uvec4
#define WHOLE 8u
#endif
layout(constant_id = 7) const bool ENDS_INSIDE = false;  // whether K, or a part of it, ends inside a pass
layout(constant_id = 8) const bool ENDS_ODDLY = false;  // whether K is no multiple of eight
layout(constant_id = 13) const uint STEPS = 1u;  // that a subgroup multiplies at a time
layout(constant_id = 14) const bool AHEAD = true;  // whether the next ones are read meanwhile
// The elements of A and B that one read takes: all vectors begin at multiples of them. 1: words are read, and
// their halves shifted.
layout(constant_id = 15) const uint A_EACH = 8u;
layout(constant_id = 16) const uint B_EACH = WHOLE;
const uint TILE_COLUMNS = 16u * FRAGMENTS;
#define HALF_STORES
#define ALIKE_IS_CONSTANT
#include "include/gemm.glsl"
layout(binding = 0) readonly buffer APairs { uvec2 a_pairs[]; };
layout(binding = 1) readonly buffer BPairs { uvec2 b_pairs[]; };
#ifdef B_n4
#define B_FROM b_pairs
#else
#define B_FROM b_vectors
#endif

const uint HALVES = TILE_ROWS > 8u ? 2u : 1u;  // of a right operand's columns
const uint ACROSS = 8u * HALVES;
#define Sums coopmat<float, gl_ScopeSubgroup, 16, ACROSS, gl_MatrixUseAccumulator>
#define LeftFragment coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RightFragment coopmat<float16_t, gl_ScopeSubgroup, 16, ACROSS, gl_MatrixUseB>
const uint STEP = 32u, PASS = STEP * STEPS;
const uint WIDTH = 2u * FRAGMENTS;  // neighbouring columns of an invocation
#ifdef B_k
const uint READS = WIDTH;
#else
const uint READS = 8u;
#endif

// Each subgroup's sums: HELD_ROWS rows of FOURS vectors for each invocation. Padding avoids bank conflicts.
const uint HELD_ROWS = TILE_ROWS == 1u ? 1u : 2u * HALVES;
const uint FOURS = FRAGMENTS / 2u;
const uint SUM_PITCH = FOURS == 2u ? 42u : 35u, STRIP = HELD_ROWS * FOURS * SUM_PITCH;
shared uvec4 s_sums[SUBGROUPS * STRIP];

#define LOW(x, y) ((x) & 0xFFFFu | (y) << 16u)
#define HIGH(x, y) ((x) >> 16u | (y) & 0xFFFF0000u)

#include "include/gemm_strip.glsl"

struct Found {
    BVector b[STEPS * READS];
    uvec4 a[STEPS * HALVES];
    uint b_after[STEPS * READS];  // the words behind, if vectors begin anywhere
    uint a_after[STEPS * HALVES];
};

// Eight elements along K that begin at multiples of EACH. No word lies past the last element.
#define READ_ALONG_K(x, EACH, to, after, from) \
    if (EACH == 8u) { \
        to = x##_vectors[from]; \
    } else if (EACH == 4u) { \
        to.xy = x##_pairs[from]; \
        to.zw = x##_pairs[(from) + 1u]; \
    } else { \
        const uint SHIFT = EACH == 1u ? 1u : 0u; \
        [[unroll]] for (uint w = 0u; w < 4u; ++w) to[w] = x##_words[((from) >> SHIFT) + w]; \
        if (EACH == 1u) after = x##_words[((from) + 7u) / 2u]; \
    }
// The words of elements that begin in the second half of the first one, if ``odd``.
#define SHIFTED(words, count, after, odd) \
    [[unroll]] for (uint w = 0u; w < count; ++w) { \
        uint following = w + 1u < count ? words[min(w + 1u, count - 1u)] : after; \
        words[w] = odd ? words[w] >> 16u | following << 16u : words[w]; \
    }

void main() {
    Tile t;
    if (!find_strip(t)) return;
    uint lane = gl_SubgroupInvocationID, row = lane / 4u, quad = lane % 4u;
    uint member = gl_SubgroupID;
    // Rows and columns beyond the edges are clamped, and their sums dropped. Positions count vectors.
    uint a_from[HALVES];
    [[unroll]] for (uint i = 0u; i < HALVES; ++i)
        a_from[i] = (a_offset + t.at[0] + min(i * 8u + row, rows - 1u) * a_row) / A_EACH;
#ifdef B_k
    uint b_from[READS];
    [[unroll]] for (uint i = 0u; i < READS; ++i)
        b_from[i] = (b_offset + t.at[1] + min(t.column + row * WIDTH + i, columns - 1u) * b_column) / B_EACH;
#else
    const uint APART = max(B_EACH, 2u);
    uint b_from[2], b_first = b_offset + t.at[1], b_line = b_k / B_EACH;
    [[unroll]] for (uint j = 0u; j < WHOLE / APART; ++j)
        b_from[j] = (b_first + min(t.column + row * WIDTH + j * APART, columns - B_EACH)) / B_EACH;
    uint b_last = b_first + min(t.column + row * WIDTH + WIDTH - 1u, columns - 1u);
#endif
    // An invocation's eight elements of a step are all inside, or all past the end. If K ends oddly, the last
    // one reads the last eight, at least as many as K has, and drops those that others read, too.
    uint first = t.begin + quad * 8u, last = t.end - 8u;
    uint passes = (t.end - t.begin - 1u) / PASS + 1u;
#define PLACE_OF(pass, s) (first + (pass) * PASS + (s) * STEP)
#ifdef B_k
#define READ_B(found, s, i, k) \
    READ_ALONG_K(b, B_EACH, found.b[(s) * READS + i], found.b_after[(s) * READS + i], \
                 b_from[i] + (k) / B_EACH)
#else
#ifdef B_n4
#define READ_HALVES(to, after, line) \
    const uint SHIFT = B_EACH == 1u ? 1u : 0u; \
    to.x = b_words[(b_from[0] + line) >> SHIFT]; \
    to.y = b_words[(b_from[1] + line) >> SHIFT]; \
    if (B_EACH == 1u) after = b_words[(b_last + line) / 2u];
#else
#define READ_HALVES(to, after, line) \
    to.xy = b_pairs[b_from[0] + line]; \
    to.zw = b_pairs[b_from[1] + line];
#endif
#define READ_B(found, s, i, k) \
    { \
        uint line = ((k) + i) * b_line; \
        if (B_EACH == WHOLE) { \
            found.b[(s) * READS + i] = B_FROM[b_from[0] + line]; \
        } else { \
            READ_HALVES(found.b[(s) * READS + i], found.b_after[(s) * READS + i], line) \
        } \
    }
#endif
#define READ(found, pass) \
    { \
        [[unroll]] for (uint s = 0u; s < STEPS; ++s) { \
            uint k = PLACE_OF(pass, s); \
            if (ENDS_INSIDE) k = min(k, last); \
            [[unroll]] for (uint i = 0u; i < READS; ++i) READ_B(found, s, i, k) \
        } \
        [[unroll]] for (uint s = 0u; s < STEPS; ++s) { \
            uint k = PLACE_OF(pass, s); \
            if (ENDS_INSIDE) k = min(k, last); \
            [[unroll]] for (uint i = 0u; i < HALVES; ++i) \
                READ_ALONG_K(a, A_EACH, found.a[s * HALVES + i], found.a_after[s * HALVES + i], \
                             a_from[i] + k / A_EACH) \
        } \
    }
    Sums sums[FRAGMENTS];
    [[unroll]] for (uint f = 0u; f < FRAGMENTS; ++f) sums[f] = Sums(0.0);
    // The words of a left operand are elements of the rows and places along K 0 0, 0 8, 8 0, 8 8.
#ifdef B_k
#define WORDS(b, f, n) \
    uvec4(b[2u * (f)][2u * (n)], b[2u * (f)][2u * (n) + 1u], b[2u * (f) + 1u][2u * (n)], \
          b[2u * (f) + 1u][2u * (n) + 1u])
#else
#define WORDS(b, f, n) \
    uvec4(LOW(b[4u * (n)][f], b[4u * (n) + 1u][f]), LOW(b[4u * (n) + 2u][f], b[4u * (n) + 3u][f]), \
          HIGH(b[4u * (n)][f], b[4u * (n) + 1u][f]), HIGH(b[4u * (n) + 2u][f], b[4u * (n) + 3u][f]))
#endif
#ifdef B_k
#define B_IS_ODD(i, k) ((b_from[i] + (k)) % 2u == 1u)
#define B_KEPT(i, x) (x & kept)
#else
#define B_IS_ODD(i, k) ((b_first + ((k) + i) * b_k) % 2u == 1u)
#define B_KEPT(i, x) (i < dropped ? BVector(0u) : x)
#endif
#define CONSUME(found, pass) \
    [[unroll]] for (uint s = 0u; s < STEPS; ++s) { \
        BVector b[READS]; \
        uvec4 a[HALVES]; \
        bool past = ENDS_INSIDE && PLACE_OF(pass, s) > last; \
        [[unroll]] for (uint i = 0u; i < READS; ++i) b[i] = found.b[s * READS + i]; \
        [[unroll]] for (uint i = 0u; i < HALVES; ++i) a[i] = found.a[s * HALVES + i]; \
        uint k = past ? last : PLACE_OF(pass, s), dropped = PLACE_OF(pass, s) - k; \
        if (B_EACH == 1u) \
            [[unroll]] for (uint i = 0u; i < READS; ++i) \
                SHIFTED(b[i], WHOLE / 2u, found.b_after[s * READS + i], B_IS_ODD(i, k)) \
        if (A_EACH == 1u) \
            [[unroll]] for (uint i = 0u; i < HALVES; ++i) \
                SHIFTED(a[i], 4u, found.a_after[s * HALVES + i], (a_from[i] + k) % 2u == 1u) \
        if (ENDS_ODDLY) { \
            uvec4 kept; \
            [[unroll]] for (uint w = 0u; w < 4u; ++w) \
                kept[w] = dropped > 2u * w + 1u ? 0u : dropped > 2u * w ? 0xFFFF0000u : 0xFFFFFFFFu; \
            [[unroll]] for (uint i = 0u; i < READS; ++i) b[i] = B_KEPT(i, b[i]); \
            [[unroll]] for (uint i = 0u; i < HALVES; ++i) a[i] &= kept; \
        } else { \
            [[unroll]] for (uint i = 0u; i < READS; ++i) b[i] = past ? BVector(0u) : b[i]; \
            [[unroll]] for (uint i = 0u; i < HALVES; ++i) a[i] = past ? uvec4(0u) : a[i]; \
        } \
        [[unroll]] for (uint n = 0u; n < 2u; ++n) { \
            RightFragment right; \
            [[unroll]] for (uint i = 0u; i < 2u * HALVES; ++i) { \
                f16vec2 pair = unpackFloat2x16(a[i / 2u][2u * n + i % 2u]); \
                right[2u * i] = pair.x; \
                right[2u * i + 1u] = pair.y; \
            } \
            [[unroll]] for (uint f = 0u; f < FRAGMENTS; ++f) { \
                LeftFragment left; \
                uvec4 words = WORDS(b, f, n); \
                [[unroll]] for (int i = 0; i < 4; ++i) { \
                    f16vec2 pair = unpackFloat2x16(words[i]); \
                    left[2 * i] = pair.x; \
                    left[2 * i + 1] = pair.y; \
                } \
                sums[f] = coopMatMulAdd(left, right, sums[f]); \
            } \
        } \
    }
    if (AHEAD) {
        Found next;
        READ(next, min(member, passes - 1u))
        for (uint pass = member; pass < passes; pass += SUBGROUPS) {
            Found found;
            [[unroll]] for (uint i = 0u; i < STEPS * READS; ++i) found.b[i] = next.b[i];
            [[unroll]] for (uint i = 0u; i < STEPS * HALVES; ++i) found.a[i] = next.a[i];
            if (B_EACH == 1u)
                [[unroll]] for (uint i = 0u; i < STEPS * READS; ++i) found.b_after[i] = next.b_after[i];
            if (A_EACH == 1u)
                [[unroll]] for (uint i = 0u; i < STEPS * HALVES; ++i) found.a_after[i] = next.a_after[i];
            // If this had a condition, compilers would wait for these loads before they multiply.
            READ(next, min(pass + SUBGROUPS, passes - 1u))
            CONSUME(found, pass)
        }
    } else {
        for (uint pass = member; pass < passes; pass += SUBGROUPS) {
            Found found;
            READ(found, pass)
            CONSUME(found, pass)
        }
    }

    // Vector q of an invocation: four neighbours of its row r, which is 2 quad + r % 2 + r / 2 * 8 of 16.
    const uint BELOW = 2u * HALVES;  // elements of a fragment's rows from 8 on follow
#define FOUR(r, q) \
    vec4(sums[2u * (q)][r], sums[2u * (q)][BELOW + (r)], sums[2u * (q) + 1u][r], \
         sums[2u * (q) + 1u][BELOW + (r)])
    [[unroll]] for (uint r = 0u; r < HELD_ROWS; ++r)
        [[unroll]] for (uint q = 0u; q < FOURS; ++q)
            s_sums[member * STRIP + (r * FOURS + q) * SUM_PITCH + lane + lane / 8u] =
                floatBitsToUint(FOUR(r, q));
    barrier();
    const uint ALL_FOURS = TILE_COLUMNS / 4u;
    for (uint n = gl_LocalInvocationIndex; n < TILE_ROWS * ALL_FOURS; n += INVOCATIONS) {
        uint m = n / ALL_FOURS, four = n % ALL_FOURS, holder = four / FOURS * 4u + m % 8u / 2u;
        uint at = ((m % 2u + m / 8u * 2u) * FOURS + four % FOURS) * SUM_PITCH + holder + holder / 8u;
        vec4 found = uintBitsToFloat(s_sums[at]);
        [[unroll]] for (uint d = 1u; d < SUBGROUPS; ++d)
            found += uintBitsToFloat(s_sums[at + d * STRIP]);
        finish_four(t, m, t.column + four * 4u, found);
    }
    add_parts(t);
}
