//@ op DML_OPERATOR_GEMM
//@ variants ROWS: r1(rows=1) r8(rows=8) r16(rows=16)
//@ unchecked r16
//@ glslang >= 14
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require
// A few rows of FLOAT16 A times a B of 4-bit elements in blocks of K, each with a scale. Columns of B are the
// rows of left operands, whose elements go from memory to their places in registers: invocation l of a
// subgroup of 32 holds elements of rows l / 4 and l / 4 + 8 (DeviceTraits.fragments_alike), and reads vectors
// of 32 elements along K. The order along K is free, if A has the same. One row has a way of its own
// (include/gemm_blocked_row.glsl).
// SUBGROUPS_K subgroups divide K of the same columns, and SUBGROUPS_ACROSS divide the columns of a tile.
const uint TILE_ROWS = ROWS_rows;
layout(local_size_x = 256, local_size_x_id = 0) in;
const uint INVOCATIONS = gl_WorkGroupSize.x, SUBGROUPS = INVOCATIONS / 32u;
layout(constant_id = 11) const uint SUBGROUPS_K = 8u;
layout(constant_id = 12) const uint FRAGMENTS = 2u;  // of 16 columns, for each subgroup
layout(constant_id = 5) const bool A_VECTORS = false;
layout(constant_id = 7) const bool ENDS_INSIDE = false;  // whether K, or a part of it, ends inside a step
const uint SUBGROUPS_ACROSS = SUBGROUPS / SUBGROUPS_K;
const uint OWN_COLUMNS = 16u * FRAGMENTS;
const uint TILE_COLUMNS = SUBGROUPS_ACROSS * OWN_COLUMNS;
#define BLOCKED_B
layout(constant_id = 6) const bool SIGNED = false;
layout(constant_id = 8) const bool HAS_ZERO = false;
layout(constant_id = 9) const uint BLOCK = 32u;
// Steps take turns in two variables. Arrays of steps are put into memory.
#ifndef ROWS_r16
#define TWO_AHEAD
#endif
#define ALIKE_IS_CONSTANT
#include "include/gemm.glsl"
INPUT_TENSOR(scale, 6, TYPE)
layout(binding = 7) readonly buffer Zero { uint zero_words[]; };

layout(constant_id = 13) const uint A_READS = 1u;  // vectors of A that an invocation reads at a time
const uint ACROSS = TILE_ROWS > 8u ? 16u : 8u;  // columns of a right operand, which are rows of A
#define Sums coopmat<float, gl_ScopeSubgroup, 16, ACROSS, gl_MatrixUseAccumulator>
#define LeftFragment coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RightFragment coopmat<float16_t, gl_ScopeSubgroup, 16, ACROSS, gl_MatrixUseB>

// Eight elements of a row of A from element k on, where those from the end on are 0.
uvec4 vector_of_a(uint from, uint k, uint end) {
    if (k >= end) return uvec4(0u);
    uvec4 x;
    if (A_VECTORS) {
        x = a_vectors[(from + k) / 8u];
        if (ENDS_INSIDE && end - k < 8u)
            [[unroll]] for (uint e = 0u; e < 8u; ++e)
                if (k + e >= end) x[e / 2u] &= e % 2u == 0u ? 0u : 0xFFFFu;
        return x;
    }
    x = uvec4(0u);
    [[unroll]] for (uint e = 0u; e < 8u; ++e)
        if (k + e < end) x[e / 2u] |= a_bits(from + (k + e) * a_k).x << (e % 2u * 16u);
    return x;
}

#include "include/gemm_strip.glsl"

#ifdef ROWS_r1
#include "include/gemm_blocked_row.glsl"
#else
// A step is what a subgroup multiplies at a time, a round one step of each subgroup along K, a chunk the
// rounds for which A lies in shared memory: A_READS vectors for each invocation. The next one is read
// meanwhile.
const uint STEP = 128u;
const uint READS = 2u * FRAGMENTS;
const uint STEP_VECTORS = STEP / 8u;
const uint CHUNK_VECTORS = A_READS * INVOCATIONS / TILE_ROWS;  // of a row of A
const uint ROUNDS = CHUNK_VECTORS / (STEP_VECTORS * SUBGROUPS_K);  // of a chunk

// Shared memory holds two chunks of A, then the sums of each subgroup. A vector of padding avoids bank
// conflicts.
const uint PITCH = CHUNK_VECTORS + 1u;
const uint CHUNK = TILE_ROWS * PITCH;
const uint A_PITCH = TILE_ROWS == 1u ? 0u : PITCH;
const uint SUM_PITCH = OWN_COLUMNS / 4u + 1u;
const uint STRIP = ACROSS * SUM_PITCH;
const uint A_SIZE = 2u * CHUNK, SUM_SIZE = SUBGROUPS * STRIP;
shared uvec4 s_memory[A_SIZE > SUM_SIZE ? A_SIZE : SUM_SIZE];

// Stores vector v of a line of A in the order of the left operand's elements.
void hold(uint line, uint v, uvec4 x) {
    uint to = line + v / 16u * 16u + v % 4u * 4u, part = v % 16u / 4u;
    [[unroll]] for (uint n = 0u; n < 4u; ++n) {
        uint low = x[n / 2u], high = x[2u + n / 2u];
        s_memory[to + n][part] =
            n % 2u == 0u ? (low & 0xFFFFu) | high << 16u : low >> 16u | (high & 0xFFFF0000u);
    }
}

Sums sums[FRAGMENTS];
RightFragment right;

#define LOAD_RIGHT(from) \
    coopMatLoad(right, s_memory, from, A_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
// The words are elements of the rows and places along K 0 0, 0 8, 8 0, 8 8.
#define MULTIPLY(f, given) \
    { \
        LeftFragment left; \
        uvec4 words = given; \
        [[unroll]] for (int i = 0; i < 4; ++i) { \
            f16vec2 pair = unpackFloat2x16(words[i]); \
            left[2 * i] = pair.x; \
            left[2 * i + 1] = pair.y; \
        } \
        sums[f] = coopMatMulAdd(left, right, sums[f]); \
    }

struct Found {
    uvec4 vectors[READS];
    uint scales[READS];
    uint zeros[READS];
};
const uint ALL_MIDDLES = SIGNED ? 0x88888888u : 0u;

// Four pairs of elements of a word, with scales.
uvec4 reals(uint word, f16vec2 taken, f16vec2 taken_above, f16vec2 by) {
    word ^= ALL_MIDDLES;
    uint other = word >> 8u;
    f16vec2 x = unpackFloat2x16(word & 0x000F000Fu | 0x64006400u) - taken;
    f16vec2 y = unpackFloat2x16(word & 0x00F000F0u | 0x54005400u) - taken_above;
    f16vec2 z = unpackFloat2x16(other & 0x000F000Fu | 0x64006400u) - taken;
    f16vec2 w = unpackFloat2x16(other & 0x00F000F0u | 0x54005400u) - taken_above;
    return uvec4(packFloat2x16(x * by), packFloat2x16(y * by), packFloat2x16(z * by),
                 packFloat2x16(w * by));
}

void main() {
    Tile t;
    if (!find_strip(t)) return;
    uint lane = gl_SubgroupInvocationID, row = lane / 4u, quad = lane % 4u;
    uint member = gl_SubgroupID % SUBGROUPS_K;
    uint column = t.column + gl_SubgroupID / SUBGROUPS_K * OWN_COLUMNS;
    uint steps = (t.end - t.begin - 1u) / STEP + 1u;
    uint from[2u * FRAGMENTS];
    uint scale_from[2u * FRAGMENTS], zero_from[2u * FRAGMENTS];
    [[unroll]] for (uint i = 0u; i < 2u * FRAGMENTS; ++i) {
        uint c = min(column + i * 8u + row, columns - 1u);
        from[i] = b_offset / 16u + (t.at[1] + c * b_column) / 32u + quad;
        scale_from[i] = scale_offset + c * scale_column;
        zero_from[i] = zero_offset * 2u + c * zero_column;
    }
    Found found;
#ifdef TWO_AHEAD
    Found other;
#endif
    // Past the end, steps are not multiplied, and vectors are 0.
#define READ(found, step) \
    { \
        uint first = (t.begin + (step) * STEP) / 32u, v = min(first + quad, (K - 1u) / 32u); \
        [[unroll]] for (uint i = 0u; i < READS; ++i) { \
            found.vectors[i] = b_vectors[from[i] + v - quad]; \
            found.scales[i] = scale_words[(scale_from[i] + v * 32u / BLOCK * scale_block) / 2u]; \
            if (HAS_ZERO) \
                found.zeros[i] = zero_words[(zero_from[i] + v * 32u / BLOCK * zero_block) / 8u]; \
        } \
    }
#define CONSUME(found, step, held) \
    { \
        uint v = (t.begin + (step) * STEP) / 32u + quad; \
        f16vec2 by[READS], taken[READS], taken_above[READS]; \
        [[unroll]] for (uint i = 0u; i < READS; ++i) { \
            uint at = scale_from[i] + v * 32u / BLOCK * scale_block; \
            uint word = at % 2u == 0u ? found.scales[i] & 0xFFFFu : found.scales[i] >> 16u; \
            by[i] = unpackFloat2x16(v * 32u < K ? word | word << 16u : 0u); \
            uint zero = 8u; \
            if (HAS_ZERO) { \
                at = zero_from[i] + v * 32u / BLOCK * zero_block; \
                zero = bitfieldExtract(found.zeros[i], int(at % 8u * 4u), 4) ^ (SIGNED ? 8u : 0u); \
            } \
            taken[i] = unpackFloat2x16(0x64006400u | zero << 16u | zero); \
            taken_above[i] = unpackFloat2x16(0x54005400u | zero << 20u | zero << 4u); \
        } \
        [[unroll]] for (uint w = 0u; w < 4u; ++w) { \
            uvec4 parts[READS]; \
            [[unroll]] for (uint i = 0u; i < READS; ++i) \
                parts[i] = reals(found.vectors[i][w], taken[i], taken_above[i], by[i]); \
            [[unroll]] for (uint j = 0u; j < 2u; ++j) { \
                LOAD_RIGHT(held + (w * 2u + j) * 2u) \
                [[unroll]] for (uint f = 0u; f < FRAGMENTS; ++f) { \
                    uvec4 x = parts[2u * f], y = parts[2u * f + 1u]; \
                    MULTIPLY(f, uvec4(x[2u * j], x[2u * j + 1u], y[2u * j], y[2u * j + 1u])) \
                } \
            } \
        } \
    }

    uvec4 a_next[A_READS];
#define READ_A(chunk) \
    [[unroll]] for (uint i = 0u; i < A_READS; ++i) { \
        uint n = gl_LocalInvocationIndex + i * INVOCATIONS, line = n / CHUNK_VECTORS; \
        a_next[i] = vector_of_a(a_offset + t.at[0] + min(line, rows - 1u) * a_row, \
                                t.begin + ((chunk) * CHUNK_VECTORS + n % CHUNK_VECTORS) * 8u, t.end); \
    }
#define HOLD_A(chunk) \
    [[unroll]] for (uint i = 0u; i < A_READS; ++i) { \
        uint n = gl_LocalInvocationIndex + i * INVOCATIONS; \
        hold((chunk) % 2u * CHUNK + n / CHUNK_VECTORS * PITCH, n % CHUNK_VECTORS, a_next[i]); \
    }
    READ_A(0u)
    READ(found, min(member, steps - 1u))
#ifdef TWO_AHEAD
    READ(other, min(SUBGROUPS_K + member, steps - 1u))
#endif
    [[unroll]] for (uint f = 0u; f < FRAGMENTS; ++f) sums[f] = Sums(0.0);
    HOLD_A(0u)
    READ_A(1u)
    barrier();
    // After the last round of a chunk, the next chunk takes the other half of shared memory.
    uint rounds = (steps - 1u) / SUBGROUPS_K + 1u, round = 0u;
#define ROUND(found, read) \
    { \
        uint step = round * SUBGROUPS_K + member, chunk = round / ROUNDS; \
        uint held = chunk % 2u * CHUNK + (round % ROUNDS * SUBGROUPS_K + member) * STEP_VECTORS; \
        if (step < steps) CONSUME(found, step, held) \
        read \
    }
#define NEXT_CHUNK \
    if (round % ROUNDS == ROUNDS - 1u) { \
        uint chunk = round / ROUNDS + 1u; \
        HOLD_A(chunk) \
        READ_A(chunk + 1u) \
        barrier(); \
    }
#define NEXT_ROUND(found, ahead) \
    ROUND(found, READ(found, min(step + (ahead) * SUBGROUPS_K, steps - 1u))) \
    NEXT_CHUNK \
    ++round;
#ifdef TWO_AHEAD
    while (round + 2u < rounds) {
        NEXT_ROUND(found, 2u)
        NEXT_ROUND(other, 2u)
    }
    ROUND(found, ;)
    if (round + 1u < rounds) {
        NEXT_CHUNK
        ++round;
        ROUND(other, ;)
    }
#else
    while (round + 1u < rounds) {
        NEXT_ROUND(found, 1u)
    }
    ROUND(found, ;)
#endif

    barrier();
    [[unroll]] for (uint f = 0u; f < FRAGMENTS; ++f)
        coopMatStore(sums[f], s_memory, gl_SubgroupID * STRIP + f * 4u, SUM_PITCH,
                     gl_CooperativeMatrixLayoutColumnMajor);
    barrier();
    const uint FOURS = TILE_COLUMNS / 4u;
    for (uint n = gl_LocalInvocationIndex; n < TILE_ROWS * FOURS; n += INVOCATIONS) {
        uint m = n / FOURS, c = n % FOURS * 4u, own = c % OWN_COLUMNS;
        uint at = c / OWN_COLUMNS * SUBGROUPS_K * STRIP + m * SUM_PITCH + own / 4u;
        vec4 four = vec4(0.0);
        [[unroll]] for (uint d = 0u; d < SUBGROUPS_K; ++d)
            four += uintBitsToFloat(s_memory[at + d * STRIP]);
        finish_four(t, m, t.column + c, four);
    }
    add_parts(t);
}
#endif
