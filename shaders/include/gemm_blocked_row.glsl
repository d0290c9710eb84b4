// One row of A times a B of 4-bit elements in blocks of K, for gemm_blocked_weights_coopmat.comp. Elements are
// multiplied without their scales, which would take an instruction for each two: sums of 32 of K are scaled.
// An invocation holds the elements of one such piece in its places along K, its quad another, so eight
// columns of the right operand are A with zeros in all pieces but one: column n is for piece n % 4. The
// sums then have a column for each piece.
const uint SPAN = 256u;  // of K: two times four pieces
layout(constant_id = 10) const bool SCALE_PAIRS = false;  // whether pieces 2 n and 2 n + 1 have scales in one word
const uint HELD = A_READS * INVOCATIONS;  // vectors of A: all of a part of K
shared uvec4 s_a[HELD + 32u];  // then zeros
shared float s_sums[SUBGROUPS * OWN_COLUMNS];

// Vectors of rows 0 and 8 of the left operand, two of each. Scales of two pieces for each row.
struct Found {
    uvec4 vectors[4];
    uint scales[4];
    uint zeros[4];
};

// Four pairs of elements of a word, without their zero points.
uvec4 reals(uint word, f16vec2 taken, f16vec2 taken_above) {
    uint other = word >> 8u;
    return uvec4(packFloat2x16(unpackFloat2x16(word & 0x000F000Fu | 0x64006400u) - taken),
                 packFloat2x16(unpackFloat2x16(word & 0x00F000F0u | 0x54005400u) - taken_above),
                 packFloat2x16(unpackFloat2x16(other & 0x000F000Fu | 0x64006400u) - taken),
                 packFloat2x16(unpackFloat2x16(other & 0x00F000F0u | 0x54005400u) - taken_above));
}

// The words are elements of the rows and places along K 0 0, 0 8, 8 0, 8 8, and of places 0 and 8 of A.
#define MULTIPLY(sums, words, a) \
    { \
        LeftFragment left; \
        RightFragment right; \
        uvec4 b_pairs = words; \
        uvec2 a_pairs = a; \
        [[unroll]] for (int i = 0; i < 4; ++i) { \
            f16vec2 pair = unpackFloat2x16(b_pairs[i]); \
            left[2 * i] = pair.x; \
            left[2 * i + 1] = pair.y; \
        } \
        [[unroll]] for (int i = 0; i < 2; ++i) { \
            f16vec2 pair = unpackFloat2x16(a_pairs[i]); \
            right[2 * i] = pair.x; \
            right[2 * i + 1] = pair.y; \
        } \
        sums = coopMatMulAdd(left, right, sums); \
    }

// Vector v of A in the order of the left operand's elements.
void hold(uint v, uvec4 x) {
    [[unroll]] for (uint n = 0u; n < 4u; ++n) {
        uint low = x[n / 2u], high = x[2u + n / 2u];
        s_a[v][n] = n % 2u == 0u ? (low & 0xFFFFu) | high << 16u : low >> 16u | (high & 0xFFFF0000u);
    }
}

uint scale_from[2], zero_from[2];

uint scale_at(uint row, uint piece) {
    return scale_from[row] + min(piece, (K - 1u) / 32u) * 32u / BLOCK * scale_block;
}

uint zero_at(uint row, uint piece) {
    return zero_from[row] + min(piece, (K - 1u) / 32u) * 32u / BLOCK * zero_block;
}

float scale_of(Found f, uint row, uint piece, uint i) {
    if (ENDS_INSIDE && piece * 32u >= K) return 0.0;
    f16vec2 pair = unpackFloat2x16(f.scales[2u * row + (SCALE_PAIRS ? 0u : i)]);
    return float(SCALE_PAIRS ? pair[i] : scale_at(row, piece) % 2u == 0u ? pair.x : pair.y);
}

void main() {
    Tile t;
    if (!find_strip(t)) return;
    uint lane = gl_SubgroupInvocationID, row = lane / 4u, quad = lane % 4u;
    uint member = gl_SubgroupID % SUBGROUPS_K;
    uint column = t.column + gl_SubgroupID / SUBGROUPS_K * OWN_COLUMNS;
    uint spans = (t.end - t.begin - 1u) / SPAN + 1u, before = t.begin / SPAN;
    uint count = spans > member ? (spans - member - 1u) / SUBGROUPS_K + 1u : 0u;  // of this subgroup
    uint from[2];
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        uint c = min(column + i * 8u + row, columns - 1u);
        from[i] = b_offset / 16u + (t.at[1] + c * b_column) / 32u;
        scale_from[i] = scale_offset + c * scale_column;
        zero_from[i] = zero_offset * 2u + c * zero_column;
    }
    uvec4 a_read[A_READS];
    [[unroll]] for (uint i = 0u; i < A_READS; ++i)
        a_read[i] = vector_of_a(a_offset + t.at[0],
                                t.begin + (gl_LocalInvocationIndex + i * INVOCATIONS) * 8u, t.end);
#define READ(found, n) \
    if ((n) < count) { \
        uint first = (before + member + (n) * SUBGROUPS_K) * 8u; \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) { \
            uint piece = first + i % 2u * 4u + quad; \
            if (ENDS_INSIDE) piece = min(piece, (K - 1u) / 32u); \
            found.vectors[i] = b_vectors[from[i / 2u] + piece]; \
            if (HAS_ZERO) found.zeros[i] = zero_words[zero_at(i / 2u, piece) / 8u]; \
        } \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) \
            if (!SCALE_PAIRS || i % 2u == 0u) \
                found.scales[i] = scale_words[scale_at(i / 2u, first + 2u * quad + i % 2u) / 2u]; \
    }
#define CONSUME(found, n) \
    { \
        uint first = (before + member + (n) * SUBGROUPS_K) * 8u; \
        uint held = own ? ((member + (n) * SUBGROUPS_K) * 8u + quad) * 4u : HELD; \
        f16vec2 taken[4], taken_above[4]; \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) { \
            uint zero = 8u; \
            if (HAS_ZERO) { \
                uint at = zero_at(i / 2u, first + i % 2u * 4u + quad); \
                zero = bitfieldExtract(found.zeros[i], int(at % 8u * 4u), 4) ^ (SIGNED ? 8u : 0u); \
            } \
            taken[i] = unpackFloat2x16(0x64006400u | zero << 16u | zero); \
            taken_above[i] = unpackFloat2x16(0x54005400u | zero << 20u | zero << 4u); \
        } \
        Sums low = Sums(0.0), high = Sums(0.0); \
        [[unroll]] for (uint w = 0u; w < 4u; ++w) { \
            uvec4 parts[4]; \
            [[unroll]] for (uint i = 0u; i < 4u; ++i) \
                parts[i] = reals(found.vectors[i][w] ^ (SIGNED ? 0x88888888u : 0u), taken[i], taken_above[i]); \
            uvec4 a = s_a[held + w], b = s_a[held + 16u + w]; \
            MULTIPLY(low, uvec4(parts[0].xy, parts[2].xy), a.xy) \
            MULTIPLY(high, uvec4(parts[1].xy, parts[3].xy), b.xy) \
            MULTIPLY(low, uvec4(parts[0].zw, parts[2].zw), a.zw) \
            MULTIPLY(high, uvec4(parts[1].zw, parts[3].zw), b.zw) \
        } \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) { \
            float sum = quad < 2u ? low[i] : high[i]; \
            total[i / 2u] += sum * scale_of(found, i / 2u, first + 2u * quad + i % 2u, i % 2u); \
        } \
    }
    Found found, next;
    READ(next, 0u)
    [[unroll]] for (uint i = 0u; i < A_READS; ++i) hold(gl_LocalInvocationIndex + i * INVOCATIONS, a_read[i]);
    if (gl_LocalInvocationIndex < 32u) s_a[HELD + gl_LocalInvocationIndex] = uvec4(0u);
    barrier();
    bool own = row % 4u == quad;
    float total[2] = float[2](0.0, 0.0);
    [[dont_unroll]] for (uint n = 0u; n < count; ++n) {
        found = next;
        READ(next, n + 1u)
        CONSUME(found, n)
    }
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        total[i] += subgroupShuffleXor(total[i], 1u);
        total[i] += subgroupShuffleXor(total[i], 2u);
        if (quad == 0u) s_sums[gl_SubgroupID * OWN_COLUMNS + i * 8u + row] = total[i];
    }
    barrier();
    uint c = gl_LocalInvocationIndex * 4u;
    if (c < TILE_COLUMNS) {
        uint at = c / OWN_COLUMNS * SUBGROUPS_K * OWN_COLUMNS + c % OWN_COLUMNS;
        vec4 four = vec4(0.0);
        [[unroll]] for (uint d = 0u; d < SUBGROUPS_K; ++d)
            [[unroll]] for (uint i = 0u; i < 4u; ++i) four[i] += s_sums[at + d * OWN_COLUMNS + i];
        finish_four(t, 0u, t.column + c, four);
    }
    add_parts(t);
}
