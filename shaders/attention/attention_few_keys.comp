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
// FLOAT16 attention to few keys on matrix units: the scores of all keys are in registers at once. A subgroup
// of 32 computes 16 rows. Rows are the queries of all query heads that share the key head. Queries, keys and
// values take the same shared memory in turns, so that two workgroups fit in a multiprocessor. See
// attention_coopmat.comp for the places of elements, which are known.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint SUBGROUPS = 8u;
layout(constant_id = 2) const uint KEYS = 128u;
layout(constant_id = 3) const uint HEAD_SIZE = 64u;
layout(constant_id = 4) const uint VALUE_SIZE = 64u;
layout(constant_id = 5) const bool BY_KEY = false;  // masks or biases change scores, or there are fewer keys
layout(constant_id = 6) const bool RELATIVE = false;
layout(constant_id = 7) const uint MASK = 0u;
layout(constant_id = 8) const bool GROUPED = false;  // several query heads share the key head
const bool CAUSAL = false;
#include "include/attention_matrices.glsl"

const uint INVOCATIONS = 32u * SUBGROUPS;
const uint ROWS = SUBGROUPS * 16u;
const int KEY_TILES = int(KEYS / 16u);
const int HEAD_TILES = int(HEAD_SIZE / 16u);
const int VALUE_TILES = int(VALUE_SIZE / 16u);
// Rows of vectors of eight elements, with a vector of padding against bank conflicts.
const uint K_EACH = HEAD_SIZE / 8u, V_EACH = VALUE_SIZE / 8u;
const uint K_PITCH = K_EACH + 1u, V_PITCH = V_EACH + 1u;
const uint MOST_ROWS = KEYS > ROWS ? KEYS : ROWS;
const uint MOST_PITCH = K_PITCH > V_PITCH ? K_PITCH : V_PITCH;
shared uvec4 s_tile[MOST_ROWS * MOST_PITCH];
shared float s_by_key[KEYS];

const int Q_LOADS = int(K_EACH / 2u);
const int K_LOADS = int((KEYS * K_EACH + INVOCATIONS - 1u) / INVOCATIONS);
const int V_LOADS = int((KEYS * V_EACH + INVOCATIONS - 1u) / INVOCATIONS);

// A subgroup loads and stores rows of keys and of values that follow each other.
#define LOAD(side, SIDE, base, by) \
    [[unroll]] for (int i = 0; i < SIDE##_LOADS; ++i) { \
        uint n = (gl_SubgroupID * uint(SIDE##_LOADS) + uint(i)) * 32u + lane; \
        uint key = min(n / SIDE##_EACH, keys - 1u); \
        side##_next[i] = side##_vectors[((base) + key * by) / 8u + n % SIDE##_EACH]; \
    }
#define STORE(side, SIDE) \
    [[unroll]] for (int i = 0; i < SIDE##_LOADS; ++i) { \
        uint n = (gl_SubgroupID * uint(SIDE##_LOADS) + uint(i)) * 32u + lane; \
        if (KEYS * SIDE##_EACH % INVOCATIONS == 0u || n < KEYS * SIDE##_EACH) \
            s_tile[n / SIDE##_EACH * SIDE##_PITCH + n % SIDE##_EACH] = side##_next[i]; \
    }

void share() {
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}

// Where a row's elements begin.
uint begin_of(uint offset, uint by[3], uint batch, uint head, uint row) {
    uint query_head = GROUPED ? head * group + row / queries : head;
    uint position = GROUPED ? row % queries : row;
    return offset + batch * by[0] + query_head * by[1] + position * by[2];
}

// Of four neighbours, each has a word of each of four vectors. Each gets one vector.
uvec4 vector_of_words(uvec4 words, uint lane) {
    bool odd = lane % 2u != 0u, late = lane / 2u % 2u != 0u;
    uvec2 other = subgroupShuffleXor(odd ? words.xz : words.yw, 1u);
    uvec4 pairs = odd ? uvec4(other.x, words.y, other.y, words.w)
                      : uvec4(words.x, other.x, words.z, other.y);
    other = subgroupShuffleXor(late ? pairs.xy : pairs.zw, 2u);
    return late ? uvec4(other, pairs.zw) : uvec4(pairs.xy, other);
}

void main() {
    const uint lane = gl_SubgroupInvocationID, own_row = gl_SubgroupID * 16u;
    uint rows = group * queries, tiles = (rows + ROWS - 1u) / ROWS;
    uint rest = group_index(), tile = rest % tiles;
    rest /= tiles;
    uint head = rest % key_heads, batch = rest / key_heads;
    if (batch >= batches) return;
    const uint first_row = tile * ROWS + own_row;

    uvec4 q_next[Q_LOADS], k_next[K_LOADS], v_next[V_LOADS];
    [[unroll]] for (int i = 0; i < Q_LOADS; ++i) {
        uint n = lane + uint(i) * 32u, row = min(first_row + n / K_EACH, rows - 1u);
        q_next[i] = q_vectors[begin_of(q_offset, q_by, batch, head, row) / 8u + n % K_EACH];
    }
    LOAD(k, K, k_offset + batch * k_by[0] + head * k_by[1], k_by[2])

    if (BY_KEY) {
        uvec4 relative_by = RELATIVE_STRIDES, mask_by = MASK_STRIDES;
        Seen seen = seen_by(batch, mask_by);
        uvec2 from = added_from(batch, head * group, 0u, relative_by, mask_by);
        for (uint i = gl_LocalInvocationIndex; i < KEYS; i += INVOCATIONS) {
            uint key = min(i, keys - 1u);
            bool kept = key >= seen.low && key < seen.high;
            float sum = 0.0;
            if (RELATIVE) sum = relative_float(from.x + key * param(7u));
            if (MASK == 4u) kept = mask_words[from.y + key * param(11u)] != 0u;
            s_by_key[i] = i < keys ? bounded(kept ? sum : sum + filter_value) : ABSENT;
        }
    }

    RowFragment x[HEAD_TILES];
    [[unroll]] for (int i = 0; i < Q_LOADS; ++i) {
        uint n = lane + uint(i) * 32u;
        s_tile[(own_row + n / K_EACH) * K_PITCH + n % K_EACH] = q_next[i];
    }
    share();
    [[unroll]] for (int d = 0; d < HEAD_TILES; ++d)
        coopMatLoad(x[d], s_tile, own_row * K_PITCH + uint(d) * 2u, K_PITCH,
                    gl_CooperativeMatrixLayoutRowMajor);
    if (KEYS == ROWS) share();  // a subgroup replaces only its own rows
    else barrier();
    STORE(k, K)
    barrier();

    Sums s[KEY_TILES];
    [[unroll]] for (int j = 0; j < KEY_TILES; ++j) {
        s[j] = Sums(0.0);
        [[unroll]] for (int d = 0; d < HEAD_TILES; ++d) {
            ColumnFragment z;
            coopMatLoad(z, s_tile, uint(j) * 16u * K_PITCH + uint(d) * 2u, K_PITCH,
                        gl_CooperativeMatrixLayoutColumnMajor);
            s[j] = coopMatMulAdd(x[d], z, s[j]);
        }
    }
    // Values load while powers are computed.
    LOAD(v, V, v_offset + batch * v_by[0] + head * v_by[1], v_by[2])
    barrier();  // the keys have been read
    float factor = scale * LOG2_E;
    if (BY_KEY) {
        [[unroll]] for (int j = 0; j < KEY_TILES; ++j)
            [[unroll]] for (int i = 0; i < 8; ++i) {
                uint key = uint(j) * 16u + lane % 4u * 2u + uint(i) % 2u + uint(i) / 2u % 2u * 8u;
                s[j][i] = fma(s[j][i], factor, s_by_key[key]);
            }
        factor = 1.0;
    }
    float sum[2] = float[2](0.0, 0.0), most[2] = float[2](ABSENT, ABSENT);
    [[unroll]] for (int j = 0; j < KEY_TILES; ++j)
        [[unroll]] for (int i = 0; i < 8; ++i) most[i / 4] = max(most[i / 4], s[j][i]);
    [[unroll]] for (int l = 0; l < 2; ++l) most[l] = max(row_max(most[l]) * factor - LIFT, LOWEST);
    RowFragment p[KEY_TILES];
    [[unroll]] for (int j = 0; j < KEY_TILES; ++j)
        [[unroll]] for (int i = 0; i < 8; ++i) {
            float power = exp2(fma(s[j][i], factor, -most[i / 4]));
            sum[i / 4] += power;
            p[j][i] = float16_t(power);
        }
    STORE(v, V)
    barrier();

    Sums o[VALUE_TILES];
    [[unroll]] for (int n = 0; n < VALUE_TILES; ++n) {
        o[n] = Sums(0.0);
        [[unroll]] for (int j = 0; j < KEY_TILES; ++j) {
            ColumnFragment z;
            coopMatLoad(z, s_tile, uint(j) * 16u * V_PITCH + uint(n) * 2u, V_PITCH,
                        gl_CooperativeMatrixLayoutRowMajor);
            o[n] = coopMatMulAdd(p[j], z, o[n]);
        }
    }

    // Two fragments side by side have four vectors of a row.
    [[unroll]] for (int l = 0; l < 2; ++l) {
        float total = row_sum(sum[l]), share_of = total == 0.0 ? 0.0 : 1.0 / total;
        uint row = first_row + uint(l) * 8u + lane / 4u;
        uint to = begin_of(y_offset, y_by, batch, head, row) / 8u;
        [[unroll]] for (int n = 0; n < VALUE_TILES; n += 2) {
            vec4 a, b;
            [[unroll]] for (int i = 0; i < 4; ++i) {
                a[i] = o[n][l * 4 + i] * share_of;
                b[i] = o[n + 1][l * 4 + i] * share_of;
            }
            uvec4 words = vector_of_words(uvec4(floats_to_halves(a), floats_to_halves(b)), lane);
            if (row < rows) y_vectors[to + uint(n) * 2u + lane % 4u] = words;
        }
    }
}
