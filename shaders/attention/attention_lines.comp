//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
//@ variants ROWS: r1(rows=1) r4(rows=4) r8(rows=8)
//@ unchecked *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
// Attention of few queries, bound by reading keys and values once. Rows are the queries of all query heads
// that share a key head. A workgroup takes all rows and one part of the keys. LANES neighbours of a
// subgroup are a line. Lines take turns at AT_ONCE keys: each invocation multiplies its vectors of the
// keys by those of the rows, the line adds up, and each invocation adds its columns of the values. Lines
// wait for each other only at the end. While keys are multiplied, values load, and the other way round.
// attention_combine combines the parts.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool RELATIVE = false;
layout(constant_id = 3) const uint MASK = 0u;
layout(constant_id = 4) const bool CAUSAL = false;
layout(constant_id = 5) const uint HEAD_VECTORS = 16u;  // vectors of 16 bytes in a head
layout(constant_id = 6) const uint VALUE_VECTORS = 16u;
layout(constant_id = 7) const uint LANES = 8u;  // a power of two, up to 32
layout(constant_id = 8) const uint AT_ONCE = 2u;
const uint ROWS = ROWS_rows;
#define ATTENTION_TYPE TYPE
#define OUTPUT_TYPE 36u
#include "include/attention.glsl"

const uint INVOCATIONS = 128u;
const uint EACH = 16u / BYTES_OF(TYPE);
#include "include/attention_rows.glsl"
const uint LINES = INVOCATIONS / LANES;
// Vectors of an invocation. The last ones may lie behind the head.
const uint K_EACH = (HEAD_VECTORS + LANES - 1u) / LANES;
const uint V_EACH = (VALUE_VECTORS + LANES - 1u) / LANES;
const uint FOURS = EACH / 4u;  // in a vector
const uint COLUMNS = V_EACH * FOURS;  // in fours, of an invocation
shared vec4 s_queries[ROWS * K_EACH * FOURS * LANES];
shared vec4 s_sums[COLUMNS * INVOCATIONS];
shared float s_most[ROWS * LINES], s_sum[ROWS * LINES];

#define LOWEST uintBitsToFloat(0xFF800000u)
// The vectors of AT_ONCE keys, LINES apart, from ``first`` on.
#define LOAD(side, SIDE, first, vectors) \
    [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) { \
        uint at = side##_from + min((first) + n * LINES, last) * side##_step; \
        [[unroll]] for (uint c = 0u; c < SIDE##_EACH; ++c) \
            side##_next[n * SIDE##_EACH + c] = side##_vectors[at + min(c * LANES + lane, (vectors) - 1u)]; \
    }

void main() {
    const uint i = gl_LocalInvocationIndex, lane = i % LANES, line = i / LANES;
    uint rows = group * queries, value_size = VALUE_VECTORS * EACH;
    uint rest = group_index();
    uint part = rest % parts;
    rest /= parts;
    uint head = rest % key_heads, batch = rest / key_heads;
    if (batch >= batches) return;

    uvec4 by_element = ELEMENT_STRIDES, relative_by = RELATIVE_STRIDES, mask_by = MASK_STRIDES;
    uint k_from = (k_offset + batch * k_by[0] + head * k_by[1]) / EACH, k_step = k_by[2] / EACH;
    uint v_from = (v_offset + batch * v_by[0] + head * v_by[1]) / EACH, v_step = v_by[2] / EACH;
    Seen seen = seen_by(batch, mask_by);
    uint past = seen.past;
    uvec2 own = keys_of_part(past, part, 32u);
    uint begin = own.x, end = min(keys, begin + own.y);
    if (CAUSAL) end = min(end, seen_from(past, queries - 1u));
    if (end <= begin) {  // what is combined has a maximum of -infinity
        if (i < rows) {
            uint to = record_of(batch, head, i, part, value_size) + value_size;
            y_words[to] = 0xFF800000u;
            y_words[to + 1u] = 0u;
        }
        return;
    }

    uint last = end - 1u;
    uvec4 k_next[AT_ONCE * K_EACH], v_next[AT_ONCE * V_EACH];
    LOAD(k, K, begin + line, HEAD_VECTORS)
    for (uint n = i; n < ROWS * K_EACH * FOURS * LANES; n += INVOCATIONS) {
        // By vector of a line, four, row and lane.
        uint at = n / LANES, row = at % ROWS, four = at / ROWS % FOURS;
        uint vector = at / ROWS / FOURS * LANES + n % LANES;
        vec4 x = vec4(0.0);
        if (vector < HEAD_VECTORS)
            x = query_four(batch, head, min(row, rows - 1u), vector * EACH + 4u * four, by_element[0]);
        s_queries[n] = x;
    }
    barrier();

    vec4 o[ROWS * COLUMNS];
    float most[ROWS], sum[ROWS];
    uvec2 added_at[ROWS];
    uint position[ROWS];
    [[unroll]] for (uint n = 0u; n < ROWS * COLUMNS; ++n) o[n] = vec4(0.0);
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        uint row = min(r, rows - 1u);
        most[r] = LOWEST;
        sum[r] = 0.0;
        position[r] = row % queries;
        added_at[r] = added_from(batch, head * group + row / queries, position[r], relative_by, mask_by);
    }

    for (uint first = begin + line; first < end; first += LINES * AT_ONCE) {
        LOAD(v, V, first, VALUE_VECTORS)
        float s[ROWS * AT_ONCE];
        [[unroll]] for (uint n = 0u; n < ROWS * AT_ONCE; ++n) s[n] = 0.0;
        [[unroll]] for (uint c = 0u; c < K_EACH; ++c)
            [[unroll]] for (uint e = 0u; e < FOURS; ++e) {
                vec4 four[AT_ONCE];
                [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) four[n] = quarter(k_next[n * K_EACH + c], e);
                [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                    vec4 x = s_queries[((c * FOURS + e) * ROWS + r) * LANES + lane];
                    [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) s[r * AT_ONCE + n] += dot(x, four[n]);
                }
            }
        LOAD(k, K, first + LINES * AT_ONCE, HEAD_VECTORS)
        [[unroll]] for (uint d = 1u; d < 32u; d *= 2u)
            [[unroll]] for (uint n = 0u; n < ROWS * AT_ONCE; ++n)
                if (d < LANES) s[n] += subgroupShuffleXor(s[n], d);

        [[unroll]] for (uint n = 0u; n < ROWS * AT_ONCE; ++n) s[n] *= scale;
        // Single scores matter only at edges.
        bool edge = first + (AT_ONCE - 1u) * LINES > last;
        if (RELATIVE || MASK != 0u || CAUSAL || SOFT_CAP != 0u) edge = true;
        if (edge)
            [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) {
                uint key = first + n * LINES, safe = min(key, last);
                [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                    float score = capped(s[r * AT_ONCE + n]);
                    if (RELATIVE) score += relative_float(added_at[r].x + safe * relative_by.w);
                    bool kept = key >= seen.low && key < seen.high;
                    if (MASK == 4u) kept = mask_words[added_at[r].y + safe * mask_by.w] != 0u;
                    if (!kept) score += filter_value;
                    if (key > last || (CAUSAL && !sees(past, position[r], key))) score = LOWEST;
                    s[r * AT_ONCE + n] = score;
                }
            }
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            float now = most[r];
            [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) now = max(now, s[r * AT_ONCE + n]);
            if (now > most[r]) {
                float shrink = power(most[r] - now);
                most[r] = now;
                sum[r] *= shrink;
                [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) o[r * COLUMNS + c] *= shrink;
            }
            float base = now == LOWEST ? 0.0 : now;
            [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) {
                float p = power(s[r * AT_ONCE + n] - base);
                s[r * AT_ONCE + n] = p;
                sum[r] += p;
            }
        }
        [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n)
            [[unroll]] for (uint c = 0u; c < V_EACH; ++c)
                [[unroll]] for (uint e = 0u; e < FOURS; ++e) {
                    vec4 four = quarter(v_next[n * V_EACH + c], e);
                    [[unroll]] for (uint r = 0u; r < ROWS; ++r)
                        o[r * COLUMNS + c * FOURS + e] += s[r * AT_ONCE + n] * four;
                }
    }

    // The sums of all lines.
    if (lane == 0u)
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            s_most[r * LINES + line] = most[r];
            s_sum[r * LINES + line] = sum[r];
        }
    barrier();
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        if (r >= rows) break;
        float top = LOWEST;
        for (uint n = 0u; n < LINES; ++n) top = max(top, s_most[r * LINES + n]);
        float base = top == LOWEST ? 0.0 : top, share = power(most[r] - base);
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) s_sums[c * INVOCATIONS + i] = share * o[r * COLUMNS + c];
        barrier();
        uint to = record_of(batch, head, r, part, value_size);
        for (uint n = i; n < VALUE_VECTORS * FOURS; n += INVOCATIONS) {
            uint vector = n / FOURS;
            uint from = (vector / LANES * FOURS + n % FOURS) * INVOCATIONS + vector % LANES;
            vec4 total = vec4(0.0);
            for (uint l = 0u; l < LINES; ++l) total += s_sums[from + l * LANES];
            [[unroll]] for (uint e = 0u; e < 4u; ++e) y_words[to + 4u * n + e] = floatBitsToUint(total[e]);
        }
        if (i == 0u) {
            float total = 0.0;
            for (uint n = 0u; n < LINES; ++n) total += s_sum[r * LINES + n] * power(s_most[r * LINES + n] - base);
            y_words[to + value_size] = floatBitsToUint(top);
            y_words[to + value_size + 1u] = floatBitsToUint(total);
        }
        barrier();  // the sums have been read
    }
}
