//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
//@ variants TILE: c64 c128 t64 t128
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A workgroup of ACROSS x 16 invocations computes ROWS rows by COLUMNS columns of the output of one key
// head. Rows are the queries of all query heads that share the key head. Keys are processed in tiles of
// KEYS. For each of its 4 ROW_QUADS rows, an invocation holds the scores of 4 keys, the running maximum
// and sum, and 4 COLUMN_QUADS columns of the output, all in float32.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool VECTORS = false;  // head sizes are whole, contiguous vectors
layout(constant_id = 3) const bool RELATIVE = false;
layout(constant_id = 4) const uint MASK = 0u;
layout(constant_id = 5) const bool CAUSAL = false;  // with the past sequence lengths
layout(constant_id = 6) const bool SPLIT = false;  // workgroups divide the keys
layout(push_constant) uniform Push {
    uint batches;
    uint key_heads;
    uint group;  // query heads of a key head
    uint queries;
    uint keys;
    uint head_size;
    uint value_size;
    uint parts;
    uint span;  // keys of a part
    float scale;
    float filter_value;
    uint lengths_stride;
    uint q_offset;
    uint k_offset;
    uint v_offset;
    uint mask_offset;
    uint relative_offset;
    uint lengths_offset;
    uint y_offset;
    uint params_offset;
};
#if defined(TILE_c64)
#define ROW_QUADS 1u
#define COLUMN_QUADS 1u
#define ACROSS 16u
#elif defined(TILE_c128)
#define ROW_QUADS 1u
#define COLUMN_QUADS 2u
#define ACROSS 16u
#elif defined(TILE_t64)
#define ROW_QUADS 2u
#define COLUMN_QUADS 2u
#define ACROSS 8u
#else
#define ROW_QUADS 2u
#define COLUMN_QUADS 4u
#define ACROSS 8u
#endif
const uint ROWS = 64u * ROW_QUADS;
const uint COLUMNS = 4u * COLUMN_QUADS * ACROSS;
const uint KEYS = 4u * ACROSS;
const uint INVOCATIONS = 16u * ACROSS;
#include "include/grid.glsl"
#include "include/params.glsl"
#include "include/typed.glsl"
#include "include/exponentials.glsl"

INPUT_TENSOR(q, 0, TYPE)
INPUT_TENSOR(k, 1, TYPE)
INPUT_TENSOR(v, 2, TYPE)
INPUT_TENSOR(mask, 3, 20u)
INPUT_TENSOR(relative, 4, TYPE)
INPUT_TENSOR(lengths, 5, 20u)
OUTPUT_TENSOR(y, 6, TYPE)

const uint CHUNK = 16u;
// Vectors of rows or keys, and a vector of padding against bank conflicts.
const uint ROW_LINE = ROWS / 4u + 1u;
const uint KEY_LINE = ACROSS + 1u;
const uint KEYS_AT = CHUNK * ROW_LINE;
// Queries and keys, transposed; or values.
shared vec4 s_tile[KEYS_AT + CHUNK * KEY_LINE];
shared vec4 s_power[KEYS * ROW_LINE];  // by key

#define LOWEST uintBitsToFloat(0xFF800000u)

// The strides of an operand for batch, head, position and element.
uvec4 strides(uint operand) {
    return uvec4(param(4u * operand), param(4u * operand + 1u), param(4u * operand + 2u),
                 param(4u * operand + 3u));
}

#define LOAD4(x) \
    vec4 x##_four(uint at, uint stride, uint there) { \
        if (VECTORS && x##_offset % 4u == 0u) { \
            if (BYTES_OF(TYPE) == 4u) return uintBitsToFloat(x##_vectors[at / 4u]); \
            if (HAS_EXACT_UNITS) \
                return vec4(unpackHalf2x16(x##_words[at / 2u]), \
                            unpackHalf2x16(x##_words[at / 2u + 1u])); \
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
    uint chunks = (value_size + COLUMNS - 1u) / COLUMNS;
    uint rest = group_index();
    uint tile = rest % tiles;
    rest /= tiles;
    uint column = rest % chunks * COLUMNS;
    rest /= chunks;
    uint part = rest % parts;
    rest /= parts;
    uint head = rest % key_heads, batch = rest / key_heads;
    if (batch >= batches) return;

    uvec4 q_by = strides(0u), k_by = strides(1u), v_by = strides(2u);
    uvec4 y_by = strides(3u), relative_by = strides(4u), mask_by = strides(5u);
    uint k_base = k_offset + batch * k_by.x + head * k_by.y;
    uint v_base = v_offset + batch * v_by.x + head * v_by.y;

    // A mask of lengths keeps the keys from low to high.
    uint low = 0u, high = keys, past = 0u;
    if (CAUSAL)
        past = uint(clamp(int(lengths_words[lengths_offset + batch * lengths_stride]), 0, int(keys)));
    if (MASK >= 1u && MASK <= 3u) {
        int end = int(mask_words[mask_offset + batch * mask_by.x]);
        high = uint(clamp(end, 0, int(keys)));
    }
    if (MASK == 2u) {
        int start = int(mask_words[mask_offset + batch * mask_by.x + mask_by.y]);
        low = uint(clamp(start, 0, int(keys)));
    }

    // The rows of this invocation.
    uint row[4u * ROW_QUADS], position[4u * ROW_QUADS];
    uint relative_at[4u * ROW_QUADS], mask_at[4u * ROW_QUADS];
    [[unroll]] for (uint r = 0u; r < 4u * ROW_QUADS; ++r) {
        row[r] = tile * ROWS + r / 4u * 64u + 4u * ty + r % 4u;
        uint known = min(row[r], rows - 1u);
        uint own_head = head * group + known / queries;
        position[r] = known % queries;
        relative_at[r] = relative_offset + batch * relative_by.x + own_head * relative_by.y
                         + position[r] * relative_by.z;
        mask_at[r] = mask_offset + batch * mask_by.x + own_head * mask_by.y
                     + position[r] * mask_by.z;
    }

    // The rows whose queries this invocation loads.
    const uint ROW_LOADS = ROWS * 4u / INVOCATIONS;
    uint q_at[ROW_LOADS];
    [[unroll]] for (uint n = 0u; n < ROW_LOADS; ++n) {
        uint known = min(tile * ROWS + (i + n * INVOCATIONS) / 4u, rows - 1u);
        q_at[n] = q_offset + batch * q_by.x + (head * group + known / queries) * q_by.y
                  + known % queries * q_by.z;
    }

    uint begin = part * span, end = min(keys, begin + span);
    if (CAUSAL) {
        uint from = tile * ROWS, to = min(from + ROWS, rows) - 1u;
        uint most = from / queries == to / queries ? to % queries : queries - 1u;
        end = min(end, past + most + 1u);
    }

    vec4 o[4u * ROW_QUADS][COLUMN_QUADS];
    float most[4u * ROW_QUADS], sum[4u * ROW_QUADS];
    [[unroll]] for (uint r = 0u; r < 4u * ROW_QUADS; ++r) {
        most[r] = LOWEST;
        sum[r] = 0.0;
        [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) o[r][c] = vec4(0.0);
    }

    for (uint first = begin; first < end; first += KEYS) {
        vec4 s[4u * ROW_QUADS];
        [[unroll]] for (uint r = 0u; r < 4u * ROW_QUADS; ++r) s[r] = vec4(0.0);
        vec4 query[ROW_LOADS], fresh;
        uint key_loaded = first + i / 4u;
#define LOAD_CHUNK(chunk) \
        { \
            uint d = (chunk) + 4u * (i % 4u), there = d < head_size ? min(4u, head_size - d) : 0u; \
            [[unroll]] for (uint n = 0u; n < ROW_LOADS; ++n) { \
                query[n] = vec4(0.0); \
                if (there > 0u) query[n] = q_four(q_at[n] + d * q_by.w, q_by.w, there); \
            } \
            fresh = vec4(0.0); \
            if (there > 0u && key_loaded < end) \
                fresh = k_four(k_base + key_loaded * k_by.z + d * k_by.w, k_by.w, there); \
        }
        LOAD_CHUNK(0u)
        for (uint chunk = 0u; chunk < head_size; chunk += CHUNK) {
            barrier();  // the previous tile has been read
            [[unroll]] for (uint n = 0u; n < ROW_LOADS; ++n)
                put(0u, ROW_LINE, (i + n * INVOCATIONS) / 4u, i % 4u, query[n]);
            put(KEYS_AT, KEY_LINE, i / 4u, i % 4u, fresh);
            barrier();
            LOAD_CHUNK(chunk + CHUNK)  // the next chunk loads during the product
            // Unrolled in parts: if a compiler gives up, all sums go to memory.
            [[dont_unroll]] for (uint some = 0u; some < CHUNK; some += 4u)
            [[unroll]] for (uint n = 0u; n < 4u; ++n) {
                uint e = some + n;
                vec4 b = s_tile[KEYS_AT + e * KEY_LINE + tx];
                [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad) {
                    vec4 a = s_tile[e * ROW_LINE + quad * 16u + ty];
                    [[unroll]] for (uint r = 0u; r < 4u; ++r) s[4u * quad + r] += a[r] * b;
                }
            }
        }

        vec4 largest[ROW_QUADS];
        [[unroll]] for (uint r = 0u; r < 4u * ROW_QUADS; ++r) {
            [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                uint key = first + 4u * tx + c, safe = min(key, keys - 1u);
                float score = s[r][c] * scale;
                if (RELATIVE) score += relative_float(relative_at[r] + safe * relative_by.w);
                bool kept = true;
                if (MASK == 4u) kept = mask_words[mask_at[r] + safe * mask_by.w] != 0u;
                else if (MASK != 0u) kept = key >= low && key < high;
                if (!kept) score += filter_value;
                if (key >= end || (CAUSAL && key > past + position[r])) score = LOWEST;
                s[r][c] = score;
            }
            largest[r / 4u][r % 4u] = max(max(s[r].x, s[r].y), max(s[r].z, s[r].w));
        }
        barrier();
        [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad)
            s_tile[tx * ROW_LINE + quad * 16u + ty] = largest[quad];
        barrier();
        [[unroll]] for (uint t = 0u; t < ACROSS; ++t)
            [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad)
                largest[quad] = max(largest[quad], s_tile[t * ROW_LINE + quad * 16u + ty]);

        [[unroll]] for (uint r = 0u; r < 4u * ROW_QUADS; ++r) {
            float now = max(most[r], largest[r / 4u][r % 4u]);
            float base = now == LOWEST ? 0.0 : now;
            float shrink = power(most[r] - base);
            most[r] = now;
            [[unroll]] for (uint c = 0u; c < 4u; ++c) s[r][c] = power(s[r][c] - base);
            sum[r] = sum[r] * shrink + (s[r].x + s[r].y) + (s[r].z + s[r].w);
            [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) o[r][c] *= shrink;
        }
        [[unroll]] for (uint c = 0u; c < 4u; ++c)
            [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad)
                s_power[(4u * tx + c) * ROW_LINE + quad * 16u + ty] =
                    vec4(s[4u * quad][c], s[4u * quad + 1u][c], s[4u * quad + 2u][c],
                         s[4u * quad + 3u][c]);

        // Values: COLUMNS for each key.
        const uint VALUE_LOADS = CHUNK * COLUMNS / 4u / INVOCATIONS;
        vec4 values[VALUE_LOADS];
#define LOAD_VALUES(chunk) \
        [[unroll]] for (uint n = 0u; n < VALUE_LOADS; ++n) { \
            uint at = i + INVOCATIONS * n, d = column + 4u * (at % (COLUMNS / 4u)); \
            uint key = first + (chunk) + at / (COLUMNS / 4u); \
            values[n] = vec4(0.0); \
            if (d < value_size && key < end) \
                values[n] = v_four(v_base + key * v_by.z + d * v_by.w, v_by.w, \
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
                vec4 p[ROW_QUADS];
                [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad)
                    p[quad] = s_power[(chunk + e) * ROW_LINE + quad * 16u + ty];
                [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) {
                    vec4 x = s_tile[(e * COLUMN_QUADS + c) * ACROSS + tx];
                    [[unroll]] for (uint r = 0u; r < 4u * ROW_QUADS; ++r)
                        o[r][c] += p[r / 4u][r % 4u] * x;
                }
            }
        }
    }

    // The sums of all invocations of a row.
    barrier();
    [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad)
        s_tile[tx * ROW_LINE + quad * 16u + ty] =
            vec4(sum[4u * quad], sum[4u * quad + 1u], sum[4u * quad + 2u], sum[4u * quad + 3u]);
    barrier();
    vec4 total[ROW_QUADS];
    [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad) {
        total[quad] = vec4(0.0);
        [[unroll]] for (uint t = 0u; t < ACROSS; ++t)
            total[quad] += s_tile[t * ROW_LINE + quad * 16u + ty];
    }

    [[unroll]] for (uint r = 0u; r < 4u * ROW_QUADS; ++r) {
        if (row[r] >= rows) continue;
        float own_total = total[r / 4u][r % 4u];
        uint own_head = head * group + row[r] / queries;
        // Records by row and part: the undivided output, the maximum, the sum.
        uint record = (((batch * key_heads * group + own_head) * queries + position[r]) * parts + part)
                      * (value_size + 2u);
        if (SPLIT && tx == 0u && column == 0u) {
            y_words[y_offset + record + value_size] = floatBitsToUint(most[r]);
            y_words[y_offset + record + value_size + 1u] = floatBitsToUint(own_total);
        }
        uint to = y_offset + batch * y_by.x + own_head * y_by.y + position[r] * y_by.z;
        [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) {
            [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                uint d = column + 4u * (ACROSS * c + tx) + e;
                if (d >= value_size) continue;
                if (SPLIT) y_words[y_offset + record + d] = floatBitsToUint(o[r][c][e]);
                else y_store_float(to + d * y_by.w, own_total == 0.0 ? 0.0 : o[r][c][e] / own_total);
            }
        }
    }
}
