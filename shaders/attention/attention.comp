//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
//@ variants WIDTH: c64 c128
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// One workgroup of 16 x 16 invocations makes 64 rows by COLUMNS columns of the output of one key head.
// Rows are the queries of all query heads that share the key head. The keys pass by in tiles of 64:
// an invocation holds 4 rows x 4 keys of the scores, the running maxima and sums of its rows, and
// 4 rows x COLUMNS / 16 columns of the output, all in float32.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool VECTORS = false;  // head sizes are whole vectors, side by side
layout(constant_id = 3) const bool RELATIVE = false;
layout(constant_id = 4) const uint MASK = 0u;
layout(constant_id = 5) const bool CAUSAL = false;  // by the lengths of what is past
layout(constant_id = 6) const bool SPLIT = false;  // keys, among workgroups
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
#if defined(WIDTH_c128)
#define COLUMN_QUADS 2u
#else
#define COLUMN_QUADS 1u
#endif
const uint COLUMNS = 64u * COLUMN_QUADS;
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
const uint LINE = 17u;  // vectors of 64 elements, and one against bank conflicts
shared vec4 s_tile[2u * CHUNK * LINE];  // of queries and keys by element, or of values by key
shared vec4 s_power[64u * LINE];        // by key

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

void put(uint first, uint line, uint part, vec4 x) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        s_tile[(first + 4u * part + i) * LINE + line / 4u][line % 4u] = x[i];
}

void main() {
    const uint i = gl_LocalInvocationIndex, tx = i % 16u, ty = i / 16u;
    // Tiles of rows change fastest: neighbours read the same keys.
    uint rows = group * queries, tiles = (rows + 63u) / 64u;
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

    uint row[4], position[4];
    uint relative_at[4], mask_at[4];
    uint last = 0u;
    [[unroll]] for (uint r = 0u; r < 4u; ++r) {
        row[r] = tile * 64u + 4u * ty + r;
        uint known = min(row[r], rows - 1u);
        uint own_head = head * group + known / queries;
        position[r] = known % queries;
        relative_at[r] = relative_offset + batch * relative_by.x + own_head * relative_by.y
                         + position[r] * relative_by.z;
        mask_at[r] = mask_offset + batch * mask_by.x + own_head * mask_by.y
                     + position[r] * mask_by.z;
    }

    // The row whose queries this invocation loads.
    uint loaded = tile * 64u + i / 4u;
    uint loaded_head = head * group + min(loaded, rows - 1u) / queries;
    uint q_at = q_offset + batch * q_by.x + loaded_head * q_by.y
                + min(loaded, rows - 1u) % queries * q_by.z;

    uint begin = part * span, end = min(keys, begin + span);
    if (CAUSAL) {
        uint from = tile * 64u, to = min(from + 64u, rows) - 1u;
        uint most = from / queries == to / queries ? to % queries : queries - 1u;
        end = min(end, past + most + 1u);
    }

    vec4 o[4][COLUMN_QUADS];
    float most[4], sum[4];
    [[unroll]] for (uint r = 0u; r < 4u; ++r) {
        most[r] = LOWEST;
        sum[r] = 0.0;
        [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) o[r][c] = vec4(0.0);
    }

    for (uint first = begin; first < end; first += 64u) {
        vec4 s[4];
        [[unroll]] for (uint r = 0u; r < 4u; ++r) s[r] = vec4(0.0);
        for (uint chunk = 0u; chunk < head_size; chunk += CHUNK) {
            uint d = chunk + 4u * (i % 4u), key = first + i / 4u;
            vec4 query = vec4(0.0), fresh = vec4(0.0);
            uint there = d < head_size ? min(4u, head_size - d) : 0u;
            if (there > 0u && loaded < rows) query = q_four(q_at + d * q_by.w, q_by.w, there);
            if (there > 0u && key < end)
                fresh = k_four(k_base + key * k_by.z + d * k_by.w, k_by.w, there);
            barrier();  // what was there has been read
            put(0u, i / 4u, i % 4u, query);
            put(CHUNK, i / 4u, i % 4u, fresh);
            barrier();
            [[unroll]] for (uint e = 0u; e < CHUNK; ++e) {
                vec4 a = s_tile[e * LINE + ty], b = s_tile[(CHUNK + e) * LINE + tx];
                [[unroll]] for (uint r = 0u; r < 4u; ++r) s[r] += a[r] * b;
            }
        }

        vec4 largest;
        [[unroll]] for (uint r = 0u; r < 4u; ++r) {
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
            largest[r] = max(max(s[r].x, s[r].y), max(s[r].z, s[r].w));
        }
        barrier();
        s_tile[tx * LINE + ty] = largest;
        barrier();
        [[unroll]] for (uint t = 0u; t < 16u; ++t) largest = max(largest, s_tile[t * LINE + ty]);

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
            s_power[(4u * tx + c) * LINE + ty] = vec4(s[0][c], s[1][c], s[2][c], s[3][c]);

        for (uint chunk = 0u; chunk < 64u; chunk += CHUNK) {
            barrier();
            [[unroll]] for (uint n = 0u; n < COLUMN_QUADS; ++n) {
                uint at = i + 256u * n, quad = at % (16u * COLUMN_QUADS);
                uint key = first + chunk + at / (16u * COLUMN_QUADS), d = column + 4u * quad;
                vec4 x = vec4(0.0);
                if (d < value_size && key < end)
                    x = v_four(v_base + key * v_by.z + d * v_by.w, v_by.w, min(4u, value_size - d));
                s_tile[at] = x;
            }
            barrier();
            [[unroll]] for (uint e = 0u; e < CHUNK; ++e) {
                vec4 p = s_power[(chunk + e) * LINE + ty];
                [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) {
                    vec4 x = s_tile[(e * COLUMN_QUADS + c) * 16u + tx];
                    [[unroll]] for (uint r = 0u; r < 4u; ++r) o[r][c] += p[r] * x;
                }
            }
        }
    }

    // The sums of the sixteen invocations of a row.
    barrier();
    s_tile[tx * LINE + ty] = vec4(sum[0], sum[1], sum[2], sum[3]);
    barrier();
    vec4 total = vec4(0.0);
    [[unroll]] for (uint t = 0u; t < 16u; ++t) total += s_tile[t * LINE + ty];

    [[unroll]] for (uint r = 0u; r < 4u; ++r) {
        if (row[r] >= rows) continue;
        uint own_head = head * group + row[r] / queries;
        // By row and part: the output before its division, then the maximum and the sum.
        uint record = (((batch * key_heads * group + own_head) * queries + position[r]) * parts + part)
                      * (value_size + 2u);
        if (SPLIT && tx == 0u && column == 0u) {
            y_words[y_offset + record + value_size] = floatBitsToUint(most[r]);
            y_words[y_offset + record + value_size + 1u] = floatBitsToUint(total[r]);
        }
        uint to = y_offset + batch * y_by.x + own_head * y_by.y + position[r] * y_by.z;
        [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) {
            [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                uint d = column + 64u * c + 4u * tx + e;
                if (d >= value_size) continue;
                if (SPLIT) y_words[y_offset + record + d] = floatBitsToUint(o[r][c][e]);
                else y_store_float(to + d * y_by.w, total[r] == 0.0 ? 0.0 : o[r][c][e] / total[r]);
            }
        }
    }
}
