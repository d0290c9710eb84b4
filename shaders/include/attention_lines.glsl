// The body of attention_lines.comp and attention_rotary.comp, which explain it. ROTATES: the second one.
const uint ROWS = ROWS_rows;
#define ATTENTION_TYPE TYPE
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
const uint SCORES = ROWS * AT_ONCE;  // of a turn of a line, by row and key
const uint HELD = SCORES > LANES ? SCORES / LANES : 1u;  // neighbouring ones of an invocation, all of a row
const uint ALIKE = LANES > SCORES ? LANES / SCORES : 1u;  // neighbours that hold the same score
const uint ROW_LANES = LANES / ROWS;  // neighbours that hold scores of a row
const float ROOM = 8.0;  // what a maximum may grow by until sums shrink
shared vec4 s_queries[ROWS * K_EACH * FOURS * LANES];
#ifdef ROTATES
const uint TOGETHER = ROWS < 4u ? ROWS : 4u;  // rows whose sums are in shared memory at a time
#else
const uint TOGETHER = 1u;
#endif
shared vec4 s_sums[TOGETHER * COLUMNS * INVOCATIONS];
shared float s_most[ROWS * LINES], s_sum[ROWS * LINES];

#define LOWEST uintBitsToFloat(0xFF800000u)
// The vectors of AT_ONCE keys, LINES apart. Those of the first one begin at ``at``.
#define LOAD(side, SIDE, at, vectors) \
    [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) \
        [[unroll]] for (uint c = 0u; c < SIDE##_EACH; ++c) \
            side##_next[n * SIDE##_EACH + c] = side##_vectors[ \
                min((at) + n * LINES * side##_step, side##_last) + min(c * LANES + lane, (vectors) - 1u)];
// Each of two neighbours, or of two halves, keeps half of the scores, and gives the other half.
#define HALVE(step) { \
        const uint distance = LANES >> step, half_of_them = SCORES >> step; \
        if (distance > 0u) { \
            if (half_of_them > 0u) { \
                bool upper = (lane & distance) != 0u; \
                [[unroll]] for (uint n = 0u; n < half_of_them; ++n) { \
                    float own = upper ? s[n + half_of_them] : s[n], other = upper ? s[n] : s[n + half_of_them]; \
                    s[n] = own + subgroupShuffleXor(other, distance); \
                } \
            } else { \
                s[0] += subgroupShuffleXor(s[0], distance); \
            } \
        } \
    }

#ifdef ROTATES
#include "include/attention_fresh.glsl"
#else
#define REPLACE_FRESH(side, SIDE, fresh, vectors)
#endif

void main() {
    const uint i = gl_LocalInvocationIndex, lane = i % LANES, line = i / LANES;
    uint rows = group * queries, value_size = VALUE_VECTORS * EACH;
    uint rest = group_index();
    uint part = rest % parts;
    rest /= parts;
#ifdef ROTATES
    uint rest_of_it = rest;
#endif
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
#ifdef ROTATES
    uint since = seen_since(past, 0u), all = min(seen_from(past, 0u), keys);
    uint filled = min((max(all, since + 1u) - since - 1u) / own.y + 1u, parts);
    if (part >= filled) return;  // only the first one may have no keys
    bool owns = past >= begin && past < end;  // the new key
    end = max(end, 1u);
    uint position_of_it = position_at(batch, past);
#else
    if (end <= begin) {  // what is combined has a maximum of -infinity
        if (i < rows) {
            uint to = record_of(batch, head, i, part, value_size) + value_size;
            y_words[to] = 0xFF800000u;
            y_words[to + 1u] = 0u;
        }
        return;
    }
#endif

    uint k_last = k_from + (end - 1u) * k_step, v_last = v_from + (end - 1u) * v_step;
    uint k_at = k_from + (begin + line) * k_step, v_at = v_from + (begin + line) * v_step;
    uvec4 k_next[AT_ONCE * K_EACH], v_next[AT_ONCE * V_EACH];
    LOAD(k, K, k_at, HEAD_VECTORS)
    for (uint n = i; n < ROWS * K_EACH * FOURS * LANES; n += INVOCATIONS) {
        // By vector of a line, four, row and lane.
        uint at = n / LANES, row = at % ROWS, four = at / ROWS % FOURS;
        uint vector = at / ROWS / FOURS * LANES + n % LANES;
        vec4 x = vec4(0.0);
        if (vector < HEAD_VECTORS) {
#ifdef ROTATES
            uint from = q_offset + batch * q_by + (head * group + min(row, rows - 1u)) * HEAD_VECTORS * EACH;
            TURNED(x, q, from, vector * EACH + 4u * four, position_of_it)
#else
            x = query_four(batch, head, min(row, rows - 1u), vector * EACH + 4u * four, by_element[0]);
#endif
        }
        s_queries[n] = x;
    }
#ifdef ROTATES
    if (owns) {
        uint from = fresh_k_offset + batch * fresh_by[0] + head * HEAD_VECTORS * EACH;
        for (uint n = i; n < HEAD_VECTORS * FOURS; n += INVOCATIONS) {
            vec4 x;
            TURNED(x, fresh_k, from, 4u * n, position_of_it)
            PUT_FOUR(s_fresh_key, n, x)
        }
        from = fresh_v_offset + batch * fresh_by[1] + head * VALUE_VECTORS * EACH;
        for (uint n = i; n < VALUE_VECTORS * FOURS; n += INVOCATIONS) {
            vec4 x = FOUR_OF(fresh_v, from + 4u * n);
            PUT_FOUR(s_fresh_value, n, x)
        }
    }
#endif
    barrier();
#ifdef ROTATES
    if (owns) {
        for (uint n = i; n < HEAD_VECTORS; n += INVOCATIONS) k_vectors[k_from + past * k_step + n] = s_fresh_key[n];
        for (uint n = i; n < VALUE_VECTORS; n += INVOCATIONS)
            v_vectors[v_from + past * v_step + n] = s_fresh_value[n];
    }
#endif

    vec4 o[ROWS * COLUMNS];
    [[unroll]] for (uint n = 0u; n < ROWS * COLUMNS; ++n) o[n] = vec4(0.0);
    // Of the scores that the line adds up, those of one row and of keys from ``own_turn`` on.
    const uint own_row = lane / ROW_LANES, own_turn = lane / ALIKE * HELD % AT_ONCE;
    const uint line_lane = gl_SubgroupInvocationID - lane;
    float most = LOWEST, sum = 0.0;
    uint position = min(own_row, rows - 1u) % queries;
#ifndef ROTATES
    uvec2 added_at = added_from(batch, head * group + min(own_row, rows - 1u) / queries, position,
                                relative_by, mask_by);
#endif

    for (uint first = begin; first < end; first += LINES * AT_ONCE) {
        LOAD(v, V, v_at, VALUE_VECTORS)
        REPLACE_FRESH(k, K, s_fresh_key, HEAD_VECTORS)
        v_at += LINES * AT_ONCE * v_step;
        k_at += LINES * AT_ONCE * k_step;
        float s[SCORES];
        [[unroll]] for (uint n = 0u; n < SCORES; ++n) s[n] = 0.0;
        [[unroll]] for (uint c = 0u; c < K_EACH; ++c)
            [[unroll]] for (uint e = 0u; e < FOURS; ++e) {
                vec4 four[AT_ONCE];
                [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) four[n] = quarter(k_next[n * K_EACH + c], e);
                [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                    vec4 x = s_queries[((c * FOURS + e) * ROWS + r) * LANES + lane];
                    [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) s[r * AT_ONCE + n] += dot(x, four[n]);
                }
            }
        LOAD(k, K, k_at, HEAD_VECTORS)
        HALVE(1u) HALVE(2u) HALVE(3u) HALVE(4u) HALVE(5u)

        // Single scores matter only at edges.
        bool edge = first + LINES * AT_ONCE > end;
        if (RELATIVE || MASK != 0u || CAUSAL || SOFT_CAP != 0u) edge = true;
        [[unroll]] for (uint n = 0u; n < HELD; ++n) s[n] *= scale;
        if (edge)
            [[unroll]] for (uint n = 0u; n < HELD; ++n) {
                uint key = first + line + (own_turn + n) * LINES, safe = min(key, end - 1u);
                s[n] = capped(s[n]);
#ifndef ROTATES
                if (RELATIVE) s[n] += relative_float(added_at.x + safe * relative_by.w);
                bool kept = key >= seen.low && key < seen.high;
                if (MASK == 4u) kept = mask_words[added_at.y + safe * mask_by.w] != 0u;
                if (!kept) s[n] += filter_value;
#endif
                if (key >= end || (CAUSAL && !sees(past, position, key))) s[n] = LOWEST;
            }
        float largest = s[0];
        [[unroll]] for (uint n = 1u; n < HELD; ++n) largest = max(largest, s[n]);
        if (subgroupOr(uint(largest > most + ROOM)) != 0u) {
            [[unroll]] for (uint d = 1u; d < 32u; d *= 2u)
                if (d >= ALIKE && d < ROW_LANES) largest = max(largest, subgroupShuffleXor(largest, d));
            float now = max(most, largest);
            float shrink = now == LOWEST ? 1.0 : power(most - now);
            most = now;
            sum *= shrink;
            [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                float by = subgroupShuffle(shrink, line_lane + r * ROW_LANES);
                [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) o[r * COLUMNS + c] *= by;
            }
        }
        float base = most == LOWEST ? 0.0 : most;
        [[unroll]] for (uint n = 0u; n < HELD; ++n) {
            s[n] = power(s[n] - base);
            sum += s[n];
        }
        REPLACE_FRESH(v, V, s_fresh_value, VALUE_VECTORS)
        [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) {
            float p[ROWS];
            [[unroll]] for (uint r = 0u; r < ROWS; ++r)
                p[r] = subgroupShuffle(s[n % HELD], line_lane + (r * AT_ONCE + n) / HELD * ALIKE);
            [[unroll]] for (uint c = 0u; c < V_EACH; ++c)
                [[unroll]] for (uint e = 0u; e < FOURS; ++e) {
                    vec4 four = quarter(v_next[n * V_EACH + c], e);
                    [[unroll]] for (uint r = 0u; r < ROWS; ++r) o[r * COLUMNS + c * FOURS + e] += p[r] * four;
                }
        }
    }

    // The sums of all lines.
    [[unroll]] for (uint d = 1u; d < 32u; d *= 2u)
        if (d >= ALIKE && d < ROW_LANES) sum += subgroupShuffleXor(sum, d);
    if (lane % ROW_LANES == 0u) {
        s_most[own_row * LINES + line] = most;
        s_sum[own_row * LINES + line] = sum;
    }
    barrier();
#ifdef ROTATES
    // As many rows at a time as shared memory has room for.
    const uint ACROSS = RECORD - 1u;
    uint to = record_at(rest_of_it, part);
    [[unroll]] for (uint begun = 0u; begun < ROWS; begun += TOGETHER) {
        if (begun > 0u) barrier();  // the last sums have been read
        [[unroll]] for (uint r = 0u; r < TOGETHER; ++r) {
            float share = power(s_most[(begun + r) * LINES + line] - base_of(begun + r));
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                s_sums[(r * COLUMNS + c) * INVOCATIONS + i] = share * o[(begun + r) * COLUMNS + c];
        }
        barrier();
        for (uint n = i; n < min(rows - min(begun, rows), TOGETHER) * ACROSS; n += INVOCATIONS) {
            uint vector = n % ACROSS / FOURS;
            uint from = (n / ACROSS * COLUMNS + vector / LANES * FOURS + n % FOURS) * INVOCATIONS + vector % LANES;
            vec4 total = vec4(0.0);
            [[unroll]] for (uint l = 0u; l < LINES; ++l) total += s_sums[from + l * LANES];
            records[to + (begun + n / ACROSS) * RECORD + n % ACROSS] = total;
        }
    }
    if (i < rows) {
        float base = base_of(i), total = 0.0;
        for (uint n = 0u; n < LINES; ++n) total += s_sum[i * LINES + n] * power(s_most[i * LINES + n] - base);
        records[to + i * RECORD + ACROSS] = vec4(total == 0.0 ? LOWEST : base, total, 0.0, 0.0);
    }
    finish(batch, head, rest_of_it, part, filled);
#else
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        float top = LOWEST;
        for (uint n = 0u; n < LINES; ++n) top = max(top, s_most[r * LINES + n]);
        float base = top == LOWEST ? 0.0 : top, share = power(s_most[r * LINES + line] - base);
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) s_sums[c * INVOCATIONS + i] = share * o[r * COLUMNS + c];
        barrier();
        if (r < rows) {
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
                for (uint n = 0u; n < LINES; ++n)
                    total += s_sum[r * LINES + n] * power(s_most[r * LINES + n] - base);
                y_words[to + value_size] = floatBitsToUint(top);
                y_words[to + value_size + 1u] = floatBitsToUint(total);
            }
        }
        barrier();  // the sums have been read
    }
#endif
}
