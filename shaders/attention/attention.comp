//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
//@ variants COLUMNS: c64 c128
#version 450
#define MAY_BE_BFLOAT16
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A workgroup of 16 x 16 invocations computes ROWS rows by 64 or 128 columns of the output of one key head.
// Keys are processed in tiles of KEYS. For each of its 4 rows, an invocation holds the scores of 4 keys, the
// running maximum and sum, and 4 COLUMN_QUADS columns of the output, all in float32. Larger blocks of an
// invocation (attention_blocks.comp) are faster on GPUs, this one compiles faster.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool VECTORS = false;  // head sizes are whole, contiguous vectors
layout(constant_id = 3) const bool RELATIVE = false;
layout(constant_id = 4) const uint MASK = 0u;
layout(constant_id = 5) const bool CAUSAL = false;  // with the past sequence lengths
layout(constant_id = 6) const bool SPLIT = false;  // workgroups divide the keys
#define MORE_PUSH uint head_size; uint value_size;
#define ATTENTION_TYPE TYPE
#define OUTPUT_TYPE TYPE
#include "include/attention.glsl"
#if defined(COLUMNS_c64)
#define COLUMN_QUADS 1u
#else
#define COLUMN_QUADS 2u
#endif
const uint ACROSS = 16u;
const uint ROWS = 64u;
const uint COLUMNS_AT_ONCE = 4u * COLUMN_QUADS * ACROSS;
const uint KEYS = 4u * ACROSS;
const uint INVOCATIONS = 16u * ACROSS;

const uint CHUNK = 16u;
// Vectors of rows or keys, and a vector of padding against bank conflicts.
const uint ROW_LINE = ROWS / 4u + 1u;
const uint KEY_LINE = ACROSS + 1u;
const uint KEYS_AT = CHUNK * ROW_LINE;
// Queries and keys, transposed; or values.
shared vec4 s_tile[KEYS_AT + CHUNK * KEY_LINE];
shared vec4 s_power[KEYS * ROW_LINE];  // by key

#define LOWEST uintBitsToFloat(0xFF800000u)

#define LOAD4(x) \
    vec4 x##_four(uint at, uint stride, uint there) { \
        if (VECTORS && x##_offset % 4u == 0u) { \
            if (BYTES_OF(TYPE) == 4u) return uintBitsToFloat(x##_vectors[at / 4u]); \
            return vec4(halves_to_floats(x##_words[at / 2u]), \
                        halves_to_floats(x##_words[at / 2u + 1u])); \
        } \
        vec4 result = vec4(0.0); \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) \
            if (i < there) result[i] = x##_float(at + i * stride); \
        return result; \
    }
LOAD4(q)
LOAD4(k)
LOAD4(v)

float power(float x) {
    return HAS_EXACT_UNITS ? exp2(x * LOG2_E) : exp_of(x);
}

// Stores four elements of a row, transposed.
void put(uint first, uint pitch, uint line, uint part, vec4 x) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        s_tile[first + (4u * part + i) * pitch + line / 4u][line % 4u] = x[i];
}

void main() {
    const uint i = gl_LocalInvocationIndex, tx = i % ACROSS, ty = i / ACROSS;
    // Tiles of rows change fastest: neighbours read the same keys.
    uint rows = group * queries, tiles = (rows + ROWS - 1u) / ROWS;
    uint chunks = (value_size + COLUMNS_AT_ONCE - 1u) / COLUMNS_AT_ONCE;
    uint rest = group_index();
    uint tile = rest % tiles;
    rest /= tiles;
    uint column = rest % chunks * COLUMNS_AT_ONCE;
    rest /= chunks;
    uint part = rest % parts;
    rest /= parts;
    uint head = rest % key_heads, batch = rest / key_heads;
    if (batch >= batches) return;

    uvec4 by_element = ELEMENT_STRIDES, relative_by = RELATIVE_STRIDES, mask_by = MASK_STRIDES;
    uint k_base = k_offset + batch * k_by[0] + head * k_by[1];
    uint v_base = v_offset + batch * v_by[0] + head * v_by[1];

    Seen seen = seen_by(batch, mask_by);
    uint low = seen.low, high = seen.high, past = seen.past;

    // The rows of this invocation.
    uint row[4u], position[4u];
    uvec2 added_at[4u];
    [[unroll]] for (uint r = 0u; r < 4u; ++r) {
        row[r] = tile * ROWS + 4u * ty + r;
        uint known = min(row[r], rows - 1u);
        uint own_head = head * group + known / queries;
        position[r] = known % queries;
        added_at[r] = added_from(batch, own_head, position[r], relative_by, mask_by);
    }

    // The row whose queries this invocation loads.
    uint q_row = min(tile * ROWS + i / 4u, rows - 1u);
    uint q_at = q_offset + batch * q_by[0] + (head * group + q_row / queries) * q_by[1]
                + q_row % queries * q_by[2];

    uvec2 own = keys_of_part(past, part, KEYS);
    uint begin = own.x, end = min(keys, begin + own.y);
    if (CAUSAL) {
        uint from = tile * ROWS, to = min(from + ROWS, rows) - 1u;
        bool one_head = from / queries == to / queries;
        begin = max(begin, seen_since(past, one_head ? from % queries : 0u));
        end = min(end, seen_from(past, one_head ? to % queries : queries - 1u));
    }

    vec4 o[4u][COLUMN_QUADS];
    float most[4u], sum[4u];
    [[unroll]] for (uint r = 0u; r < 4u; ++r) {
        most[r] = LOWEST;
        sum[r] = 0.0;
        [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) o[r][c] = vec4(0.0);
    }

    for (uint first = begin; first < end; first += KEYS) {
        vec4 s[4u];
        [[unroll]] for (uint r = 0u; r < 4u; ++r) s[r] = vec4(0.0);
        vec4 query, fresh;
        uint key_loaded = first + i / 4u;
#define LOAD_CHUNK(chunk) \
        { \
            uint d = (chunk) + 4u * (i % 4u), there = d < head_size ? min(4u, head_size - d) : 0u; \
            query = vec4(0.0); \
            if (there > 0u) query = q_four(q_at + d * by_element[0], by_element[0], there); \
            fresh = vec4(0.0); \
            if (there > 0u && key_loaded < end) \
                fresh = k_four(k_base + key_loaded * k_by[2] + d * by_element[1], by_element[1], there); \
        }
        LOAD_CHUNK(0u)
        for (uint chunk = 0u; chunk < head_size; chunk += CHUNK) {
            barrier();  // the previous tile has been read
            put(0u, ROW_LINE, i / 4u, i % 4u, query);
            put(KEYS_AT, KEY_LINE, i / 4u, i % 4u, fresh);
            barrier();
            LOAD_CHUNK(chunk + CHUNK)  // the next chunk loads during the product
            // Unrolled in parts: if a compiler gives up, all sums go to memory.
            [[dont_unroll]] for (uint some = 0u; some < CHUNK; some += 4u)
            [[unroll]] for (uint n = 0u; n < 4u; ++n) {
                uint e = some + n;
                vec4 b = s_tile[KEYS_AT + e * KEY_LINE + tx];
                vec4 a = s_tile[e * ROW_LINE + ty];
                [[unroll]] for (uint r = 0u; r < 4u; ++r) s[r] += a[r] * b;
            }
        }

        vec4 largest;
        [[unroll]] for (uint r = 0u; r < 4u; ++r) {
            [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                uint key = first + 4u * tx + c, safe = min(key, keys - 1u);
                float score = capped(s[r][c] * scale);
                if (RELATIVE) score += relative_float(added_at[r].x + safe * relative_by.w);
                bool kept = true;
                if (MASK == 4u) kept = mask_words[added_at[r].y + safe * mask_by.w] != 0u;
                else if (MASK != 0u) kept = key >= low && key < high;
                if (!kept) score += filter_value;
                if (key >= end || (CAUSAL && !sees(past, position[r], key))) score = LOWEST;
                s[r][c] = score;
            }
            largest[r] = max(max(s[r].x, s[r].y), max(s[r].z, s[r].w));
        }
        barrier();
        s_tile[tx * ROW_LINE + ty] = largest;
        barrier();
        [[unroll]] for (uint t = 0u; t < ACROSS; ++t) largest = max(largest, s_tile[t * ROW_LINE + ty]);

        [[unroll]] for (uint r = 0u; r < 4u; ++r) {
            float now = max(most[r], largest[r]);
            float base = now == LOWEST ? 0.0 : now;
            float shrink = power(most[r] - base);
            most[r] = now;
            [[unroll]] for (uint c = 0u; c < 4u; ++c) s[r][c] = power(s[r][c] - base);
            sum[r] = sum[r] * shrink + (s[r].x + s[r].y) + (s[r].z + s[r].w);
            [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) o[r][c] *= shrink;
        }
        [[unroll]] for (uint c = 0u; c < 4u; ++c)
            s_power[(4u * tx + c) * ROW_LINE + ty] = vec4(s[0][c], s[1][c], s[2][c], s[3][c]);

        // Values: COLUMNS_AT_ONCE for each key.
        const uint VALUE_LOADS = CHUNK * COLUMNS_AT_ONCE / 4u / INVOCATIONS;
        vec4 values[VALUE_LOADS];
#define LOAD_VALUES(chunk) \
        [[unroll]] for (uint n = 0u; n < VALUE_LOADS; ++n) { \
            uint at = i + INVOCATIONS * n, d = column + 4u * (at % (COLUMNS_AT_ONCE / 4u)); \
            uint key = first + (chunk) + at / (COLUMNS_AT_ONCE / 4u); \
            values[n] = vec4(0.0); \
            if (d < value_size && key < end) \
                values[n] = v_four(v_base + key * v_by[2] + d * by_element[2], by_element[2], \
                                   min(4u, value_size - d)); \
        }
        LOAD_VALUES(0u)
        for (uint chunk = 0u; chunk < KEYS; chunk += CHUNK) {
            barrier();
            [[unroll]] for (uint n = 0u; n < VALUE_LOADS; ++n)
                s_tile[i + INVOCATIONS * n] = values[n];
            barrier();
            if (chunk + CHUNK < KEYS) LOAD_VALUES(chunk + CHUNK)
            const uint AT_ONCE = 8u / COLUMN_QUADS;
            [[dont_unroll]] for (uint some = 0u; some < CHUNK; some += AT_ONCE)
            [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) {
                uint e = some + n;
                vec4 p = s_power[(chunk + e) * ROW_LINE + ty];
                [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) {
                    vec4 x = s_tile[(e * COLUMN_QUADS + c) * ACROSS + tx];
                    [[unroll]] for (uint r = 0u; r < 4u; ++r) o[r][c] += p[r] * x;
                }
            }
        }
    }

    // The sums of all invocations of a row.
    barrier();
    s_tile[tx * ROW_LINE + ty] = vec4(sum[0], sum[1], sum[2], sum[3]);
    barrier();
    vec4 total = vec4(0.0);
    [[unroll]] for (uint t = 0u; t < ACROSS; ++t) total += s_tile[t * ROW_LINE + ty];

    [[unroll]] for (uint r = 0u; r < 4u; ++r) {
        if (row[r] >= rows) continue;
        float own_total = total[r];
        uint own_head = head * group + row[r] / queries;
        // Records by row and part: the undivided output, the maximum, the sum.
        uint record = (((batch * key_heads * group + own_head) * queries + position[r]) * parts + part)
                      * (value_size + 2u);
        if (SPLIT && tx == 0u && column == 0u) {
            y_words[y_offset + record + value_size] = floatBitsToUint(most[r]);
            y_words[y_offset + record + value_size + 1u] = floatBitsToUint(own_total);
        }
        uint to = y_offset + batch * y_by[0] + own_head * y_by[1] + position[r] * y_by[2];
        [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) {
            [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                uint d = column + 4u * (ACROSS * c + tx) + e;
                if (d >= value_size) continue;
                if (SPLIT) y_words[y_offset + record + d] = floatBitsToUint(o[r][c][e]);
                else y_store_float(to + d * by_element[3], own_total == 0.0 ? 0.0 : o[r][c][e] / own_total);
            }
        }
    }
}
