//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
//@ glslang >= 14
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require
// FLOAT16 attention of up to 16 rows on matrix units, bound by reading keys and values once. Rows are the
// queries of all query heads that share a key head. A workgroup takes all rows and a part of the keys; its
// subgroups of 32 take turns at tiles of 16 keys. The last workgroup of a key head combines the parts.
//
// Vectors of keys and values become operands where they are loaded. For this the places of elements must
// be known. With g = lane / 4 and t = lane % 4, element i of a sum or a left operand is in row
// g + i / 4 * 8, column 2 t + i % 2 + i / 2 % 2 * 8; a right operand's row and column are its column and
// row. The elements of a head may be multiplied in any order, so lane t takes eight neighbours of each 32.
// Columns of the output are in an order in which lane g takes eight neighbours of each 64.
#define PARAMS_BINDING 9
layout(constant_id = 1) const uint SUBGROUPS = 2u;
layout(constant_id = 2) const uint HEAD_SIZE = 128u;
layout(constant_id = 3) const uint VALUE_SIZE = 128u;
layout(constant_id = 4) const bool RELATIVE = false;
layout(constant_id = 5) const uint MASK = 0u;
layout(constant_id = 6) const bool CAUSAL = false;  // with the past sequence lengths
layout(constant_id = 7) const bool STORES_VECTORS = false;
#define MORE_PUSH uint records_offset; uint arrived_offset;
#include "include/attention_matrices.glsl"
// By key head, part and subgroup, and row: undivided outputs, then the maximum and the sum.
layout(binding = 7) coherent buffer Records { vec4 records[]; };
#define ARRIVED_BINDING 8
#include "include/arrived.glsl"

const uint TILE = 16u;
const int CHUNKS = int(HEAD_SIZE / 32u);
const int COLUMN_CHUNKS = int(VALUE_SIZE / 64u);
const uint RECORD = VALUE_SIZE / 4u + 1u;

#define LOAD_KEYS(first) \
    [[unroll]] for (int h = 0; h < 2; ++h) { \
        uint at = (k_base + min((first) + g + 8u * uint(h), last) * k_by[2]) / 8u + t; \
        [[unroll]] for (int c = 0; c < CHUNKS; ++c) key[2 * c + h] = k_vectors[at + uint(c) * 4u]; \
    }
#define LOAD_VALUES(first) \
    [[unroll]] for (int h = 0; h < 4; ++h) { \
        uint at = (v_base + min((first) + 2u * t + uint(h) % 2u + uint(h) / 2u * 8u, last) * v_by[2]) / 8u + g; \
        [[unroll]] for (int c = 0; c < COLUMN_CHUNKS; ++c) value[4 * c + h] = v_vectors[at + uint(c) * 8u]; \
    }

void main() {
    const uint lane = gl_SubgroupInvocationID, g = lane / 4u, t = lane % 4u;
    uint rows = group * queries;
    uint rest = group_index(), part = rest % parts, own_head = rest / parts;
    uint head = own_head % key_heads, batch = own_head / key_heads;
    if (batch >= batches) return;

    uvec4 relative_by = RELATIVE_STRIDES, mask_by = MASK_STRIDES;
    uint k_base = k_offset + batch * k_by[0] + head * k_by[1];
    uint v_base = v_offset + batch * v_by[0] + head * v_by[1];

    Seen seen = seen_by(batch, mask_by);
    uint low = seen.low, high = seen.high, past = seen.past;
    uvec2 own_keys = keys_of_part(past, part, TILE * SUBGROUPS);
    uint begin = own_keys.x, end = min(keys, begin + own_keys.y);
    if (CAUSAL) end = min(end, seen_from(past, queries - 1u));
    // Only parts with keys take part. The first one has some, or all have none.
    uint filled = parts;
    if (CAUSAL) {
        uint since = seen_since(past, 0u), all = min(seen_from(past, queries - 1u), keys);
        filled = min((max(all, since + 1u) - since - 1u) / own_keys.y + 1u, parts);
    }
    if (part >= filled) return;
    uint last = max(end, 1u) - 1u, step = TILE * SUBGROUPS;

    // The two rows of this lane.
    uint position[2];
    uvec2 added_at[2];
    RowFragment x[2 * CHUNKS];
    [[unroll]] for (int l = 0; l < 2; ++l) {
        uint row = min(g + 8u * uint(l), rows - 1u), query_head = head * group + row / queries;
        position[l] = row % queries;
        added_at[l] = added_from(batch, query_head, position[l], relative_by, mask_by);
        uint from = (q_offset + batch * q_by[0] + query_head * q_by[1] + position[l] * q_by[2]) / 8u + t;
        [[unroll]] for (int c = 0; c < CHUNKS; ++c) {
            uvec4 found = q_vectors[from + uint(c) * 4u];
            [[unroll]] for (int i = 0; i < 8; ++i)
                x[2 * c + i / 4][4 * l + i % 4] = unpackFloat2x16(found[i / 2])[i % 2];
        }
    }

    Sums o[4 * COLUMN_CHUNKS];
    float most[2] = float[2](LOWEST, LOWEST), sum[2] = float[2](0.0, 0.0);
    [[unroll]] for (int n = 0; n < 4 * COLUMN_CHUNKS; ++n) o[n] = Sums(0.0);

    uvec4 key[2 * CHUNKS], value[4 * COLUMN_CHUNKS];
    uint first = begin + gl_SubgroupID * TILE;
    LOAD_KEYS(first)
    LOAD_VALUES(first)
    for (; first < end; first += step) {
        Sums s = Sums(0.0);
        [[unroll]] for (int c = 0; c < CHUNKS; ++c)
            [[unroll]] for (int u = 0; u < 2; ++u) {
                ColumnFragment z;
                [[unroll]] for (int i = 0; i < 8; ++i)
                    z[i] = unpackFloat2x16(key[2 * c + i / 4][2 * u + i % 4 / 2])[i % 2];
                s = coopMatMulAdd(x[2 * c + u], z, s);
            }
        LOAD_KEYS(first + step)

        float factor = scale * LOG2_E;
        bool edge = first + TILE > end;
        if (CAUSAL) edge = true;
        if (RELATIVE) edge = true;
        if (MASK != 0u || SOFT_CAP != 0u) edge = true;
        if (edge) {
            [[unroll]] for (int i = 0; i < 8; ++i) {
                const int l = i / 4;
                uint own = first + 2u * t + uint(i) % 2u + uint(i) / 2u % 2u * 8u, safe = min(own, keys - 1u);
                float more = 0.0;
                if (RELATIVE) more = relative_float(added_at[l].x + safe * relative_by.w);
                bool kept = own >= low && own < high;
                if (MASK == 4u) kept = mask_words[added_at[l].y + safe * mask_by.w] != 0u;
                more = bounded(kept ? more : more + filter_value);
                float score = SOFT_CAP == 0u ? fma(s[i], factor, more)
                                             : fma(capped(s[i] * scale), LOG2_E, more);
                if (own >= end || (CAUSAL && !sees(past, position[l], own))) score = ABSENT;
                s[i] = score;
            }
            factor = 1.0;
        }
        float largest[2];
        bool grown = false;
        [[unroll]] for (int l = 0; l < 2; ++l) {
            largest[l] = factor * max(max(s[4 * l], s[4 * l + 1]), max(s[4 * l + 2], s[4 * l + 3]));
            grown = grown || largest[l] > most[l] + ROOM;
        }
        if (subgroupOr(uint(grown)) != 0u) {
            float shrink[2];
            [[unroll]] for (int l = 0; l < 2; ++l) {
                float now = max(most[l], row_max(largest[l]) - LIFT);
                shrink[l] = exp2(most[l] - now);
                most[l] = now;
                sum[l] *= shrink[l];
            }
            [[unroll]] for (int n = 0; n < 4 * COLUMN_CHUNKS; ++n)
                [[unroll]] for (int i = 0; i < 8; ++i) o[n][i] *= shrink[i / 4];
        }
        RowFragment p;
        [[unroll]] for (int i = 0; i < 8; ++i) {
            float power = exp2(fma(s[i], factor, -most[i / 4]));
            sum[i / 4] += power;
            p[i] = float16_t(power);
        }
        [[unroll]] for (int c = 0; c < COLUMN_CHUNKS; ++c)
            [[unroll]] for (int m = 0; m < 4; ++m) {
                ColumnFragment z;
                [[unroll]] for (int i = 0; i < 8; ++i) z[i] = unpackFloat2x16(value[4 * c + i % 4][m])[i / 4];
                o[4 * c + m] = coopMatMulAdd(p, z, o[4 * c + m]);
            }
        LOAD_VALUES(first + step)
    }

    // Lane t has 16 neighbours of each 64 columns.
    uint count = parts * SUBGROUPS, record = own_head * count + part * SUBGROUPS + gl_SubgroupID;
    [[unroll]] for (int l = 0; l < 2; ++l) {
        uint row = g + 8u * uint(l), to = records_offset / 4u + (record * rows + row) * RECORD;
        float total = row_sum(sum[l]);
        if (row >= rows) continue;
        [[unroll]] for (int c = 0; c < COLUMN_CHUNKS; ++c)
            [[unroll]] for (int n = 0; n < 4; ++n)
                records[to + uint(c) * 16u + t * 4u + uint(n)] = vec4(
                    o[4 * c + n % 2 * 2][4 * l + n / 2], o[4 * c + n % 2 * 2][4 * l + n / 2 + 2],
                    o[4 * c + n % 2 * 2 + 1][4 * l + n / 2], o[4 * c + n % 2 * 2 + 1][4 * l + n / 2 + 2]);
        if (t == 0u) records[to + VALUE_SIZE / 4u] = vec4(most[l], total, 0.0, 0.0);
    }
    if (!arrives_last(own_head, filled)) return;

    const uint TOGETHER = 8u;
    uint some_parts = filled * SUBGROUPS;
    for (uint n = gl_LocalInvocationIndex; n < rows * (VALUE_SIZE / 4u); n += 32u * SUBGROUPS) {
        uint row = n / (VALUE_SIZE / 4u), column = n % (VALUE_SIZE / 4u) * 4u;
        uint from = records_offset / 4u + (own_head * count * rows + row) * RECORD;
        vec4 total = vec4(0.0);
        float all = 0.0, top = LOWEST;
        for (uint r = 0u; r < some_parts; r += TOGETHER) {
            vec4 some[TOGETHER];
            vec2 ends[TOGETHER];
            float now = top;
            [[unroll]] for (uint e = 0u; e < TOGETHER; ++e) {
                uint at = from + min(r + e, some_parts - 1u) * rows * RECORD;
                some[e] = records[at + column / 4u];
                ends[e] = records[at + VALUE_SIZE / 4u].xy;
            }
            [[unroll]] for (uint e = 0u; e < TOGETHER; ++e) now = max(now, ends[e].x);
            float shrink = exp2(top - now);
            top = now;
            total *= shrink;
            all *= shrink;
            [[unroll]] for (uint e = 0u; e < TOGETHER; ++e) {
                float share_of = r + e < some_parts ? exp2(ends[e].x - now) : 0.0;
                total += share_of * some[e];
                all += share_of * ends[e].y;
            }
        }
        total *= all == 0.0 ? 0.0 : 1.0 / all;
        uint to = y_offset + batch * y_by[0] + (head * group + row / queries) * y_by[1]
                  + row % queries * y_by[2];
        if (STORES_VECTORS) {
            uvec2 pairs = floats_to_halves(total);
            y_words[(to + column) / 2u] = pairs.x;
            y_words[(to + column) / 2u + 1u] = pairs.y;
        } else {
            [[unroll]] for (uint e = 0u; e < 4u; ++e) y_store_float(to + (column + e) * param(3u), total[e]);
        }
    }
}
