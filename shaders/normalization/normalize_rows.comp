//@ op DML_OPERATOR_ACTIVATION_SOFTMAX DML_OPERATOR_ACTIVATION_SOFTMAX1 DML_OPERATOR_ACTIVATION_LOG_SOFTMAX DML_OPERATOR_ACTIVATION_LOG_SOFTMAX1 DML_OPERATOR_ACTIVATION_HARDMAX DML_OPERATOR_ACTIVATION_HARDMAX1 DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1 DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION2 DML_OPERATOR_LP_NORMALIZATION
//@ variants SUB: tree subgroups
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#if defined(SUB_subgroups)
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define SUBGROUPS
#endif
// A team of invocations computes one row, or one part of it. The row is read in pieces: elements, or
// vectors of 4, 8 or 16 bytes. Each invocation reduces KEPT of its pieces at a time, in float32. Then the team
// combines these results. A row that FITS is written from registers. Others are read again.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint KIND = 0u;
layout(constant_id = 3) const uint TEAM = 1u;    // 1, a part of a subgroup, or the workgroup
layout(constant_id = 4) const uint EACH = 1u;    // elements of a piece
layout(constant_id = 5) const uint KEPT = 1u;    // pieces
layout(constant_id = 6) const bool FITS = false; // into the registers of a team
layout(constant_id = 7) const uint STAGE = 0u;
layout(constant_id = 8) const bool ONE_DIMENSION = true;  // columns are one dimension
layout(constant_id = 9) const uint SCALE = 0u;
layout(constant_id = 10) const uint BIAS = 0u;
layout(constant_id = 11) const bool ADDEND = false;  // a tensor is added to x and has its layout
layout(constant_id = 12) const bool TOTAL = false;   // their sum is an output, too
layout(constant_id = 13) const bool RUNS = false;    // vectors lie in the last dimension of columns, among several
layout(push_constant) uniform Push {
    uint rows;
    uint pieces;      // of a row
    uint parts;       // of a row, one for each workgroup
    uint span;        // pieces of a part
    uint columns_at;  // where the second walk's words begin
    uint activation_at;
    uint epsilon;
    uint x_offset;
    uint scale_offset;
    uint bias_offset;
    uint y_offset;
    uint known_offset;
    uint addend_offset;
    uint total_offset;
    uint params_offset;
    uint steps[4];  // strides of columns, with ONE_DIMENSION
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/reduce.glsl"
// The tensor of a tail has the binding of the addend. There may be only one of both.
#define tail_offset addend_offset
#define TAIL_BINDING 5
#define TAIL_TYPE TYPE
#include "include/tail.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(scale, 1, TYPE)
INPUT_TENSOR(bias, 2, TYPE)
OUTPUT_TENSOR(y, 3, TYPE)
layout(binding = 4) buffer Known { uint known[]; };
INPUT_TENSOR(addend, 5, TYPE)
OUTPUT_TENSOR(total, 6, TYPE)
WALK(walk, 4)

const uint SOFTMAX = 0u, LOG_SOFTMAX = 1u, HARDMAX = 2u, CENTRED = 3u, SHIFTED = 4u, SQUARES = 5u,
           L1 = 6u, L2 = 7u, AS_IT_IS = 8u;  // KIND
const uint WHOLE = 0u, PARTIAL = 1u, FINAL = 2u;  // STAGE
const uint ABSENT = 0u, WALKED = 1u, VECTORS = 2u;  // SCALE and BIAS
const bool IS_SOFTMAX = KIND < 2u;
// A word of a vector has two elements. No constant, of which glslang defines the parts where it is first used.
#define HALVES (EACH > 1u && BYTES_OF(TYPE) == 2u)
const uint WORDS = EACH * BYTES_OF(TYPE) / 4u;  // of a vector
const float LOWEST = -3.40282347e38;

bool has_mean() { return KIND == CENTRED || KIND == SHIFTED; }

// A partial reduction of ``count`` elements. By KIND, ``first`` and ``second`` are the largest element
// and the sum of exp(x - first); the code of the largest element and its place; or the mean and the sum
// of squares about it. Without a mean, ``second`` is the sum of magnitudes or squares. Both are the
// bits of integers or floats.
struct Knowledge {
    uint count;
    uint first;
    uint second;
};

float plus(float a, float b) { return a + b; }
uint larger(uint a, uint b) { return max(a, b); }
WORKGROUP_REDUCE(workgroup_sum, float, plus, subgroupAdd)
WORKGROUP_REDUCE(workgroup_largest, uint, larger, subgroupMax)

#if defined(SUBGROUPS)
#define TEAM_REDUCE(name, T, combine, subgroup, of_workgroup) \
    T name(T x) { \
        if (TEAM == 1u) return x; \
        if (TEAM == gl_WorkGroupSize.x) return of_workgroup(x); \
        if (TEAM == gl_SubgroupSize) return subgroup(x); \
        [[unroll]] for (uint step = 1u; step < TEAM; step *= 2u) x = combine(x, subgroupShuffleXor(x, step)); \
        return x; \
    }
#else
#define TEAM_REDUCE(name, T, combine, subgroup, of_workgroup) \
    T name(T x) { \
        if (TEAM == 1u) return x; \
        return of_workgroup(x); \
    }
#endif
TEAM_REDUCE(team_sum, float, plus, subgroupAdd, workgroup_sum)
TEAM_REDUCE(team_largest, uint, larger, subgroupMax, workgroup_largest)

// Codes have the order of numbers, with NaN above all. No number has code 0.
uint code_of(float x) {
    return is_nan(x) ? 0xFFFFFFFFu : uint(rank_of(floatBitsToUint(x))) ^ 0x80000000u;
}

float number_with(uint code) {
    uint rank = code ^ 0x80000000u;
    if (code == 0xFFFFFFFFu) return NOT_A_NUMBER;
    return uintBitsToFloat(int(rank) < 0 ? 0x80000000u | (0u - rank) : rank);
}

// exp(x) for x <= 0
float power_of(float x) {
    if (!EXACT_UNITS) return exp_of(x);
    if (BYTES_OF(TYPE) == 2u) return short_exp(x);
    // A compiler may make a maximum of the choice, which loses NaN.
    return exp_below_one(is_nan(x) ? x : x < -104.0 ? -104.0 : x, 0.0);
}

uint[4] column(uint index) {
    if (!ONE_DIMENSION) return walk(columns_at, index);
    return uint[4](index * steps[0], index * steps[1], index * steps[2], index * steps[3]);
}

float element(uvec4 vector, uint e) {
    if (HALVES) return halves_to_floats(vector[e / 2u])[e % 2u];
    return uintBitsToFloat(vector[e]);
}

uvec4 sum_of(uvec4 a, uvec4 b) {
    uvec4 made = uvec4(0u);
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        float sum = element(a, e) + element(b, e);
        if (HALVES) sum = rounded_to_half(sum);
        if (HALVES) made[e / 2u] |= float_to_half(sum) << (e % 2u * 16u);
        else made[e] = floatBitsToUint(sum);
    }
    return made;
}

// The vector from element ``at`` on.
#define VECTOR_OF(name) \
    uvec4 name##_vector(uint at) { \
        if (WORDS == 4u) return name##_vectors[at / EACH]; \
        uvec4 words = uvec4(0u); \
        [[unroll]] for (uint w = 0u; w < WORDS; ++w) words[w] = name##_words[at * BYTES_OF(TYPE) / 4u + w]; \
        return words; \
    }
VECTOR_OF(x)
VECTOR_OF(scale)
VECTOR_OF(bias)
VECTOR_OF(addend)

#define STORE_VECTOR(name, at, vector) \
    if (WORDS == 4u) name##_vectors[(at) / EACH] = vector; \
    else [[unroll]] for (uint w = 0u; w < WORDS; ++w) name##_words[(at) * BYTES_OF(TYPE) / 4u + w] = vector[w];

uvec4 load(uint at, uint piece) {
    if (EACH == 1u) {
        uint from = at + column(piece)[0];
        float value = x_float(x_offset + from);
        if (ADDEND)
            value += addend_float(addend_offset + from);
        if (ADDEND && BYTES_OF(TYPE) == 2u) value = rounded_to_half(value);
        return uvec4(floatBitsToUint(value));
    }
    at += RUNS ? column(piece * EACH)[0] : piece * EACH;
    uvec4 vector = x_vector(x_offset + at);
    if (ADDEND) vector = sum_of(vector, addend_vector(addend_offset + at));
    return vector;
}

Knowledge nothing() {
    return Knowledge(0u, IS_SOFTMAX ? floatBitsToUint(LOWEST) : 0u, 0u);
}

Knowledge joined(Knowledge a, Knowledge b) {
    float a1 = uintBitsToFloat(a.first), b1 = uintBitsToFloat(b.first);
    float a2 = uintBitsToFloat(a.second), b2 = uintBitsToFloat(b.second);
    uint count = a.count + b.count;
    if (KIND == HARDMAX) {
        if (b.first > a.first) return Knowledge(count, b.first, b.second);
        return Knowledge(count, a.first, a.second);
    }
    if (IS_SOFTMAX) {
        float most = b1 > a1 ? b1 : a1;
        float sum = a2 * power_of(a1 - most) + b2 * power_of(b1 - most);
        return Knowledge(count, floatBitsToUint(most), floatBitsToUint(sum));
    }
    if (!has_mean() || b.count == 0u)
        return Knowledge(count, a.first, floatBitsToUint(a2 + b2));
    float difference = b1 - a1, share = float(b.count) / float(count);
    float squares = a2 + b2 + difference * difference * share * float(a.count);
    return Knowledge(count, floatBitsToUint(a1 + difference * share), floatBitsToUint(squares));
}

// Reduces KEPT pieces: every TEAM-th one from ``begin`` to before ``end``.
Knowledge knowledge_of(uvec4 kept[KEPT], uint begin, uint end) {
    Knowledge result = nothing();
    float most = LOWEST, sum = 0.0;
    [[unroll]] for (uint k = 0u; k < KEPT; ++k) {
        uint piece = begin + k * TEAM;
        if (piece >= end) continue;
        result.count += EACH;
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            float value = element(kept[k], e);
            if (IS_SOFTMAX) most = value > most ? value : most;
            else if (KIND == HARDMAX) {
                uint code = code_of(value);
                if (code > result.first) {
                    result.first = code;
                    result.second = piece * EACH + e;
                }
            } else if (has_mean()) sum += value;
            else if (KIND == L1) sum += magnitude(value);
            else if (KIND != AS_IT_IS) sum += value * value;
        }
    }
    if (KIND == HARDMAX) return result;
    float about = IS_SOFTMAX ? most : 0.0;
    if (has_mean() && result.count != 0u) about = sum / float(result.count);
    if (IS_SOFTMAX || KIND == CENTRED) {
        sum = 0.0;
        [[unroll]] for (uint k = 0u; k < KEPT; ++k) {
            if (begin + k * TEAM >= end) continue;
            [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                float centred = element(kept[k], e) - about;
                sum += IS_SOFTMAX ? power_of(centred) : centred * centred;
            }
        }
    }
    result.first = floatBitsToUint(about);
    result.second = floatBitsToUint(sum);
    return result;
}

// Combines the reductions of all invocations of a team, of ``count`` elements.
Knowledge of_team(Knowledge own, uint count) {
    float first = uintBitsToFloat(own.first), second = uintBitsToFloat(own.second);
    if (TEAM == 1u) return own;
    if (KIND == HARDMAX) {
        uint code = team_largest(own.first);
        uint place = ~team_largest(own.first == code && own.count != 0u ? ~own.second : 0u);
        return Knowledge(count, code, place);
    }
    if (IS_SOFTMAX) {
        float most = number_with(team_largest(code_of(first)));
        float sum = team_sum(second * power_of(first - most));
        return Knowledge(count, floatBitsToUint(most), floatBitsToUint(sum));
    }
    if (!has_mean()) return Knowledge(count, 0u, floatBitsToUint(team_sum(second)));
    float mean = team_sum(first * float(own.count)) / float(count);
    float difference = first - mean, squares = 0.0;
    if (KIND == CENTRED)
        squares = team_sum(own.count == 0u ? 0.0 : second + difference * difference * float(own.count));
    return Knowledge(count, floatBitsToUint(mean), floatBitsToUint(squares));
}

// Each element becomes (element - x) * y. LOG_SOFTMAX subtracts y instead.
vec2 mapping_of(Knowledge row) {
    float first = uintBitsToFloat(row.first), second = uintBitsToFloat(row.second);
    float bound = uintBitsToFloat(epsilon);
    if (KIND == SOFTMAX) return vec2(first, 1.0 / second);
    if (KIND == LOG_SOFTMAX) return vec2(first, log_of(second));
    if (KIND == CENTRED || KIND == SQUARES)
        return vec2(KIND == CENTRED ? first : 0.0,
                    1.0 / sqrt_of(second / float(row.count) + bound));
    if (KIND == L1 || KIND == L2) {
        float norm = KIND == L2 ? sqrt_of(second) : second;
        return vec2(0.0, 1.0 / (norm < bound ? bound : norm));
    }
    return vec2(KIND == SHIFTED ? first : 0.0, 1.0);
}

float result_of(float value, uint place, Knowledge row, vec2 mapping, float factor, float added) {
    if (KIND == HARDMAX) return place == row.second ? 1.0 : 0.0;
    value -= mapping.x;
    if (KIND == SOFTMAX) return power_of(value) * mapping.y;
    if (KIND == LOG_SOFTMAX) return value - mapping.y;
    value *= mapping.y;
    if (SCALE != ABSENT) value *= factor;
    if (BIAS != ABSENT) value += added;
    return value;
}

void store(uint[4] at, uint piece, uvec4 vector, Knowledge row, vec2 mapping) {
    uint[4] to = column(piece * EACH);
    uint[4] from = to;
    if (!RUNS) from = uint[4](piece * EACH, piece * EACH, piece * EACH, piece * EACH);
    float factor = 1.0, added = 0.0;
    uvec4 factors = uvec4(0u), sums = uvec4(0u), made = uvec4(0u);
    if (SCALE == WALKED) factor = scale_float(scale_offset + at[2] + to[2]);
    if (SCALE == VECTORS) factors = scale_vector(scale_offset + at[2] + from[2]);
    if (BIAS == WALKED) added = bias_float(bias_offset + at[3] + to[3]);
    if (BIAS == VECTORS) sums = bias_vector(bias_offset + at[3] + from[3]);
    float before = 0.0;
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        if (SCALE == VECTORS) factor = element(factors, e);
        if (BIAS == VECTORS) added = element(sums, e);
        float value = result_of(element(vector, e), piece * EACH + e, row, mapping, factor, added);
        value = finish(value, at[1] + to[1] + e);
        if (EACH == 1u) y_store_float(y_offset + at[1] + to[1], value);
        else if (HALVES) made[e / 2u] = floats_to_halves(before, value);  // the second time, of both
        else made[e] = floatBitsToUint(value);
        before = value;
    }
    if (EACH != 1u) {
        STORE_VECTOR(y, y_offset + at[1] + from[1], made)
    }
    if (TOTAL && EACH == 1u) total_store_float(total_offset + at[0] + to[0], element(vector, 0u));
    if (TOTAL && EACH != 1u) {
        STORE_VECTOR(total, total_offset + at[0] + from[0], vector)
    }
}

void main() {
    uint lane = 0u, team = invocation_index(), part = 0u;
    if (TEAM != 1u && TEAM == gl_WorkGroupSize.x) {
        team = group_index() / parts;
        part = group_index() % parts;
        if (STAGE == FINAL) part = parts - 1u - part;  // a cache may still hold the last parts
        lane = gl_LocalInvocationIndex;
    }
#if defined(SUBGROUPS)
    else if (TEAM != 1u) {
        uint own = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
        team = group_index() * (gl_WorkGroupSize.x / TEAM) + own / TEAM;
        lane = own % TEAM;
    }
#endif
    // All invocations take part in reductions.
    bool there = team < rows;
    uint row = there ? team : rows - 1u;
    uint[4] at = walk(0u, row);
    uint begin = part * span, end = min(begin + span, pieces);
    uvec4 kept[KEPT];
    Knowledge own = nothing();
    if (STAGE == FINAL) {
        for (uint i = lane; i < parts; i += TEAM) {
            uint from = known_offset + 3u * (row * parts + i);
            own = joined(own, Knowledge(known[from], known[from + 1u], known[from + 2u]));
        }
        own = of_team(own, pieces * EACH);
    } else if (KIND != AS_IT_IS || FITS) {
        for (uint i = begin + lane; i < end; i += TEAM * KEPT) {
            [[unroll]] for (uint k = 0u; k < KEPT; ++k)
                if (i + k * TEAM < end) kept[k] = load(at[0], i + k * TEAM);
            Knowledge some = knowledge_of(kept, i, end);
            if (FITS) {
                own = some;
                break;
            }
            own = joined(own, some);
        }
        own = of_team(own, (end - begin) * EACH);
    }
    if (STAGE == PARTIAL) {
        if (lane == 0u && there) {
            uint to = known_offset + 3u * (row * parts + part);
            known[to] = own.count;
            known[to + 1u] = own.first;
            known[to + 2u] = own.second;
        }
        return;
    }
    vec2 mapping = mapping_of(own);
    if (!there || begin + lane >= end) return;
    if (FITS) {
        [[unroll]] for (uint k = 0u; k < KEPT; ++k) {
            uint piece = begin + lane + k * TEAM;
            if (piece < end) store(at, piece, kept[k], own, mapping);
        }
        return;
    }
    // The last pieces come first, because a cache may still hold them.
    for (uint i = (end - begin - lane - 1u) / TEAM + 1u; STAGE == WHOLE && i > 0u; --i) {
        uint piece = begin + lane + (i - 1u) * TEAM;
        store(at, piece, load(at[0], piece), own, mapping);
    }
    // Parts are few for each invocation, which reads KEPT at a time.
    uint turns = STAGE == WHOLE ? 0u : (end - begin - 1u) / (TEAM * KEPT) + 1u;
    for (uint i = begin + lane + (turns - 1u) * TEAM * KEPT; turns > 0u; --turns, i -= TEAM * KEPT) {
        [[unroll]] for (uint k = 0u; k < KEPT; ++k)
            if (i + k * TEAM < end) kept[k] = load(at[0], i + k * TEAM);
        [[unroll]] for (uint k = 0u; k < KEPT; ++k)
            if (i + k * TEAM < end) store(at, i + k * TEAM, kept[k], own, mapping);
    }
}
