//@ op DML_OPERATOR_TOP_K DML_OPERATOR_TOP_K1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
// A workgroup finds the first K entries of a row, or of a part of it, for a small K and elements of up to 32
// bits. Registers keep all of it. The K-th of the leads, the first elements of groups of elements, is a
// bound: at least K elements pass it, and seldom many more. Each invocation marks those of its elements
// that pass. They are gathered, and the rank of each is the number of those that come before it.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint INDEX_TYPE = 4u;
layout(constant_id = 3) const bool LEAST = false;
layout(constant_id = 4) const bool TO_ENTRIES = false;
layout(constant_id = 5) const uint EACH = 1u;  // elements of a piece: 1, or those of a vector
layout(constant_id = 6) const uint KEPT = 1u;  // pieces of an invocation: up to 64 elements
layout(constant_id = 7) const uint LEADS = 1u;  // of an invocation: up to its pieces
layout(constant_id = 8) const uint MOST = 256u;  // entries that may be gathered: more than K
layout(constant_id = 9) const uint MOST_PAIRS = 256u;  // MOST for elements of 32 bits, else 1
layout(constant_id = 10) const uint OWN = 1u;  // entries that an invocation ranks at a time
layout(constant_id = 11) const bool AS_FLOATS = false;  // comparisons of floats keep NaN
layout(constant_id = 12) const bool WORDS = false;  // an output of 16-bit elements, with rows of whole words
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
    uint made_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/entries.glsl"

OUTPUT_TENSOR(y, 1, TYPE)
OUTPUT_TENSOR(z, 2, INDEX_TYPE)
layout(binding = 3) writeonly buffer Made { uint made[]; };
WALK(walk, 3)

const uint MOST_K = 128u;
const bool ONE_WORD = BYTES_OF(TYPE) < 4u;  // an entry is one word: the element's rank, the inverted index
const uint ALL_LEADS = LEADS * gl_WorkGroupSize.x;
shared uvec2 s_pairs[MOST_PAIRS];
shared uint s_words[MOST];
shared uint s_leads[ALL_LEADS];
shared uint s_sums[gl_WorkGroupSize.x];
shared uint s_ranked[MOST_K];
shared uvec2 s_bound;

// An entry of a part has two words: the element's rank and the inverted column, or both in the first word.
uvec2 pair_of(uvec2 bits, uint column) {
    if (ONE_WORD) return uvec2(short_entry_of(bits, column), 0u);
    return entry_of(bits, column).yz;
}

uint rank_of_element(uvec2 bits) {
    return ONE_WORD ? short_entry_of(bits, 0u) & 0xFFFF0000u : entry_of(bits, 0u).y;
}

bool is_before(uvec2 a, uvec2 b) {
    if (ONE_WORD) return a.x > b.x;
    return a.x != b.x ? a.x > b.x : a.y > b.y;
}

void put(uint place, uvec2 pair) {
    if (ONE_WORD) s_words[place] = pair.x;
    else s_pairs[place] = pair;
}

uvec2 gathered(uint i) {
    if (ONE_WORD) return uvec2(s_words[i], 0u);
    return s_pairs[i];
}

// The float that has a rank, or for 16 bits a rank near it: no element lies between.
float ranked_float(uint rank) {
    if (LEAST) rank = ~rank;
    int from_zero = int(rank - infinity_of(TYPE));
    uint bits = from_zero < 0 ? 0x80000000u | uint(-from_zero) : uint(from_zero);
    return BYTES_OF(TYPE) == 2u ? half_to_float(bits >> 16) : uintBitsToFloat(bits);
}

// The K-th of the leads, or 0 if there are fewer. A lead is 0 if it is missing.
uint kth_lead() {
    if (ALL_LEADS < k) return 0u;
    uint low = 0xFFFFFFFFu, high = 0u;
    for (uint i = gl_SubgroupInvocationID; i < ALL_LEADS; i += gl_SubgroupSize) {
        low = min(low, s_leads[i]);
        high = max(high, s_leads[i]);
    }
    low = subgroupMin(low);
    high = subgroupMax(high);
    while (low < high) {
        uint middle = high - (high - low) / 2u, count = 0u;
        for (uint i = gl_SubgroupInvocationID; i < ALL_LEADS; i += gl_SubgroupSize)
            count += uint(s_leads[i] >= middle);
        count = subgroupAdd(count);
        if (count >= k) low = middle;
        else high = middle - 1u;
        if (count == k) break;
    }
    return low;
}

// The K-th of MOST gathered entries: the largest pair that at least K of them reach.
uvec2 kth_gathered() {
    uvec2 bound = uvec2(0u);
    for (uint bit = ONE_WORD ? 32u : 64u; bit-- > 0u;) {
        uvec2 tried = bound;
        uint word = ONE_WORD || bit >= 32u ? 0u : 1u;
        tried[word] |= 1u << (bit & 31u);
        uint count = 0u;
        for (uint i = gl_SubgroupInvocationID; i < MOST; i += gl_SubgroupSize)
            count += uint(!is_before(tried, gathered(i)));
        if (subgroupAdd(count) >= k) bound = tried;
    }
    return bound;
}

void main() {
    const uint i = gl_LocalInvocationIndex, size = gl_WorkGroupSize.x;
    uint row = group_index() / parts, part = group_index() % parts;
    if (row >= rows) return;
    uint[3] at = walk(0u, row);
    uint from = part * part_columns, count = min(columns - from, part_columns);
    uint x_part = x_offset + at[0] + from * x_stride, pieces = count / EACH;

    // Beyond the end the last piece is read again, because conditional loads do not overlap.
    uvec4 kept[KEPT];
    [[unroll]] for (uint p = 0u; p < KEPT; ++p) {
        uint piece = min(i + p * size, pieces - 1u);
        if (EACH == 1u) kept[p].xy = x_bits(x_part + piece * x_stride);
        else kept[p] = x_vectors[x_part / EACH + piece];
    }
#define BITS_OF_KEPT(p, e) (EACH == 1u ? kept[p].xy : element_of(kept[p], e, TYPE))
    [[unroll]] for (uint n = 0u; n < LEADS; ++n) {
        float number = LEAST ? uintBitsToFloat(0x7F800000u) : uintBitsToFloat(0xFF800000u);
        uint lead = 0u;
        [[unroll]] for (uint p = n; p < KEPT; p += LEADS) {
            float of_piece = number;
            uint rank = lead;
            [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                uvec2 bits = BITS_OF_KEPT(p, e);
                // A lead that is not NaN may leave NaN out, which pass every bound.
                if (AS_FLOATS) {
                    float x = number_of(bits, TYPE);
                    of_piece = LEAST ? min(of_piece, x) : max(of_piece, x);
                } else {
                    rank = max(rank, rank_of_element(bits));
                }
            }
            if (i + p * size < pieces) {
                number = of_piece;
                lead = rank;
            }
        }
        if (AS_FLOATS)
            lead = rank_of_element(uvec2(BYTES_OF(TYPE) == 2u ? packHalf2x16(vec2(number, 0.0))
                                                              : floatBitsToUint(number), 0u));
        s_leads[n * size + i] = i + n * size < pieces ? lead : 0u;
    }
    barrier();
    if (gl_SubgroupID == 0u) {
        uint bound = kth_lead();
        if (subgroupElect()) s_bound = uvec2(bound, 0u);
    }
    barrier();

    uvec2 bound = s_bound;
    float limit = ranked_float(bound.x);
    uint marks[2] = uint[2](0u, 0u);
    [[unroll]] for (uint p = 0u; p < KEPT; ++p) {
        uint first = p * EACH, own = 0u;
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uvec2 bits = BITS_OF_KEPT(p, e);
            float x = number_of(bits, TYPE);
            bool passes = AS_FLOATS ? (LEAST ? !(x > limit) : !(x < limit))
                                    : rank_of_element(bits) >= bound.x;
            if (AS_FLOATS && bound.x == 0u) passes = true;
            if (passes) own |= 1u << (first + e) % 32u;
        }
        if (i + p * size < pieces) marks[first / 32u] |= own;
    }
    uint found;
    for (;;) {
        uint own = uint(bitCount(marks[0]) + bitCount(marks[1]));
        uint place = subgroupExclusiveAdd(own);
        if (gl_NumSubgroups == 1u) {
            found = subgroupAdd(own);
        } else {
            if (gl_SubgroupInvocationID == gl_SubgroupSize - 1u) s_sums[gl_SubgroupID] = place + own;
            barrier();
            found = 0u;
            for (uint s = 0u; s < gl_NumSubgroups; ++s) {
                if (s == gl_SubgroupID) place += found;
                found += s_sums[s];
            }
        }
        [[unroll]] for (uint w = 0u; w < 2u; ++w)
            while (marks[w] != 0u) {
                uint n = uint(findLSB(marks[w]));
                marks[w] &= marks[w] - 1u;
                n += 32u * w;
                uint c = (i + n / EACH * size) * EACH + n % EACH;
                if (place < MOST) put(place, pair_of(x_bits(x_part + c * x_stride), c));
                ++place;
            }
        barrier();
        if (found <= MOST) break;
        // Some were left out. So the K-th of the others comes after the earlier bound.
        if (gl_SubgroupID == 0u) {
            bound = kth_gathered();
            if (subgroupElect()) s_bound = bound;
        }
        barrier();
        bound = s_bound;
        for (uint p = 0u; p < KEPT; ++p)
            if (i + p * size < pieces)
                for (uint e = 0u; e < EACH; ++e) {
                    uint n = p * EACH + e, c = (i + p * size) * EACH + e;
                    // No index is dynamic, as arrays with such indices do not stay in registers.
                    uint mark = is_before(bound, pair_of(x_bits(x_part + c * x_stride), c)) ? 0u : 1u << n % 32u;
                    if (n < 32u) marks[0] |= mark;
                    else marks[1] |= mark;
                }
    }

    for (uint first = i; first < found; first += OWN * size) {
        uvec2 own[OWN];
        uint ranks[OWN];
        [[unroll]] for (uint o = 0u; o < OWN; ++o) {
            own[o] = gathered(min(first + o * size, found - 1u));
            ranks[o] = 0u;
        }
        for (uint n = 0u; n < found; ++n) {
            uvec2 other = gathered(n);
            [[unroll]] for (uint o = 0u; o < OWN; ++o) ranks[o] += uint(is_before(other, own[o]));
        }
        [[unroll]] for (uint o = 0u; o < OWN; ++o)
            if (first + o * size < found && ranks[o] < k)
                s_ranked[ranks[o]] = ONE_WORD ? ~own[o].x & 0xFFFFu : ~own[o].y;
    }
    barrier();
    uint there = min(found, k), to_made = made_offset + 3u * (row * parts + part) * k;
    for (uint rank = i; rank < there; rank += size) {
        uint c = s_ranked[rank];
        uvec2 bits = x_bits(x_part + c * x_stride);
        if (TO_ENTRIES) {
            uvec3 entry = entry_of(bits, from + c);
            for (uint w = 0u; w < 3u; ++w) made[to_made + 3u * rank + w] = entry[w];
        } else {
            z_store_bits(z_offset + at[2] + rank * z_stride, uvec2(from + c, 0u));
            if (!WORDS) y_store_bits(y_offset + at[1] + rank * y_stride, bits);
        }
    }
    if (WORDS && !TO_ENTRIES)
        for (uint pair = i; pair < k / 2u; pair += size) {
            uint low = x_bits(x_part + s_ranked[2u * pair] * x_stride).x;
            uint high = x_bits(x_part + s_ranked[2u * pair + 1u] * x_stride).x;
            y_words[(y_offset + at[1]) / 2u + pair] = low & 0xFFFFu | high << 16;
        }
    // A short part may have fewer than K entries. Missing ones come last.
    if (TO_ENTRIES)
        for (uint word = 3u * there + i; word < 3u * k; word += size) made[to_made + word] = 0u;
}
