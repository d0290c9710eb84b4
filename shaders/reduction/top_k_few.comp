//@ op DML_OPERATOR_TOP_K DML_OPERATOR_TOP_K1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A workgroup finds the first K entries of a row, or of a part of it, for a small K. Invocations share the
// row, and GROUPS groups of them have a first entry each. The K-th of these first entries is a bound:
// at least K entries of the row pass it, and seldom many more. They are gathered. The rank of each is the
// number of those that come before it.
#define PARAMS_BINDING 5
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint INDEX_TYPE = 4u;
layout(constant_id = 3) const bool LEAST = false;
layout(constant_id = 4) const bool FROM_ENTRIES = false;
layout(constant_id = 5) const bool TO_ENTRIES = false;
layout(constant_id = 6) const uint HIGH = 1u;  // entries with a first word: MOST for 64-bit types, else 1
layout(constant_id = 7) const uint GROUPS = 1u;  // a power of two, up to the invocations
layout(constant_id = 8) const uint EACH = 1u;  // elements of a piece: 1, or those of a vector
layout(constant_id = 9) const uint KEPT = 1u;  // pieces that an invocation reads at a time
layout(constant_id = 10) const bool FITS = false;  // all pieces are kept in registers
layout(constant_id = 11) const bool ONE_WORD = false;  // an entry is one word: 16 bits, the inverted index
layout(push_constant) uniform Push {
    uint rows;
    uint columns;
    uint k;
    uint parts;  // of a row
    uint part_columns;
    uint x_stride;
    uint y_stride;
    uint z_stride;
    uint x_offset;
    uint y_offset;
    uint z_offset;
    uint entries_offset;
    uint made_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/entries.glsl"

OUTPUT_TENSOR(y, 1, TYPE)
OUTPUT_TENSOR(z, 2, INDEX_TYPE)
layout(binding = 3) readonly buffer Entries { uint entries[]; };
layout(binding = 4) buffer Made { uint made[]; };
WALK(walk, 3)

const uint MOST = 512u;  // entries that may be gathered
shared uvec2 s_entries[MOST];
shared uint s_high[HIGH];
shared uvec3 s_bound;
shared uint s_count;

void put(uint place, uvec3 e) {
    if (BYTES_OF(TYPE) == 8u) s_high[place] = e.x;
    s_entries[place] = e.yz;
}

uvec3 gathered(uint i) {
    uvec2 lower = s_entries[i];
    return uvec3(BYTES_OF(TYPE) == 8u ? s_high[i] : 0u, lower.x, ONE_WORD ? 0u : lower.y);
}

uint rank_among(uint count, uvec3 e) {
    uint rank = 0u;
    for (uint i = 0u; i < count; ++i) rank += uint(comes_before(gathered(i), e));
    return rank;
}

// The K-th of the first ``count`` gathered entries.
void find_bound(uint count) {
    for (uint i = gl_LocalInvocationIndex; i < count; i += gl_WorkGroupSize.x) {
        uvec3 e = gathered(i);
        if (rank_among(count, e) == k - 1u) s_bound = e;
    }
    barrier();
}

// The entry of a part's column ``c``, with an index in that part if it is one word.
uvec3 entry_at(uvec2 bits, uint from, uint c) {
    if (!ONE_WORD) return entry_of(bits, from + c);
    return uvec3(0u, short_entry_of(bits, c), 0u);
}

// Registers keep no indices that are known from the column.
uvec3 with_index(uvec3 kept, uint column) {
    if (!FROM_ENTRIES && !ONE_WORD) kept.z = ~column;
    return kept;
}

bool is_larger(uvec3 a, uvec3 b) {
    if (BYTES_OF(TYPE) == 8u && a.x != b.x) return a.x > b.x;
    return a.y > b.y;
}

void main() {
    uint i = gl_LocalInvocationIndex, size = gl_WorkGroupSize.x;
    uint row = group_index() / parts, part = group_index() % parts;
    if (row >= rows) return;
    uint[3] at = walk(0u, row);
    uint x_row = x_offset + at[0];
    uint from = part * part_columns, count = min(columns - from, part_columns);

    // Elements before and after whole vectors are read one by one.
    uint first = EACH == 1u ? 0u : (x_row + from + EACH - 1u) / EACH;
    uint head = EACH == 1u ? 0u : min(first * EACH - (x_row + from), count);
    uint pieces = (count - head) / EACH, edges = count - pieces * EACH;
    uvec3 edge = uvec3(0u), best = uvec3(0u);
    if (EACH != 1u && i < edges) {
        uint c = i < head ? i : i + pieces * EACH;
        best = edge = entry_at(x_bits(x_row + from + c), from, c);
    }
    uvec3 kept[KEPT * EACH];
#define READ_PIECES(base) \
    [[unroll]] for (uint p = 0u; p < KEPT; ++p) { \
        uint piece = base + p * size, c = head + piece * EACH; \
        if (piece < pieces) { \
            if (FROM_ENTRIES) { \
                uint word = entries_offset + 3u * (row * columns + from + piece); \
                kept[p] = uvec3(entries[word], entries[word + 1u], entries[word + 2u]); \
            } else if (EACH == 1u) { \
                kept[p] = entry_at(x_bits(x_row + (from + piece) * x_stride), from, piece); \
            } else { \
                uvec4 vector = x_vectors[first + piece]; \
                [[unroll]] for (uint e = 0u; e < EACH; ++e) \
                    kept[p * EACH + e] = entry_at(element_of(vector, e, TYPE), from, c + e); \
            } \
        } \
    }
    for (uint base = i; base < pieces; base += KEPT * size) {
        READ_PIECES(base)
        [[unroll]] for (uint p = 0u; p < KEPT; ++p) {
            uint piece = base + p * size, c = from + head + piece * EACH;
            [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                uvec3 own = with_index(kept[p * EACH + e], c + e);
                // The first comparison replaces a missing entry. The others need no index.
                if (piece < pieces && (e == 0u ? comes_before(own, best) : is_larger(own, best)))
                    best = own;
            }
        }
        if (FITS) break;
    }
    put(i, best);
    if (i == 0u) s_bound = uvec3(0u);
    barrier();
    if (GROUPS < size) {
        uvec3 leads = best;
        if (i < GROUPS)
            for (uint other = i + GROUPS; other < size; other += GROUPS) {
                uvec3 e = gathered(other);
                if (comes_before(e, leads)) leads = e;
            }
        barrier();
        if (i < GROUPS) put(i, leads);
        barrier();
    }
    find_bound(GROUPS);

    for (;;) {
        uvec3 bound = s_bound;
        if (i == 0u) s_count = 0u;
        barrier();
#define GATHER(e) \
        if (!comes_before(bound, e)) { \
            uint place = atomicAdd(s_count, 1u); \
            if (place < MOST) put(place, e); \
        }
        if (!comes_before(bound, best)) {
            if (EACH != 1u && i < edges) GATHER(edge)
            for (uint base = i; base < pieces; base += KEPT * size) {
                if (!FITS) READ_PIECES(base)
                [[unroll]] for (uint p = 0u; p < KEPT; ++p) {
                    uint piece = base + p * size, c = from + head + piece * EACH;
                    [[unroll]] for (uint e = 0u; e < EACH; ++e)
                        if (piece < pieces && !is_larger(bound, kept[p * EACH + e]))
                            GATHER(with_index(kept[p * EACH + e], c + e))
                }
                if (FITS) break;
            }
        }
        barrier();
        if (s_count <= MOST) break;
        find_bound(MOST);  // comes after the earlier bound, because some entries of that were left out
    }
    uint found = s_count, to_made = made_offset + 3u * (row * parts + part) * k;
    for (uint own = i; own < found; own += size) {
        uvec3 e = gathered(own);
        uint rank = rank_among(found, e);
        if (rank >= k) continue;
        uint c = ONE_WORD ? from + (~e.y & 0xFFFFu) : ~e.z;
        uvec2 bits = x_bits(x_row + c * x_stride);
        if (TO_ENTRIES) {
            if (ONE_WORD) e = entry_of(bits, c);
            for (uint w = 0u; w < 3u; ++w) made[to_made + 3u * rank + w] = e[w];
        } else {
            y_store_bits(y_offset + at[1] + rank * y_stride, bits);
            z_store_bits(z_offset + at[2] + rank * z_stride, uvec2(c, 0u));
        }
    }
    // A short part may have fewer than K entries. Missing ones come last.
    if (TO_ENTRIES)
        for (uint word = 3u * found + i; word < 3u * k; word += size) made[to_made + word] = 0u;
}
