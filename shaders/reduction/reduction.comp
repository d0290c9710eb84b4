//@ op DML_OPERATOR_REDUCE DML_OPERATOR_ARGMIN DML_OPERATOR_ARGMAX DML_OPERATOR_AVERAGE_POOLING DML_OPERATOR_AVERAGE_POOLING1
//@ variants KIND: float exponential integer extreme argument search
//@ tail float exponential extreme
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// SHARE invocations reduce one row, or WIDE rows that are neighbours in memory. A workgroup has as many rows
// as fit. Long rows are split into parts, whose totals a second dispatch of the same shader reduces.
#define PARAMS_BINDING AFTER_TAIL(3)
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint RESULT_TYPE = 36u;
layout(constant_id = 3) const uint FUNCTION = 10u;  // a DML_REDUCE_FUNCTION
layout(constant_id = 4) const bool ROWS_FIRST = false;  // neighbouring invocations take different rows
layout(constant_id = 5) const bool CONTIGUOUS = false;  // rows are contiguous and read as vectors
layout(constant_id = 6) const bool ONE_STRIDE = true;  // columns have one stride
layout(constant_id = 7) const bool FROM_PARTS = false;
layout(constant_id = 8) const bool TO_PARTS = false;
layout(constant_id = 9) const bool LAST_WINS = false;  // among equal values, the last index
layout(constant_id = 10) const uint WIDE = 1u;  // rows of an invocation: 1, or as many as a vector has elements
layout(constant_id = 11) const uint MOST_SHARE = 0u;  // SHARE if rows are long, else 0
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint rows;  // counted in WIDE
    uint columns;
    uint parts;  // of a row
    uint part_columns;
    uint column_stride;
    uint parts_to_read;
    uint columns_at;  // where the second walk's words begin
    uint share_bits;  // of SHARE, a power of two
    uint x_offset;
    uint y_offset;
    uint totals_offset;
    uint activation_at;
    TAIL_FIELD
    uint params_offset;
};
#include "include/share.glsl"
const uint AVERAGE = 2u, L1 = 3u, L2 = 4u, LOG_SUM = 5u, MULTIPLY = 9u, SUM_SQUARE = 11u;
const bool OF_LEAST = FUNCTION == 1u || FUNCTION == 8u;  // ARGMIN, MIN
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/integers64.glsl"
#include "include/ordered.glsl"
#include "include/exponentials.glsl"
#if defined(TAIL)
#define TAIL_BINDING 3
#define TAIL_TYPE RESULT_TYPE
#include "include/tail.glsl"
#endif

INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, RESULT_TYPE)
layout(binding = 2) buffer Totals { uint totals[]; };
WALK(walk_rows, 2)
WALK(walk_columns, 1)

// A TOTAL accumulates any number of elements, a FEW only some. take() adds an element to a FEW, combine()
// adds two totals. store_total() and load_total() move WORDS words.
// "search" is "argument" in chunks. A slow compiler takes minutes for it.
#if defined(KIND_search)
#define CHUNKS
#endif
#if defined(KIND_extreme)
const bool MAY_REPEAT = true;  // an element that is taken twice changes nothing
#else
const bool MAY_REPEAT = false;
#endif
#if defined(KIND_float)
// Sums are pairs of float32. Their error hardly grows with the number of terms.
#define TOTAL PAIR
#define FEW float
const uint WORDS = 2u;
const bool PRODUCT = FUNCTION == MULTIPLY;
#define NO_TOTAL PAIR(PRODUCT ? 1.0 : 0.0, 0.0)
#define NOTHING (PRODUCT ? 1.0 : 0.0)

void take(inout float few, uvec2 bits, uint index) {
    float x = number_of(bits, TYPE);
    if (FUNCTION == L1) x = magnitude(x);
    if (FUNCTION == L2 || FUNCTION == SUM_SQUARE) x *= x;
    few = PRODUCT ? few * x : few + x;
}

TOTAL combine(TOTAL a, TOTAL b) {
    if (PRODUCT) return PAIR(a.x * b.x, 0.0);
    PAIR sum = pair_of_sum(a.x, b.x);
    return PAIR(sum.x, sum.y + (a.y + b.y));
}

TOTAL total_of(float few) { return PAIR(few, 0.0); }
uvec3 words_of(TOTAL t) { return uvec3(floatBitsToUint(t), 0u); }
TOTAL total_from(uvec3 words) { return uintBitsToFloat(words.xy); }

uvec2 result(TOTAL total) {
    // Beside an infinity, the lower part is NaN and is left out.
    float sum = magnitude_bits(total.x) < 0x7F800000u ? sum_of(total) : total.x;
    if (FUNCTION == AVERAGE) sum = sum / to_float(int(columns), false);
    if (FUNCTION == L2) sum = sqrt_of(sum);
    if (FUNCTION == LOG_SUM) sum = is_zero(sum) ? infinity(0x80000000u) : log_of(sum);
    return uvec2(bits_of(sum, RESULT_TYPE), 0u);
}
#elif defined(KIND_exponential)
// The maximum m, and the sum of exp(x - m).
#define TOTAL vec2
#define FEW vec2
const uint WORDS = 2u;
#define NO_TOTAL vec2(infinity(0x80000000u), 0.0)
#define NOTHING NO_TOTAL

TOTAL combine(TOTAL a, TOTAL b) {
    if (is_nan(a.x)) return a;
    if (is_nan(b.x)) return b;
    bool b_leads = b.x > a.x;
    float most = b_leads ? b.x : a.x, other = b_leads ? a.x : b.x;
    float factor = most == other ? 1.0 : exp_of(other - most);
    return vec2(most, b_leads ? b.y + a.y * factor : a.y + b.y * factor);
}

void take(inout FEW few, uvec2 bits, uint index) {
    few = combine(few, vec2(number_of(bits, TYPE), 1.0));
}

TOTAL total_of(FEW few) { return few; }
uvec3 words_of(TOTAL t) { return uvec3(floatBitsToUint(t), 0u); }
TOTAL total_from(uvec3 words) { return uintBitsToFloat(words.xy); }

uvec2 result(TOTAL total) {
    bool finite = magnitude_bits(total.x) < 0x7F800000u;
    return uvec2(bits_of(finite ? total.x + log_of(total.y) : total.x, RESULT_TYPE), 0u);
}
#elif defined(KIND_integer)
#define TOTAL uvec2
#define FEW uvec2
const uint WORDS = 2u;
#define NO_TOTAL uvec2(FUNCTION == MULTIPLY ? 1u : 0u, 0u)
#define NOTHING NO_TOTAL

// Selections, as in include/ordered.glsl.
TOTAL combine(TOTAL a, TOTAL b) {
    uvec2 narrow = uvec2(mix(a.x + b.x, a.x * b.x, FUNCTION == MULTIPLY), 0u);
    uvec2 wide = mix(add64(a, b), multiply64(a, b), bvec2(FUNCTION == MULTIPLY));
    return mix(narrow, wide, bvec2(BYTES_OF(TYPE) == 8u));
}

void take(inout FEW few, uvec2 x, uint index) {
    bool negative = mix(false, int(mix(x.x, x.y, BYTES_OF(TYPE) == 8u)) < 0, IS_SIGNED(TYPE));
    x = mix(x, negate64(x), bvec2(mix(false, negative, FUNCTION == L1)));
    uvec2 square = mix(uvec2(x.x * x.x, 0u), multiply64(x, x), bvec2(BYTES_OF(TYPE) == 8u));
    x = mix(x, square, bvec2(FUNCTION == SUM_SQUARE));
    few = combine(few, x);
}

TOTAL total_of(FEW few) { return few; }
uvec3 words_of(TOTAL t) { return uvec3(t, 0u); }
TOTAL total_from(uvec3 words) { return words.xy; }
uvec2 result(TOTAL total) { return total; }
#elif defined(KIND_extreme)
#define TOTAL uvec2
#define FEW uvec2
const uint WORDS = 2u;
#define NO_TOTAL uvec2(0u)
#define NOTHING NO_TOTAL

TOTAL combine(TOTAL a, TOTAL b) {
    if (BYTES_OF(TYPE) < 8u) return uvec2(max(a.x, b.x), 0u);
    return less64(a, b, false) ? b : a;
}

void take(inout FEW few, uvec2 x, uint index) {
    few = combine(few, precedence(x, TYPE, OF_LEAST));
}

TOTAL total_of(FEW few) { return few; }
uvec3 words_of(TOTAL t) { return uvec3(t, 0u); }
TOTAL total_from(uvec3 words) { return words.xy; }
uvec2 result(TOTAL total) { return with_precedence(total, TYPE, OF_LEAST); }
#else
// The rank, in two words, and the index: of an element, or of the first element of a chunk.
#define TOTAL uvec3
#define FEW uvec3
const uint WORDS = 3u;
#define NO_TOTAL uvec3(0u, 0u, LAST_WINS ? 0u : 0xFFFFFFFFu)
#define NOTHING NO_TOTAL

bool is_before(uvec3 a, uvec3 b) {
    if (a.xy != b.xy) return BYTES_OF(TYPE) < 8u ? a.x > b.x : less64(b.xy, a.xy, false);
    return LAST_WINS ? a.z > b.z : a.z < b.z;
}

TOTAL combine(TOTAL a, TOTAL b) { return is_before(b, a) ? b : a; }

// A chunk is CHUNK neighbouring columns, if not 1, that an invocation reads at once. Its largest element is found
// as MAX finds it, and kept with the index of the chunk's first column. At the end the element's own index is
// looked for in the chunk that won.
#if defined(CHUNKS)
layout(constant_id = 12) const uint CHUNK = 8u;
#else
const uint CHUNK = 1u;
#endif
#define HALVES (TYPE == 34u)  // FLOAT16

// The precedence of an element. With HALVES it is the upper half of a word, and also of the result: what lies
// below it decides nothing.
uint precedence_in(uint word) {
    if (!HALVES) return precedence(uvec2(word, 0u), TYPE, OF_LEAST).x;
    uint key = key_of(word);
    return (OF_LEAST ? ~key : key) + (infinity_of(TYPE) | 0x10000u);
}

// The rank for which -0 is 0 and all NaN are equal, from what precedence_in() gave.
uint equal_of(uint most) {
    if (!IS_FLOAT(TYPE)) return most;
    if (HALVES) most >>= 16;
    uint infinite = HALVES ? infinity_of(TYPE) >> 16 : infinity_of(TYPE);
    most -= uint(most > infinite);
    return min(most, 2u * infinite + 1u);
}

uint equal_of_element(uvec2 x) {
    return equal_of(precedence_in(HALVES ? x.x << 16 : x.x));
}

// Indices come in ascending order. Selections instead of branches make unrolled loops fast to compile.
void take(inout FEW few, uvec2 x, uint index) {
    uvec2 rank = CHUNK > 1u ? uvec2(equal_of_element(x), 0u) : equal_precedence(x, TYPE, OF_LEAST);
    bool before;
    if (BYTES_OF(TYPE) < 8u) {
        bool more = rank.x > few.x, equal = rank.x == few.x, first = few.z == 0xFFFFFFFFu;
        bool replaces = LAST_WINS || first;
        before = more || equal && replaces;
    } else {
        before = is_before(uvec3(rank, index), few);
    }
    few = mix(few, uvec3(rank, index), bvec3(before));
}

TOTAL total_of(FEW few) { return few; }
uvec3 words_of(TOTAL t) { return t; }
TOTAL total_from(uvec3 words) { return words; }
uvec2 result(TOTAL total) { return uvec2(total.z, 0u); }

// Takes the chunk that begins at ``index``, after all before it.
void take_chunk(inout TOTAL total, uint most, uint index) {
    uint rank = equal_of(most);
    bool before = LAST_WINS ? rank >= total.x : rank > total.x || total.z == 0xFFFFFFFFu;
    total = before ? uvec3(rank, 0u, index) : total;
}
#endif

shared TOTAL s_totals[gl_WorkGroupSize.x];

TOTAL load_total(uint i) {
    uint at = totals_offset + i * WORDS;
    return total_from(uvec3(totals[at], totals[at + 1u], WORDS == 3u ? totals[at + 2u] : 0u));
}

void store_total(uint i, TOTAL total) {
    uvec3 words = words_of(total);
    for (uint w = 0u; w < WORDS; ++w) totals[totals_offset + i * WORDS + w] = words[w];
}

const uint PER_VECTOR = 16u / BYTES_OF(TYPE);
// Columns that an invocation with WIDE rows reads at once are neighbours, where chunks are.
#if defined(CHUNKS)
#define COLUMN_STEP (CHUNK > 1u ? 1u : SHARE)
#define NEXT_LANE (CHUNK > 1u ? CHUNK : 1u)
#else
#define COLUMN_STEP SHARE
#define NEXT_LANE 1u
#endif

void take_vector(inout TOTAL total, uvec4 vector, uint index) {
#if defined(CHUNKS)
    if (CHUNK > 1u) {
        uint most = 0u;
        if (HALVES) {
            [[unroll]] for (uint w = 0u; w < 4u; ++w)
                most = max(max(most, precedence_in(vector[w])), precedence_in(vector[w] << 16));
        } else {
            [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e)
                most = max(most, precedence_in(element_of(vector, e, TYPE).x));
        }
        take_chunk(total, most, index);
        return;
    }
#endif
    FEW few = NOTHING;
    [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e)
        take(few, element_of(vector, e, TYPE), index + e);
    total = combine(total, total_of(few));
}

// The total of elements ``from`` to ``to`` of the buffer, which are contiguous and belong to the row that
// begins at ``row``. Elements outside whole vectors are read one by one.
TOTAL of_vectors(uint row, uint share, uint from, uint to) {
    TOTAL total = NO_TOTAL;
    uint first = (from + PER_VECTOR - 1u) / PER_VECTOR, last = to / PER_VECTOR;
    uint begin = min(to, first * PER_VECTOR), end = max(begin, last * PER_VECTOR);
    FEW few = NOTHING;
    for (uint at = from + share; at < begin; at += SHARE) take(few, x_bits(at), at - row);
    total = combine(total, total_of(few));
    uint v = first + share;
    for (; v + 3u * SHARE < last; v += 4u * SHARE) {
        uvec4 vectors[4];
        [[unroll]] for (uint i = 0u; i < 4u; ++i) vectors[i] = x_vectors[v + i * SHARE];
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            take_vector(total, vectors[i], (v + i * SHARE) * PER_VECTOR - row);
    }
    for (; v < last; v += SHARE) take_vector(total, x_vectors[v], v * PER_VECTOR - row);
    few = NOTHING;
    for (uint at = end + share; at < to; at += SHARE) take(few, x_bits(at), at - row);
    return combine(total, total_of(few));
}

uint column_at(uint column) {
    return ONE_STRIDE ? column * column_stride : walk_columns(columns_at, column)[0];
}

TOTAL of_elements(uint row, uint share, uint from, uint to) {
    TOTAL total = NO_TOTAL;
    uint c = from + share;
    for (; c + 7u * SHARE < to; c += 8u * SHARE) {
        uvec2 x[8];
        [[unroll]] for (uint i = 0u; i < 8u; ++i) {
            uint at = c + i * SHARE;
            x[i] = x_bits(row + column_at(at));
        }
        FEW few = NOTHING;
        [[unroll]] for (uint i = 0u; i < 8u; ++i) take(few, x[i], c + i * SHARE);
        total = combine(total, total_of(few));
    }
    FEW few = NOTHING;
    for (; c < to; c += SHARE)
        take(few, x_bits(row + column_at(c)), c);
    return combine(total, total_of(few));
}

#if defined(CHUNKS)
void take_columns(inout TOTAL total[WIDE], uvec4 vectors[8], uint column) {
    [[unroll]] for (uint u = 0u; u < WIDE; ++u) {
        uint most = 0u;
        [[unroll]] for (uint v = 0u; v < 8u; ++v) {
            uint word = vectors[v][u / 2u & 3u];
            if (HALVES) word = u % 2u == 0u ? word << 16 : word;
            else word = element_of(vectors[v], u, TYPE).x;
            most = max(most, precedence_in(word));
        }
        take_chunk(total[u], most, column);
    }
}

// The element of a chunk that has its rank.
TOTAL element_in(TOTAL chunk, uint row) {
    if (chunk.z >= columns) return chunk;
    uint ranks[CHUNK], found = LAST_WINS ? 0u : 0xFFFFFFFFu;
    [[unroll]] for (uint i = 0u; i < CHUNK; ++i) {
        uint column = min(chunk.z + i, columns - 1u);
        ranks[i] = equal_of_element(x_bits(row + (CONTIGUOUS ? column : column_at(column))));
    }
    [[unroll]] for (uint i = 0u; i < CHUNK; ++i) {
        uint column = min(chunk.z + i, columns - 1u);
        if (ranks[i] == chunk.x) found = LAST_WINS ? max(found, column) : min(found, column);
    }
    return uvec3(chunk.xy, found);
}
#endif

uvec2 finished(uvec2 bits, uint at) {
#if defined(TAIL)
    bits.x = bits_of(finish(number_of(bits, RESULT_TYPE), at), RESULT_TYPE);
#endif
    return bits;
}

// Stores the total of row ``u`` of the WIDE.
void give(uint row, uint u, uint part, uint at[2], TOTAL total) {
    uint own = row * WIDE + u;
    uint to = (u == 0u ? at : walk_rows(0u, own))[1];
    if (TO_PARTS) store_total(own * parts + part, total);
    else y_store_bits(y_offset + to, finished(result(total), to));
}

void main() {
    uint i = gl_LocalInvocationIndex, height = gl_WorkGroupSize.x >> SHARE_BITS;
    uint part = group_index() % parts, height_bits = findLSB(gl_WorkGroupSize.x) - SHARE_BITS;
    uint row = group_index() / parts * height + (ROWS_FIRST ? i & height - 1u : i >> SHARE_BITS);
    uint share = ROWS_FIRST ? i >> height_bits : i & SHARE - 1u;
    uint[2] at = walk_rows(0u, min(row, rows - 1u) * WIDE);
    uint x_row = x_offset + at[0];
    TOTAL total[WIDE];
    [[unroll]] for (uint u = 0u; u < WIDE; ++u) total[u] = NO_TOTAL;
    if (row < rows) {
        uint from = part * part_columns, to = min(columns, from + part_columns);
        if (FROM_PARTS)
            for (uint p = share; p < parts_to_read; p += SHARE)
                total[0] = combine(total[0], load_total(row * parts_to_read + p));
        else if (WIDE > 1u)
            for (uint c = from + share * NEXT_LANE; c < to; c += 8u * SHARE) {
                uvec4 vectors[8];  // each has a column of WIDE rows
                [[unroll]] for (uint v = 0u; v < 8u; ++v)
                    vectors[v] = x_vectors[(x_row + column_at(min(c + v * COLUMN_STEP, to - 1u))) / PER_VECTOR];
#if defined(CHUNKS)
                if (CHUNK > 1u) {
                    take_columns(total, vectors, c);
                    continue;
                }
#endif
                [[unroll]] for (uint u = 0u; u < WIDE; ++u) {
                    FEW few = NOTHING;
                    [[unroll]] for (uint v = 0u; v < 8u; ++v)
                        if (MAY_REPEAT || c + v * COLUMN_STEP < to)
                            take(few, element_of(vectors[v], u, TYPE), c + v * COLUMN_STEP);
                    total[u] = combine(total[u], total_of(few));
                }
            }
        else if (CONTIGUOUS)
            total[0] = of_vectors(x_row, share, x_row + from, x_row + to);
        else
            total[0] = of_elements(x_row, share, from, to);
    }
    [[unroll]] for (uint u = 0u; u < WIDE; ++u) {
        if (u > 0u) barrier();
        s_totals[i] = total[u];
        for (uint half_share = SHARE / 2u; half_share > 0u; half_share /= 2u) {
            barrier();
            if (share < half_share)
                s_totals[i] = combine(s_totals[i], s_totals[i + half_share * (ROWS_FIRST ? height : 1u)]);
        }
#if defined(CHUNKS)
        if (CHUNK > 1u) {
            if (SHARE > 1u) barrier();
            total[u] = s_totals[ROWS_FIRST ? i & height - 1u : i - share];
            continue;
        }
#endif
        if (share == 0u && row < rows) give(row, u, part, at, s_totals[i]);
    }
#if defined(CHUNKS)
    if (CHUNK == 1u || row >= rows) return;
    // Which element it was is looked up for several rows at once, each by another invocation.
    for (uint u = share; u < WIDE; u += SHARE) {
        TOTAL own = total[0];
        [[unroll]] for (uint other = 1u; other < WIDE; ++other)
            if (other == u) own = total[other];
        give(row, u, part, at, element_in(own, x_row + u));
    }
#endif
}
