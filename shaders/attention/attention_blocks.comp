//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
//@ variants TILE:
//@     h32(rows=64, columns=32, keys=64, across=8, ahead=0, chunk=8, unrolls=1)
//@     h64(rows=64, columns=64, keys=64, across=8, ahead=0, chunk=8, unrolls=1)
//@     b64(rows=128, columns=64, keys=64, across=8, ahead=0, chunk=8, unrolls=1)
//@     b128(rows=128, columns=128, keys=128, across=16, ahead=1, chunk=8, unrolls=1)
//@     s64(rows=64, columns=64, keys=64, across=16, ahead=0, chunk=16, unrolls=0)
//@     s128(rows=64, columns=128, keys=64, across=16, ahead=0, chunk=16, unrolls=0)
#version 450
#define MAY_BE_BFLOAT16
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A workgroup of ACROSS x 16 invocations computes ROWS rows by COLUMNS columns of the output of one key
// head. Rows are the queries of all query heads that share the key head. Keys are processed in tiles of
// KEYS. For each of its 4 ROW_QUADS rows, an invocation holds the scores of 4 KEY_QUADS keys and 4
// COLUMN_QUADS columns of the output, in float32: blocks large enough that multiplications outweigh
// reading shared memory. Both products read slices there; while one is multiplied, the next one is stored
// beside it. The second product takes PART keys at a time, of which each invocation gives four.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool VECTORS = false;  // head sizes are whole, contiguous vectors
layout(constant_id = 3) const bool RELATIVE = false;
layout(constant_id = 4) const uint MASK = 0u;
layout(constant_id = 5) const bool CAUSAL = false;  // with the past sequence lengths
layout(constant_id = 6) const bool SPLIT = false;  // workgroups divide the keys
layout(constant_id = 7) const bool BY_ROW = false;  // masks or biases depend on the row, too
layout(constant_id = 8) const bool STORES_VECTORS = false;
// VECTORS that are aligned wherever the tensors lie: no condition before a load, whose end would wait for it.
layout(constant_id = 9) const bool ALIGNED = false;
const uint ROWS = TILE_rows, COLUMNS = TILE_columns, KEYS = TILE_keys, ACROSS = TILE_across;
const uint ROW_QUADS = ROWS / 64u, KEY_QUADS = KEYS / 4u / ACROSS, COLUMN_QUADS = COLUMNS / 4u / ACROSS;
const uint PART = 4u * ACROSS;
const uint INVOCATIONS = 16u * ACROSS;
#define MORE_PUSH uint head_size; uint value_size;
#define ATTENTION_TYPE TYPE
#define OUTPUT_TYPE TYPE
#include "include/attention.glsl"

const uint CHUNK = TILE_chunk;  // elements of queries and keys at a time
// Vectors of rows, keys or columns, and a vector of padding against bank conflicts.
const uint ROW_LINE = ROWS / 4u + 1u;
const uint KEY_LINE = KEYS / 4u + 1u;
const uint COLUMN_LINE = COLUMNS / 4u;
const uint KEYS_AT = CHUNK * ROW_LINE;
const uint SLICE = KEYS_AT + CHUNK * KEY_LINE;  // queries and keys, transposed
// Powers by key, and values. The slice of values is a vector for each invocation, or more.
const uint VALUES = COLUMN_LINE * 8u < INVOCATIONS ? INVOCATIONS / COLUMN_LINE : 8u;
const uint VALUES_AT = PART * ROW_LINE;
const uint VALUES_SLICE = VALUES * COLUMN_LINE;
const uint PARTS_END = VALUES_AT + 2u * VALUES_SLICE;
shared vec4 s_tile[2u * SLICE > PARTS_END ? 2u * SLICE : PARTS_END];

// Compilers load all slices of an unrolled loop at once, for which some devices have too few registers.
#if TILE_unrolls
#define SLICES [[unroll]]
#else
#define SLICES [[dont_unroll]]
#endif

#define LOWEST uintBitsToFloat(0xFF800000u)

// The bits of four elements: floats, or halves in the first two words. They are converted when they are
// stored: a conversion beside its load would wait for it.
#define LOAD4(x) \
    uvec4 x##_four(uint at, uint stride, uint there) { \
        if (ALIGNED || (VECTORS && x##_offset % 4u == 0u)) { \
            if (BYTES_OF(TYPE) == 4u) return x##_vectors[at / 4u]; \
            return uvec4(x##_words[at / 2u], x##_words[at / 2u + 1u], 0u, 0u); \
        } \
        uvec4 bits = uvec4(0u); \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) { \
            uint from = at + i * stride; \
            if (i < there) \
                bits[i] = BYTES_OF(TYPE) == 4u ? x##_words[from] \
                                               : x##_words[from / 2u] >> from % 2u * 16u & 0xFFFFu; \
        } \
        return BYTES_OF(TYPE) == 4u ? bits : uvec4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, 0u, 0u); \
    }
LOAD4(q)
LOAD4(k)
LOAD4(v)

vec4 four_of(uvec4 bits) {
    if (BYTES_OF(TYPE) == 4u) return uintBitsToFloat(bits);
    return vec4(halves_to_floats(bits.x), halves_to_floats(bits.y));
}

float power(float x) {
    return HAS_EXACT_UNITS ? exp2(x * LOG2_E) : exp_of(x);
}

// Stores four elements of a row, transposed.
void put(uint first, uint pitch, uint line, uint part, vec4 x) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        s_tile[first + (4u * part + i) * pitch + line / 4u][line % 4u] = x[i];
}

const int Q_LOADS = int(ROWS * CHUNK / 4u / INVOCATIONS);
const int K_LOADS = int(KEYS * CHUNK / 4u / INVOCATIONS);
const int V_LOADS = int(VALUES_SLICE / INVOCATIONS);
const int ALL_ROWS = int(4u * ROW_QUADS);

void main() {
    // A subgroup of 32 takes 4 x 8 invocations' blocks: it reads the fewest vectors.
    const uint i = gl_LocalInvocationIndex;
    const uint tx = i / 2u % 8u + i / 32u % (ACROSS / 8u) * 8u;
    const uint ty = i % 2u + i / 16u % 2u * 2u + i / (4u * ACROSS) * 4u;
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

    uvec4 by_element = ELEMENT_STRIDES, relative_by = RELATIVE_STRIDES, mask_by = MASK_STRIDES;
    uint k_base = k_offset + batch * k_by[0] + head * k_by[1];
    uint v_base = v_offset + batch * v_by[0] + head * v_by[1];

    Seen seen = seen_by(batch, mask_by);
    uint low = seen.low, high = seen.high, past = seen.past;

    // The rows of this invocation, and those whose queries it loads.
    uint position[ALL_ROWS];
    uvec2 added_at[BY_ROW ? ALL_ROWS : 1];
    [[unroll]] for (int r = 0; r < ALL_ROWS; ++r) {
        uint known = min(tile * ROWS + uint(r) / 4u * 64u + 4u * ty + uint(r) % 4u, rows - 1u);
        uint own_head = head * group + known / queries;
        position[r] = known % queries;
        if (BY_ROW || r == 0)
            added_at[BY_ROW ? r : 0] = added_from(batch, own_head, position[r], relative_by, mask_by);
    }
    uint q_at[Q_LOADS];
    [[unroll]] for (int n = 0; n < Q_LOADS; ++n) {
        uint known = min(tile * ROWS + (i + uint(n) * INVOCATIONS) / (CHUNK / 4u), rows - 1u);
        q_at[n] = q_offset + batch * q_by[0] + (head * group + known / queries) * q_by[1]
                  + known % queries * q_by[2];
    }

    uvec2 own = keys_of_part(past, part, KEYS);
    uint begin = own.x, end = min(keys, begin + own.y);
    if (CAUSAL) {
        uint from = tile * ROWS, to = min(from + ROWS, rows) - 1u;
        bool one_head = from / queries == to / queries;
        begin = max(begin, seen_since(past, one_head ? from % queries : 0u));
        end = min(end, seen_from(past, one_head ? to % queries : queries - 1u));
    }

    vec4 o[ALL_ROWS][COLUMN_QUADS];
    float most[ALL_ROWS], sum[ALL_ROWS];
    [[unroll]] for (int r = 0; r < ALL_ROWS; ++r) {
        most[r] = LOWEST;
        sum[r] = 0.0;
        [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) o[r][c] = vec4(0.0);
    }

    const uint d_loaded = 4u * (i % (CHUNK / 4u));
    for (uint first = begin; first < end; first += KEYS) {
        vec4 s[ALL_ROWS][KEY_QUADS];
        [[unroll]] for (int r = 0; r < ALL_ROWS; ++r)
            [[unroll]] for (uint k = 0u; k < KEY_QUADS; ++k) s[r][k] = vec4(0.0);
        uvec4 query[Q_LOADS], fresh[K_LOADS];
        uint k_at[K_LOADS];
        [[unroll]] for (int n = 0; n < K_LOADS; ++n)
            k_at[n] = k_base + min(first + (i + uint(n) * INVOCATIONS) / (CHUNK / 4u), end - 1u) * k_by[2];
        // Keys beyond the end are the last one, elements beyond a vector are multiplied by zeros.
#define LOAD_CHUNK(chunk) \
        { \
            uint d = (chunk) + d_loaded, there = d < head_size ? min(4u, head_size - d) : 0u; \
            uint safe = VECTORS ? min(d, head_size - 4u) : d; \
            [[unroll]] for (int n = 0; n < Q_LOADS; ++n) { \
                query[n] = q_four(q_at[n] + safe * by_element[0], by_element[0], there); \
                if (there == 0u) query[n] = uvec4(0u); \
            } \
            [[unroll]] for (int n = 0; n < K_LOADS; ++n) \
                fresh[n] = k_four(k_at[n] + safe * by_element[1], by_element[1], there); \
        }
#define PUT_CHUNK(at) \
        [[unroll]] for (int n = 0; n < Q_LOADS; ++n) \
            put(at, ROW_LINE, (i + uint(n) * INVOCATIONS) / (CHUNK / 4u), d_loaded / 4u, four_of(query[n])); \
        [[unroll]] for (int n = 0; n < K_LOADS; ++n) \
            put((at) + KEYS_AT, KEY_LINE, (i + uint(n) * INVOCATIONS) / (CHUNK / 4u), d_loaded / 4u, \
                four_of(fresh[n]));
        LOAD_CHUNK(0u)
        barrier();  // the previous tile has been read
        PUT_CHUNK(0u)
        barrier();
        uint current = 0u;
#define READ_CHUNK(a, b, e) \
        [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad) \
            a[quad] = s_tile[current + (e) * ROW_LINE + quad * 16u + ty]; \
        [[unroll]] for (uint k = 0u; k < KEY_QUADS; ++k) \
            b[k] = s_tile[current + KEYS_AT + (e) * KEY_LINE + k * ACROSS + tx];
#define ADD_SCORES(a, b) \
        [[unroll]] for (int r = 0; r < ALL_ROWS; ++r) \
            [[unroll]] for (uint k = 0u; k < KEY_QUADS; ++k) s[r][k] += a[r / 4][r % 4] * b[k];
#if TILE_ahead
        vec4 a[ROW_QUADS], b[KEY_QUADS], more_a[ROW_QUADS], more_b[KEY_QUADS];
        READ_CHUNK(a, b, 0u)
        for (uint chunk = 0u; chunk < head_size; chunk += CHUNK) {
            LOAD_CHUNK(chunk + CHUNK)  // during the product
            [[unroll]] for (uint e = 0u; e < CHUNK - 2u; e += 2u) {
                READ_CHUNK(more_a, more_b, e + 1u)
                ADD_SCORES(a, b)
                READ_CHUNK(a, b, e + 2u)
                ADD_SCORES(more_a, more_b)
            }
            READ_CHUNK(more_a, more_b, CHUNK - 1u)
            ADD_SCORES(a, b)
            current = SLICE - current;
            PUT_CHUNK(current)
            barrier();
            READ_CHUNK(a, b, 0u)
            ADD_SCORES(more_a, more_b)
        }
#else
        for (uint chunk = 0u; chunk < head_size; chunk += CHUNK) {
            LOAD_CHUNK(chunk + CHUNK)  // during the product
            SLICES for (uint e = 0u; e < CHUNK; ++e) {
                vec4 a[ROW_QUADS], b[KEY_QUADS];
                READ_CHUNK(a, b, e)
                ADD_SCORES(a, b)
            }
            current = SLICE - current;
            PUT_CHUNK(current)
            barrier();
        }
#endif

        // Values in the order of parts: first the first of each invocation's four keys.
        uvec4 values[V_LOADS];
#define LOAD_VALUES(from) \
        [[unroll]] for (int n = 0; n < V_LOADS; ++n) { \
            uint at = i + INVOCATIONS * uint(n), d = column + 4u * (at % COLUMN_LINE); \
            uint e = (from) + at / COLUMN_LINE; \
            uint key = first + e / PART * PART + 4u * (e % ACROSS) + e / ACROSS % 4u; \
            uint there = d < value_size ? min(4u, value_size - d) : 0u; \
            values[n] = v_four(v_base + min(key, end - 1u) * v_by[2] \
                               + (VECTORS ? min(d, value_size - 4u) : d) * by_element[2], by_element[2], there); \
        }
#define PUT_VALUES(at) \
        [[unroll]] for (int n = 0; n < V_LOADS; ++n) \
            s_tile[VALUES_AT + (at) + i + INVOCATIONS * uint(n)] = four_of(values[n]);
        LOAD_VALUES(0u)

        // Single scores matter only at edges.
        bool edge = first + KEYS > end;
        if (CAUSAL) edge = true;
        if (RELATIVE) edge = true;
        if (MASK != 0u || SOFT_CAP != 0u) edge = true;
        vec4 largest[ROW_QUADS];
        [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad) largest[quad] = vec4(LOWEST);
        [[unroll]] for (uint k = 0u; k < KEY_QUADS; ++k) {
            if (edge) {
                [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                    uint key = first + 4u * (k * ACROSS + tx) + c, safe = min(key, keys - 1u);
                    float more = 0.0;
#define ADDED(r) \
                    { \
                        more = 0.0; \
                        if (RELATIVE) more = relative_float(added_at[r].x + safe * relative_by.w); \
                        bool kept = true; \
                        if (MASK == 4u) kept = mask_words[added_at[r].y + safe * mask_by.w] != 0u; \
                        else if (MASK != 0u) kept = key >= low && key < high; \
                        if (!kept) more += filter_value; \
                    }
                    if (!BY_ROW) ADDED(0)
                    [[unroll]] for (int r = 0; r < ALL_ROWS; ++r) {
                        if (BY_ROW) ADDED(r)
                        float score = capped(s[r][k][c] * scale) + more;
                        if (key >= end || (CAUSAL && !sees(past, position[r], key))) score = LOWEST;
                        s[r][k][c] = score;
                    }
                }
            } else {
                [[unroll]] for (int r = 0; r < ALL_ROWS; ++r) s[r][k] *= scale;
            }
            [[unroll]] for (int r = 0; r < ALL_ROWS; ++r)
                largest[r / 4][r % 4] = max(largest[r / 4][r % 4], max(
                    max(s[r][k].x, s[r][k].y), max(s[r][k].z, s[r][k].w)));
        }
        [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad)
            s_tile[tx * ROW_LINE + quad * 16u + ty] = largest[quad];
        barrier();
        [[dont_unroll]] for (uint t = 0u; t < ACROSS; ++t)
            [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad)
                largest[quad] = max(largest[quad], s_tile[t * ROW_LINE + quad * 16u + ty]);

        [[unroll]] for (int r = 0; r < ALL_ROWS; ++r) {
            float now = max(most[r], largest[r / 4][r % 4]);
            float base = now == LOWEST ? 0.0 : now;
            float shrink = power(most[r] - base);
            most[r] = now;
            sum[r] *= shrink;
            [[unroll]] for (uint k = 0u; k < KEY_QUADS; ++k) {
                [[unroll]] for (uint c = 0u; c < 4u; ++c) s[r][k][c] = power(s[r][k][c] - base);
                sum[r] += (s[r][k].x + s[r][k].y) + (s[r][k].z + s[r][k].w);
            }
            [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) o[r][c] *= shrink;
        }
        [[unroll]] for (uint k = 0u; k < KEY_QUADS; ++k) {
            barrier();  // the maxima, or the powers before, have been read
            [[unroll]] for (uint c = 0u; c < 4u; ++c)
                [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad)
                    s_tile[(c * ACROSS + tx) * ROW_LINE + quad * 16u + ty] =
                        vec4(s[4u * quad][k][c], s[4u * quad + 1u][k][c], s[4u * quad + 2u][k][c],
                             s[4u * quad + 3u][k][c]);
            PUT_VALUES(0u)
            barrier();
            current = 0u;
#define READ_VALUES(p, x, from, n) \
            [[unroll]] for (uint quad = 0u; quad < ROW_QUADS; ++quad) \
                p[quad] = s_tile[((from) + (n)) * ROW_LINE + quad * 16u + ty]; \
            [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) \
                x[c] = s_tile[VALUES_AT + current + (n) * COLUMN_LINE + c * ACROSS + tx];
#define ADD_VALUES(p, x) \
            [[unroll]] for (int r = 0; r < ALL_ROWS; ++r) \
                [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) o[r][c] += p[r / 4][r % 4] * x[c];
#if TILE_ahead
            vec4 p[ROW_QUADS], x[COLUMN_QUADS], more_p[ROW_QUADS], more_x[COLUMN_QUADS];
            READ_VALUES(p, x, 0u, 0u)
            [[dont_unroll]] for (uint some = 0u; some < PART; some += VALUES) {
                LOAD_VALUES(k * PART + some + VALUES)
                [[unroll]] for (uint n = 0u; n < VALUES - 2u; n += 2u) {
                    READ_VALUES(more_p, more_x, some, n + 1u)
                    ADD_VALUES(p, x)
                    READ_VALUES(p, x, some, n + 2u)
                    ADD_VALUES(more_p, more_x)
                }
                READ_VALUES(more_p, more_x, some, VALUES - 1u)
                ADD_VALUES(p, x)
                current = VALUES_SLICE - current;
                PUT_VALUES(current)
                barrier();
                READ_VALUES(p, x, min(some + VALUES, PART - 1u), 0u)  // after the last ones, unused
                ADD_VALUES(more_p, more_x)
            }
#else
            [[dont_unroll]] for (uint some = 0u; some < PART; some += VALUES) {
                LOAD_VALUES(k * PART + some + VALUES)
                SLICES for (uint n = 0u; n < VALUES; ++n) {
                    vec4 p[ROW_QUADS], x[COLUMN_QUADS];
                    READ_VALUES(p, x, some, n)
                    ADD_VALUES(p, x)
                }
                if (some + VALUES < PART) {
                    current = VALUES_SLICE - current;
                    PUT_VALUES(current)
                    barrier();
                }
            }
#endif
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

    [[unroll]] for (int r = 0; r < ALL_ROWS; ++r) {
        uint row = tile * ROWS + uint(r) / 4u * 64u + 4u * ty + uint(r) % 4u;
        if (row >= rows) continue;
        float own_total = total[r / 4][r % 4];
        uint own_head = head * group + row / queries;
        // Records by row and part: the undivided output, the maximum, the sum.
        uint record = (((batch * key_heads * group + own_head) * queries + position[r]) * parts + part)
                      * (value_size + 2u);
        if (SPLIT && tx == 0u && column == 0u) {
            y_words[y_offset + record + value_size] = floatBitsToUint(most[r]);
            y_words[y_offset + record + value_size + 1u] = floatBitsToUint(own_total);
        }
        uint to = y_offset + batch * y_by[0] + own_head * y_by[1] + position[r] * y_by[2];
        float share_of = own_total == 0.0 ? 0.0 : 1.0 / own_total;
        [[unroll]] for (uint c = 0u; c < COLUMN_QUADS; ++c) {
            uint four = column + 4u * (ACROSS * c + tx);
            if (!SPLIT && STORES_VECTORS) {
                if (four >= value_size) continue;
                vec4 whole = o[r][c] * share_of;
                if (BYTES_OF(TYPE) == 4u) {
                    y_vectors[(to + four) / 4u] = floatBitsToUint(whole);
                } else {
                    uvec2 pairs = floats_to_halves(whole);
                    y_words[(to + four) / 2u] = pairs.x;
                    y_words[(to + four) / 2u + 1u] = pairs.y;
                }
                continue;
            }
            [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                uint d = four + e;
                if (d >= value_size) continue;
                if (SPLIT) y_words[y_offset + record + d] = floatBitsToUint(o[r][c][e]);
                else y_store_float(to + d * by_element[3], o[r][c][e] * share_of);
            }
        }
    }
}
