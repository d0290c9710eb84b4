//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
//@ variants WAY: usual turns
//@ unchecked usual
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
// FLOAT16 attention on matrix units. A subgroup of 32 computes FRAGMENTS x 16 rows of the output of one
// key head, in all columns. Rows are the queries of all query heads that share the key head. Keys are
// processed in tiles of KEYS, which the subgroups of a workgroup share.
//
// In general the driver decides which invocation holds an element of a matrix, so a row's maximum and sum go
// through shared memory. With SAME_PLACES it is known: element i of lane n is in row n / 4 + i / 4 * 8 and
// column n % 4 * 2 + i % 2 + i / 2 % 2 * 8, of sums and of left operands. Then four neighbours share a row,
// and the powers are operands where they are.
//
// Two fragments halve what is read of tiles, but leave no registers for queries of 128 elements. So WAY_turns
// has the queries in an array that the driver keeps in local memory, in the cache, and reads them again for each
// tile. Keys and values are stored in turns: each while the other is used. It needs SAME_PLACES, takes neither
// masks nor biases nor a soft cap, and with CAUSAL needs fragments of one head, and whole tiles. With WINDOW, all tiles have
// EDGES: they ask by tile.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint SUBGROUPS = 8u;
layout(constant_id = 2) const uint KEYS = 64u;
layout(constant_id = 3) const uint FRAGMENTS = 1u;
layout(constant_id = 4) const uint HEAD_SIZE = 128u;
layout(constant_id = 5) const uint VALUE_SIZE = 128u;
layout(constant_id = 6) const bool BY_KEY = false;  // masks or biases change scores
layout(constant_id = 7) const bool RELATIVE = false;
layout(constant_id = 8) const uint MASK = 0u;
layout(constant_id = 9) const bool CAUSAL = false;  // with the past sequence lengths
layout(constant_id = 10) const bool SPLIT = false;  // workgroups divide the keys
layout(constant_id = 11) const bool VECTORS = false;  // the output consists of them
layout(constant_id = 13) const bool SAME_PLACES = false;  // see DeviceTraits.fragments_alike
layout(constant_id = 14) const bool BY_ROW = false;  // masks or biases depend on the row, too
layout(constant_id = 15) const bool WHOLE = false;  // each 16 rows are of one head, and of whole tiles
layout(constant_id = 16) const bool SPLIT_KEYS = false;  // subgroups take the same rows and divide the keys
layout(constant_id = 17) const bool IDLE = false;  // some subgroups have no rows
layout(constant_id = 18) const bool RAGGED = false;  // parts of the keys may end inside a tile
layout(constant_id = 19) const bool AHEAD = false;  // scores of the next tile are computed with these powers
#include "include/attention_matrices.glsl"

const uint INVOCATIONS = 32u * SUBGROUPS;
const uint OWN_ROWS = 16u * FRAGMENTS;
const uint ROWS = SPLIT_KEYS ? OWN_ROWS : SUBGROUPS * OWN_ROWS;
const uint SHARES = SPLIT_KEYS ? SUBGROUPS : 1u;
const uint OWN_KEYS = KEYS / SHARES;
const int KEY_TILES = int(OWN_KEYS / 16u);
// Heads may be half a tile longer than whole ones. That half of keys and queries is 0 in shared memory; that of
// values holds anything, for its columns of the output are not written.
const int HEAD_TILES = int((HEAD_SIZE + 15u) / 16u);
const int VALUE_TILES = int((VALUE_SIZE + 15u) / 16u);
const int DOWN = int(FRAGMENTS);
// Rows of a matrix, as an invocation sees them: what it keeps by row. Else it keeps that by element.
const int LINES = SAME_PLACES ? 2 : 8;
#define LINE(i) (SAME_PLACES ? (i) / 4 : (i))
// Rows of vectors of eight elements, with a vector of padding against bank conflicts.
const uint K_PITCH = 2u * uint(HEAD_TILES) + 1u;
const uint V_PITCH = 2u * uint(VALUE_TILES) + 1u;
const uint P_PITCH = OWN_KEYS / 8u + 1u;
const uint V_AT = KEYS * K_PITCH;
const uint TILE = KEYS * (K_PITCH + V_PITCH);
const uint STRIP_PITCH = 5u;  // 16 float32, and a vector of padding
const uint STRIP = 16u * STRIP_PITCH;
const uint POWERS = SAME_PLACES ? 0u : OWN_ROWS * P_PITCH;
// With SAME_PLACES, only the end needs strips: they take the place of tiles.
const uint OWN_AT = SAME_PLACES ? 0u : TILE;
const uint OWN_END = OWN_AT + SUBGROUPS * (STRIP + POWERS);
shared uvec4 s_tile[OWN_END > TILE ? OWN_END : TILE];
shared uvec4 s_numbers[SAME_PLACES ? 1 : 64];  // 0.0 to 255.0
#ifndef WAY_turns
shared float s_by_key[KEYS];
shared uint s_limits[CAUSAL ? ROWS : 4u];  // the number of keys that a row sees
shared uvec2 s_rows[BY_ROW ? ROWS : 2u];  // where the relative bias and the mask of a row begin
#endif

const int K_LOADS = int((KEYS * HEAD_SIZE / 8u + INVOCATIONS - 1u) / INVOCATIONS);
const int V_LOADS = int((KEYS * VALUE_SIZE / 8u + INVOCATIONS - 1u) / INVOCATIONS);

#define Halves coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

void share() {
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}

vec4 strip(uint at) { return uintBitsToFloat(s_tile[at]); }

// The bias and the mask's value for the score of a key.
float added(uvec2 at, bool kept, uint key) {
    float sum = 0.0;
    if (RELATIVE) sum = relative_float(at.x + key * param(7u));
    if (MASK == 4u) kept = mask_words[at.y + key * param(11u)] != 0u;
    return kept ? sum : sum + filter_value;
}

// The line of an invocation's vector in a tile, and the vector's place in the line. Where all steps are whole
// lines, compilers that do not find that out would hold each line in a register.
uvec2 place_of(uint step, uint vectors) {
    uint own = gl_LocalInvocationIndex;
    if (!SAME_PLACES && INVOCATIONS % vectors == 0u)
        return uvec2(own / vectors + step * (INVOCATIONS / vectors), own % vectors);
    return uvec2((own + step * INVOCATIONS) / vectors, (own + step * INVOCATIONS) % vectors);
}

// The loads and stores of a tile of keys or values, by vectors.
#define LOAD(side, SIDE, SIZE, base, by, next) \
    [[unroll]] for (int i = 0; i < SIDE##_LOADS; ++i) { \
        uvec2 at = place_of(uint(i), SIZE / 8u); \
        uint key = min((next) + at.x, end - 1u); \
        side##_next[i] = side##_vectors[(base + key * by + at.y * 8u) / 8u]; \
    }
#define STORE(side, SIDE, SIZE, at) \
    [[unroll]] for (int i = 0; i < SIDE##_LOADS; ++i) { \
        uvec2 own = place_of(uint(i), SIZE / 8u); \
        if (KEYS * SIZE / 8u % INVOCATIONS == 0u || own.x < KEYS) \
            s_tile[at + own.x * SIDE##_PITCH + own.y] = side##_next[i]; \
    }

// What is added to the scores of a tile's keys.
#define ADDED_BY_KEY(first) \
    if (BY_KEY || ((CAUSAL || RAGGED) && (first) + KEYS > min(end, all_see)) \
        || (WINDOW != 0u && (first) < all_see_since)) \
        for (uint i = gl_LocalInvocationIndex; i < KEYS; i += INVOCATIONS) { \
            uint key = (first) + i, safe = min(key, keys - 1u); \
            bool kept = key >= low && key < high; \
            float sum = BY_ROW ? kept ? 0.0 : filter_value \
                               : added(uvec2(relative_at, mask_at), kept, safe); \
            s_by_key[i] = key < end ? bounded(sum) : ABSENT; \
        }

// Scores of the 16 keys of tile ``j``.
#define SCORES(s, j) \
    [[unroll]] for (int f = 0; f < DOWN; ++f) s[f * KEY_TILES + j] = Sums(0.0); \
    [[unroll]] for (int d = 0; d < HEAD_TILES; ++d) { \
        ColumnFragment z; \
        coopMatLoad(z, s_tile, (own_key + uint(j) * 16u) * K_PITCH + uint(d) * 2u, K_PITCH, \
                    gl_CooperativeMatrixLayoutColumnMajor); \
        [[unroll]] for (int f = 0; f < DOWN; ++f) \
            s[f * KEY_TILES + j] = coopMatMulAdd(x[f * HEAD_TILES + d], z, s[f * KEY_TILES + j]); \
    }

void main() {
    const uint lane = gl_SubgroupInvocationID, own_row = SPLIT_KEYS ? 0u : gl_SubgroupID * OWN_ROWS;
    const uint own_key = SPLIT_KEYS ? gl_SubgroupID * OWN_KEYS : 0u;
    const uint own = OWN_AT + gl_SubgroupID * (STRIP + POWERS), powers = own + STRIP;
    uint rows = group * queries, tiles = (rows + ROWS - 1u) / ROWS;
    // With CAUSAL, the last tiles take longest and come first.
    uint rest = group_index(), tile = tiles - 1u - rest % tiles;
    if (CAUSAL) {
        uint others = parts * key_heads * batches;
        if (rest >= tiles * others) return;
        tile = tiles - 1u - rest / others;
        rest %= others;
    } else {
        rest /= tiles;
    }
    uint part = rest % parts;
    rest /= parts;
    uint head = rest % key_heads, batch = rest / key_heads;
    if (batch >= batches) return;

    uvec4 relative_by = RELATIVE_STRIDES, mask_by = MASK_STRIDES;
    uint k_base = k_offset + batch * k_by[0] + head * k_by[1];
    uint v_base = v_offset + batch * v_by[0] + head * v_by[1];

    Seen seen = seen_by(batch, mask_by);
    uint low = seen.low, high = seen.high, past = seen.past;
    // Unless BY_ROW, all rows have the same bias and mask.
    uint relative_at = relative_offset + batch * relative_by.x + head * group * relative_by.y;
    uint mask_at = mask_offset + batch * mask_by.x + head * group * mask_by.y;

    // All rows see the keys before ``all_see``, those of this subgroup before ``own_all_see``.
    uvec2 own_keys = keys_of_part(past, part, KEYS);
    uint begin = own_keys.x, end = min(keys, begin + own_keys.y), all_see = keys;
    uint own_end = end, own_all_see = keys, all_see_since = 0u, own_all_see_since = 0u;
    if (CAUSAL) {
        uint from = tile * ROWS, to = min(from + ROWS, rows) - 1u;
        bool one_head = from / queries == to / queries;
        begin = max(begin, seen_since(past, one_head ? from % queries : 0u));
        all_see_since = seen_since(past, one_head ? to % queries : queries - 1u);
        end = min(end, seen_from(past, one_head ? to % queries : queries - 1u));
        all_see = seen_from(past, one_head ? from % queries : 0u);
        from = min(from + own_row, rows - 1u);
        uint own_last = (one_head ? min(from % queries + OWN_ROWS, queries) : queries) - 1u;
        own_end = min(end, seen_from(past, own_last));
        own_all_see_since = seen_since(past, own_last);
        own_all_see = seen_from(past, one_head ? from % queries : 0u);
    }

#ifndef WAY_turns
    for (uint i = gl_LocalInvocationIndex; i < ROWS; i += INVOCATIONS) {
        uint row = min(tile * ROWS + i, rows - 1u), position = row % queries;
        if (CAUSAL) s_limits[i] = seen_from(past, position);
        if (BY_ROW)
            s_rows[i] = uvec2(relative_at, mask_at) + position * uvec2(relative_by.z, mask_by.z)
                        + row / queries * uvec2(relative_by.y, mask_by.y);
    }
#endif
    for (uint i = gl_LocalInvocationIndex; !SAME_PLACES && i < 64u; i += INVOCATIONS)
        s_numbers[i] = floatBitsToUint(vec4(4u * i, 4u * i + 1u, 4u * i + 2u, 4u * i + 3u));

    for (uint i = gl_LocalInvocationIndex; HEAD_SIZE % 16u != 0u && i < KEYS; i += INVOCATIONS)
        s_tile[i * K_PITCH + HEAD_SIZE / 8u] = uvec4(0u);

    // Queries: loaded directly, or through the shared memory of the keys.
    RowFragment x[DOWN * HEAD_TILES];
    if (WHOLE)
        [[unroll]] for (int f = 0; f < DOWN; ++f) {
            uint row = min(tile * ROWS + own_row + uint(f) * 16u, rows - 16u);
            uint from = q_offset + batch * q_by[0] + (head * group + row / queries) * q_by[1]
                        + row % queries * q_by[2];
            [[unroll]] for (int d = 0; d < HEAD_TILES; ++d)
                coopMatLoad(x[f * HEAD_TILES + d], q_vectors, from / 8u + uint(d) * 2u, q_by[2] / 8u,
                            gl_CooperativeMatrixLayoutRowMajor);
        }
    for (uint first = 0u; !WHOLE && first < ROWS; first += KEYS) {
        barrier();
        [[unroll]] for (int i = 0; i < K_LOADS; ++i) {
            uvec2 at = place_of(uint(i), HEAD_SIZE / 8u);
            uint row = min(tile * ROWS + first + at.x, rows - 1u);
            uint from = q_offset + batch * q_by[0] + (head * group + row / queries) * q_by[1]
                        + row % queries * q_by[2] + at.y * 8u;
            if (at.x < KEYS) s_tile[at.x * K_PITCH + at.y] = q_vectors[from / 8u];
        }
        barrier();
        [[unroll]] for (int f = 0; f < DOWN; ++f) {
            uint line = own_row + uint(f) * 16u - first;
            if (line < KEYS)
                [[unroll]] for (int d = 0; d < HEAD_TILES; ++d)
                    coopMatLoad(x[f * HEAD_TILES + d], s_tile, line * K_PITCH + uint(d) * 2u, K_PITCH,
                                gl_CooperativeMatrixLayoutRowMajor);
        }
    }

#ifdef WAY_turns
    // The words of operands, in the order in which matrix units of fragments alike take them.
    uvec4 local_x[DOWN * HEAD_TILES];
    int zero = int(parts >> 31u);  // not known to the compiler, so that the array has an address
    [[unroll]] for (int n = 0; n < DOWN * HEAD_TILES; ++n)
        [[unroll]] for (int i = 0; i < 4; ++i)
            local_x[n][i / 2 + i % 2 * 2] = packFloat2x16(f16vec2(x[n][2 * i], x[n][2 * i + 1]));
#endif

    Sums o[DOWN * VALUE_TILES];
    float sum[DOWN * LINES], most[DOWN * LINES];
    float own_most[DOWN];  // of the row that this lane reduces half of
    [[unroll]] for (int f = 0; f < DOWN; ++f) {
        own_most[f] = LOWEST;
        [[unroll]] for (int n = 0; n < VALUE_TILES; ++n) o[f * VALUE_TILES + n] = Sums(0.0);
        [[unroll]] for (int l = 0; l < LINES; ++l) {
            sum[f * LINES + l] = 0.0;
            most[f * LINES + l] = LOWEST;
        }
    }

    bool works = tile * ROWS + own_row < rows;
    uvec4 k_next[K_LOADS], v_next[V_LOADS];
    Sums s[DOWN * KEY_TILES], t[AHEAD ? DOWN * KEY_TILES : 1];
    if (begin < end) {
        LOAD(k, K, HEAD_SIZE, k_base, k_by[2], begin)
        LOAD(v, V, VALUE_SIZE, v_base, v_by[2], begin)
#ifdef WAY_turns
        if (!WHOLE) barrier();  // the queries have been read
        STORE(k, K, HEAD_SIZE, 0u)
#endif
    }
    if (AHEAD && begin < end) {
        if (!WHOLE) barrier();  // the queries have been read
        STORE(k, K, HEAD_SIZE, 0u)
        LOAD(k, K, HEAD_SIZE, k_base, k_by[2], begin + KEYS)
        barrier();
        [[unroll]] for (int j = 0; j < KEY_TILES; ++j) { SCORES(s, j) }
    }
    // Most tiles have no edges: all rows see all of their keys.
    uint first = begin;
    if (!BY_KEY && WINDOW == 0u)
        for (; first + KEYS <= min(end, all_see); first += KEYS) {
#define EDGES false
#ifdef WAY_turns
#include "include/attention_tile_in_turns.glsl"
#else
#include "include/attention_tile.glsl"
#endif
#undef EDGES
        }
    if (BY_KEY || CAUSAL || RAGGED)
        for (; first < end; first += KEYS) {
#define EDGES true
#ifdef WAY_turns
#include "include/attention_tile_in_turns.glsl"
#else
#include "include/attention_tile.glsl"
#endif
#undef EDGES
        }
    if (SAME_PLACES) barrier();  // all tiles have been read

    // Two lanes write a row, eight columns at a time.
    [[unroll]] for (int f = 0; f < DOWN; ++f) {
        uint at = own + lane / 2u * STRIP_PITCH;
        float total;
        if (SAME_PLACES) {
            float low = subgroupShuffle(row_sum(sum[f * LINES]), lane / 2u % 8u * 4u);
            float high = subgroupShuffle(row_sum(sum[f * LINES + 1]), lane / 2u % 8u * 4u);
            total = lane < 16u ? low : high;
            low = subgroupShuffle(most[f * LINES], lane / 2u % 8u * 4u);
            high = subgroupShuffle(most[f * LINES + 1], lane / 2u % 8u * 4u);
            own_most[f] = lane < 16u ? low : high;
        } else {
            Sums strips;
            [[unroll]] for (int i = 0; i < strips.length(); ++i) strips[i] = sum[f * LINES + LINE(i)];
            coopMatStore(strips, s_tile, own, STRIP_PITCH, gl_CooperativeMatrixLayoutRowMajor);
            share();
            vec4 four = (strip(at) + strip(at + 1u)) + (strip(at + 2u) + strip(at + 3u));
            total = (four.x + four.y) + (four.z + four.w);
            share();
        }
        uint row = tile * ROWS + own_row + uint(f) * 16u + lane / 2u;
        bool exists = row < rows;
        uint own_head = head * group + row / queries, position = row % queries;
        // Records by row and part: the undivided output, the maximum, the sum.
        uint record = (((batch * key_heads * group + own_head) * queries + position) * parts + part)
                      * SHARES + (SPLIT_KEYS ? gl_SubgroupID : 0u);
        record *= VALUE_SIZE + 2u;
        if (SPLIT && exists && lane % 2u == 0u) {
            y_words[y_offset + record + VALUE_SIZE] = floatBitsToUint(own_most[f] / LOG2_E);
            y_words[y_offset + record + VALUE_SIZE + 1u] = floatBitsToUint(total);
        }
        uint to = y_offset + batch * y_by[0] + own_head * y_by[1] + position * y_by[2];
        float share_of = total == 0.0 ? 0.0 : 1.0 / total;
        [[unroll]] for (int n = 0; n < VALUE_TILES; ++n) {
            coopMatStore(o[f * VALUE_TILES + n], s_tile, own, STRIP_PITCH,
                         gl_CooperativeMatrixLayoutRowMajor);
            share();
            vec4 a = strip(at + lane % 2u * 2u), b = strip(at + lane % 2u * 2u + 1u);
            share();
            uint column = uint(n) * 16u + lane % 2u * 8u;
            if (VALUE_SIZE % 16u != 0u) exists = exists && column < VALUE_SIZE;
            if (SPLIT && exists) {
                [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                    y_words[y_offset + record + column + e] = floatBitsToUint(a[e]);
                    y_words[y_offset + record + column + 4u + e] = floatBitsToUint(b[e]);
                }
            }
            a *= share_of;
            b *= share_of;
            if (!SPLIT && exists && VECTORS)
                y_vectors[(to + column) / 8u] = uvec4(floats_to_halves(a), floats_to_halves(b));
            if (!SPLIT && exists && !VECTORS)
                [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                    y_store_float(to + (column + e) * param(3u), a[e]);
                    y_store_float(to + (column + 4u + e) * param(3u), b[e]);
                }
        }
    }
}
