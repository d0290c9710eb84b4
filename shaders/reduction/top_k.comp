//@ op DML_OPERATOR_TOP_K DML_OPERATOR_TOP_K1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A workgroup finds the first K of a row, or of a part of it. Each element has an entry: its precedence
// in two words, then its inverted index. So no two entries are equal, and larger ones come first.
// Histograms find the K-th entry digit by digit, until few entries are left. These are gathered and
// sorted.
#define PARAMS_BINDING 5
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint INDEX_TYPE = 4u;
layout(constant_id = 3) const bool LEAST = false;
layout(constant_id = 4) const bool FROM_ENTRIES = false;
layout(constant_id = 5) const bool TO_ENTRIES = false;
layout(constant_id = 6) const uint HIGH = 1u;  // entries with a first word: MOST for 64-bit types, else 1
layout(push_constant) uniform Push {
    uint rows;
    uint columns;
    uint k;
    uint parts;  // of a row
    uint part_columns;
    uint few;  // entries that may be gathered: from k to MOST
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

const uint MOST = 1024u, BINS = 2048u;
shared uint s_bins[BINS];
shared uint s_sums[gl_WorkGroupSize.x];
shared uint s_high[HIGH], s_low[MOST], s_index[MOST];
shared uint s_digit, s_above, s_within, s_count;

uvec3 entry(uint row, uint x_row, uint c) {
    if (!FROM_ENTRIES) return entry_of(x_bits(x_row + c * x_stride), c);
    uint at = entries_offset + 3u * (row * columns + c);
    return uvec3(entries[at], entries[at + 1u], entries[at + 2u]);
}

void put(uint place, uvec3 e) {
    if (BYTES_OF(TYPE) == 8u) s_high[place] = e.x;
    s_low[place] = e.y;
    s_index[place] = e.z;
}

uvec3 gathered(uint i) {
    return uvec3(BYTES_OF(TYPE) == 8u ? s_high[i] : 0u, s_low[i], s_index[i]);
}

void main() {
    uint i = gl_LocalInvocationIndex, size = gl_WorkGroupSize.x;
    uint row = group_index() / parts, part = group_index() % parts;
    if (row >= rows) return;
    uint[3] at = walk(0u, row);
    uint x_row = x_offset + at[0];
    uint from = part * part_columns, to = min(columns, from + part_columns);

    // The result has all entries above ``prefix``, and some of the ``within`` entries that equal it
    // under ``mask``.
    uvec3 mask = uvec3(0u), prefix = uvec3(0u);
    uint above = 0u, within = to - from;
    uint word = BYTES_OF(TYPE) == 8u ? 0u : 1u, shift = 32u;
    while (above + within > few) {
        uint bits = shift == 10u ? 10u : 11u;
        shift -= bits;
        for (uint b = i; b < BINS; b += size) s_bins[b] = 0u;
        barrier();
        for (uint c = from + i; c < to; c += 4u * size) {
            uvec3 e[4];
            [[unroll]] for (uint j = 0u; j < 4u; ++j)
                e[j] = entry(row, x_row, min(c + j * size, to - 1u));
            [[unroll]] for (uint j = 0u; j < 4u; ++j)
                if (c + j * size < to && (e[j] & mask) == prefix)
                    atomicAdd(s_bins[e[j][word] >> shift & (1u << bits) - 1u], 1u);
        }
        barrier();
        // Each invocation takes some neighbouring bins, the first one the highest bins.
        uint each = BINS / size, own = 0u;
        for (uint b = 0u; b < each; ++b) own += s_bins[BINS - 1u - (i * each + b)];
        uint sum = own;
        s_sums[i] = sum;
        for (uint reach = 1u; reach < size; reach *= 2u) {
            barrier();
            if (i >= reach) sum += s_sums[i - reach];
            barrier();
            s_sums[i] = sum;
        }
        uint before = above + sum - own, wanted = k;
        if (before < wanted && wanted <= before + own) {
            uint b = BINS - 1u - i * each;
            while (before + s_bins[b] < wanted) before += s_bins[b--];
            s_digit = b;
            s_above = before;
            s_within = s_bins[b];
        }
        barrier();
        prefix[word] |= s_digit << shift;
        mask[word] |= (1u << bits) - 1u << shift;
        above = s_above;
        within = s_within;
        if (shift == 0u) {
            shift = 32u;
            ++word;
        }
        barrier();
    }
    if (i == 0u) s_count = 0u;
    barrier();
    for (uint c = from + i; c < to; c += 4u * size) {
        uvec3 e[4];
        [[unroll]] for (uint j = 0u; j < 4u; ++j)
            e[j] = entry(row, x_row, min(c + j * size, to - 1u));
        [[unroll]] for (uint j = 0u; j < 4u; ++j)
            if (c + j * size < to && !comes_before(prefix, e[j] & mask)) put(atomicAdd(s_count, 1u), e[j]);
    }
    barrier();
    uint count = s_count, padded = 2u << max(findMSB(count - 1u), 0);
    barrier();
    // Missing entries are filled with entries that come last.
    for (uint rank = count + i; rank < min(max(padded, k), MOST); rank += size) put(rank, uvec3(0u));
    for (uint run = 2u; run <= padded; run *= 2u)
        for (uint distance = run / 2u; distance > 0u; distance /= 2u) {
            barrier();
            for (uint pair = i; pair < padded / 2u; pair += size) {
                uint a = pair / distance * 2u * distance + pair % distance, b = a + distance;
                uvec3 x = gathered(a), y = gathered(b);
                if (comes_before(y, x) == ((a & run) == 0u)) {
                    put(a, y);
                    put(b, x);
                }
            }
        }
    barrier();
    uint to_made = made_offset + 3u * (row * parts + part) * k;
    for (uint rank = i; rank < k; rank += size) {
        uvec3 e = gathered(rank);
        if (TO_ENTRIES) {
            for (uint w = 0u; w < 3u; ++w) made[to_made + 3u * rank + w] = e[w];
        } else {
            y_store_bits(y_offset + at[1] + rank * y_stride, x_bits(x_row + ~e.z * x_stride));
            z_store_bits(z_offset + at[2] + rank * z_stride, uvec2(~e.z, 0u));
        }
    }
}
