//@ op DML_OPERATOR_QUANTIZE DML_OPERATOR_DEQUANTIZE
//@ variants WAY: quantize dequantize
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// VECTORS: an invocation converts PARTS times EACH neighbours, which are whole vectors or words. All parts are
// read before one is converted, so that many reads are under way. SHARED: the neighbours have one scale and one
// zero point, and parts lie a workgroup's size apart. Else parts lie a step apart and have the same scales
// and zero points. WORDS: an invocation converts the elements of a word of a packed output, each of which
// is walked to. Else one element. The walk splits dimensions into blocks, inside which the strides of scale
// and zero point are 0.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;  // of the floating-point side
layout(constant_id = 2) const uint BITS = 8u;  // of the quantized side
layout(constant_id = 3) const bool SIGNED = false;
layout(constant_id = 4) const bool HAS_ZERO = false;
layout(constant_id = 5) const bool VECTORS = false;
layout(constant_id = 6) const bool WORDS = false;
layout(constant_id = 7) const bool SHARED = false;
layout(constant_id = 8) const uint EACH = 8u;  // or 4
layout(constant_id = 9) const uint PARTS = 1u;
layout(constant_id = 10) const bool ALIGNED = false;  // scales and zero points of neighbours are whole vectors
layout(push_constant) uniform Push {
    uint count;  // elements, or invocations' vectors
    uint scale_step;  // in a vector
    uint zero_step;
    uint x_step;  // between parts
    uint y_step;
    uint x_offset;
    uint y_offset;
    uint scale_offset;
    uint zero_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"
#include "include/typed.glsl"
INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(scale, 1, TYPE)
layout(binding = 2) readonly buffer Zero { uint zero_words[]; };
OUTPUT_TENSOR(y, 3, TYPE)
WALK(walk, 4)

const uint PER_WORD = 32u / BITS;
#if defined(WAY_dequantize)
const uint PER_OUTPUT_WORD = 4u / BYTES_OF(TYPE);
#else
const uint PER_OUTPUT_WORD = PER_WORD;
#endif
const uint MOST = 8u;
const uint MASK = (1u << BITS) - 1u;
const uint ONES = BITS == 4u ? 0x11111111u : 0x01010101u;  // a 1 in each element of a word
const uint TOPS = ONES << BITS - 1u;  // the sign bits

float quantized(uint word, uint at) {
    int from = int(at % PER_WORD * BITS);
    return SIGNED ? float(bitfieldExtract(int(word), from, int(BITS)))
                  : float(bitfieldExtract(word, from, int(BITS)));
}

float zero_point(uint at) {
    if (HAS_ZERO) return quantized(zero_words[at / PER_WORD], at);
    return SIGNED ? 0.0 : float(1u << (BITS - 1u));
}

// Offsets of 4-bit elements count bytes.
uint place_of(uint offset) { return offset * (8u / BITS); }

// Of the elements of a word, signed ones plus half their range, so that they count from 0.
uint counted(uint word) { return SIGNED ? word ^ TOPS : word; }

// 2^23 plus element ``i`` of counted words: conversions from integers take four times as long.
float shifted(uvec2 words, uint i) {
    return uintBitsToFloat(words[i / PER_WORD] >> i % PER_WORD * BITS & MASK | 0x4B000000u);
}

// Scales and zero points of EACH neighbours. If they are shared, the first scale is that of all.
struct Factors {
    float by[MOST];
    uvec2 zeros;  // counted
};

Factors factors_at(uint scale_at, uint zero_at) {
    Factors result;
    scale_at += scale_offset;
    zero_at += place_of(zero_offset);
    result.zeros = uvec2(counted(SIGNED ? 0u : TOPS));
    if (SHARED) {
        result.by[0] = scale_float(scale_at);
        if (HAS_ZERO)
            result.zeros = uvec2(counted((zero_words[zero_at / PER_WORD] >> zero_at % PER_WORD * BITS & MASK) * ONES));
    } else if (ALIGNED) {
        if (BYTES_OF(TYPE) == 4u) {
            [[unroll]] for (uint v = 0u; v < EACH / 4u; ++v) {
                vec4 four = uintBitsToFloat(scale_vectors[scale_at / 4u + v]);
                [[unroll]] for (uint i = 0u; i < 4u; ++i) result.by[4u * v + i] = four[i];
            }
        } else {
            uvec4 pairs = scale_vectors[scale_at / 8u];
            [[unroll]] for (uint i = 0u; i < EACH; ++i)
                result.by[i] = half_to_float(pairs[i / 2u] >> i % 2u * 16u & 0xFFFFu);
        }
        if (HAS_ZERO) {
            [[unroll]] for (uint w = 0u; w < (EACH + PER_WORD - 1u) / PER_WORD; ++w)
                result.zeros[w] = counted(zero_words[zero_at / PER_WORD + w] >> zero_at % PER_WORD * BITS);
        }
    } else {
        if (HAS_ZERO) result.zeros = uvec2(0u);
        [[unroll]] for (uint i = 0u; i < EACH; ++i) {
            result.by[i] = scale_float(scale_at + i * scale_step);
            uint at = zero_at + i * zero_step;
            if (HAS_ZERO)
                result.zeros[i / PER_WORD] |= (counted(zero_words[at / PER_WORD] >> at % PER_WORD * BITS) & MASK)
                    << i % PER_WORD * BITS;
        }
    }
    return result;
}

float factor_of(Factors factors, uint i) { return factors.by[SHARED ? 0u : i]; }

// A part as in memory.
struct Part {
    uvec4 low;
    uvec4 high;
};

#if defined(WAY_dequantize)
// The bits of a number.
uint converted(float x, float zero, float by) {
    precise float value = (x - zero) * by;
    return bits_of(value, TYPE);
}

Part read_part(uint from) {
    uint word = x_words[from / PER_WORD] >> from % PER_WORD * BITS;
    return Part(uvec4(word, EACH > PER_WORD ? x_words[from / PER_WORD + 1u] : 0u, 0u, 0u), uvec4(0u));
}

void store_part(uint to, Part part, Factors factors) {
    uvec2 words = uvec2(counted(part.low.x), counted(part.low.y));
    float made[MOST];
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        precise float value = (shifted(words, i) - shifted(factors.zeros, i)) * factor_of(factors, i);
        made[i] = value;
    }
    if (BYTES_OF(TYPE) == 2u) {
        uvec4 pairs;
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            pairs[i] = floats_to_halves(made[2u * i], made[2u * i + 1u]);
        y_vectors[to / 8u] = pairs;
        return;
    }
    [[unroll]] for (uint v = 0u; v < EACH / 4u; ++v)
        y_vectors[to / 4u + v] =
            floatBitsToUint(vec4(made[4u * v], made[4u * v + 1u], made[4u * v + 2u], made[4u * v + 3u]));
}

#define OUTPUT_BITS_EACH (8u * BYTES_OF(TYPE))
#define READ(at) quantized(x_words[(at) / PER_WORD], at)
#define FROM(at) (place_of(x_offset) + at)
#define TO(at) (y_offset + at)
#else
uint converted(float x, float zero, float by) {
    const float span = float((1u << BITS) - 1u);
    const float low = SIGNED ? -float(1u << (BITS - 1u)) : 0.0;
    precise float quotient = x / by;
    precise float value = roundEven(quotient) + zero;
    if (is_nan(value)) value = zero;
    return uint(int(clamp(value, low, low + span))) & ((1u << BITS) - 1u);
}

Part read_part(uint from) {
    if (BYTES_OF(TYPE) == 2u) return Part(x_vectors[from / 8u], uvec4(0u));
    return Part(x_vectors[from / 4u], x_vectors[from / 4u + 1u]);
}

float number_in(Part part, uint i) {
    if (BYTES_OF(TYPE) == 2u) return half_to_float(part.low[i / 2u] >> i % 2u * 16u & 0xFFFFu);
    return uintBitsToFloat(i < 4u ? part.low[i % 4u] : part.high[i % 4u]);
}

// Whether no number is infinite, NaN or huge.
bool are_moderate(Part part) {
    if (BYTES_OF(TYPE) == 2u) {
        uvec4 carried = (part.low & 0x7FFF7FFFu) + 0x04000400u;
        return ((carried.x | carried.y | carried.z | carried.w) & 0x80008000u) == 0u;
    }
    uvec4 most = max(part.low & 0x7FFFFFFFu, part.high & 0x7FFFFFFFu);
    return max(max(most.x, most.y), max(most.z, most.w)) < 193u << 23;  // 2^66
}

bool is_moderate(float scale) {  // from 2^-60 to 2^61
    return (floatBitsToUint(scale) & 0x7FFFFFFFu) - (67u << 23) < 121u << 23;
}

// Reciprocals of the scales, where fma is true.
struct Inverses {
    float by[MOST];
    float rest[MOST];  // the exact reciprocal minus ``by``
    bool usable;
};

Inverses inverses_of(Factors factors) {
    Inverses result;
    result.usable = HAS_EXACT_UNITS;
    if (!HAS_EXACT_UNITS) return result;
    [[unroll]] for (uint i = 0u; i < (SHARED ? 1u : EACH); ++i) {
        float by = factors.by[i], guess = 1.0 / by;
        result.usable = result.usable && is_moderate(by);
        precise float inverse = fma(fma(-guess, by, 1.0), guess, guess);
        precise float rest = fma(-inverse, by, 1.0) * inverse;
        result.by[i] = inverse;
        result.rest[i] = rest;
    }
    return result;
}

// The correctly rounded quotient (Markstein). That of two FLOAT16 numbers may be wrong in its last bit, but
// never at a half.
float quotient_of(float x, float by, float inverse, float rest) {
    if (BYTES_OF(TYPE) == 2u) {
        precise float quotient = fma(x, inverse, x * rest);
        return quotient;
    }
    precise float guess = x * inverse;
    precise float quotient = fma(fma(-guess, by, x), inverse, guess);
    return quotient;
}

void store_part(uint to, Part part, Factors factors, Inverses inverses) {
    const float span = float((1u << BITS) - 1u);
    uvec2 words = uvec2(0u);
    if (inverses.usable && are_moderate(part)) {
        [[unroll]] for (uint i = 0u; i < EACH; ++i) {
            uint f = SHARED ? 0u : i;
            precise float low = 8388608.0 - shifted(factors.zeros, i);
            float quotient = quotient_of(number_in(part, i), factors.by[f], inverses.by[f], inverses.rest[f]);
            precise float whole = min(max(quotient, low), low + span) + 12582912.0;  // rounds
            words[i / PER_WORD] += floatBitsToUint(whole) << i % PER_WORD * BITS;
        }
        // What the sums have of 12582912.0.
        const uint surplus = BITS == 4u ? 0x3F400000u : 0x8B400000u;
        words += factors.zeros - surplus;
        if (SIGNED) words ^= TOPS;
    } else {
        [[unroll]] for (uint i = 0u; i < EACH; ++i) {
            float zero = shifted(factors.zeros, i) - (SIGNED ? 8388608.0 + float(1u << BITS - 1u) : 8388608.0);
            words[i / PER_WORD] |= converted(number_in(part, i), zero, factor_of(factors, i))
                << i % PER_WORD * BITS;
        }
    }
    y_words[to / PER_WORD] = words.x;
    if (EACH > PER_WORD) y_words[to / PER_WORD + 1u] = words.y;
}

#define OUTPUT_BITS_EACH BITS
#define READ(at) x_float(at)
#define FROM(at) (x_offset + at)
#define TO(at) (place_of(y_offset) + at)
#endif

void convert_vectors() {
    uint from[PARTS];
    uint to[PARTS];
    bool inside[PARTS];
    Factors factors[SHARED ? PARTS : 1u];
    Part part[PARTS];
    uint first = group_index() * gl_WorkGroupSize.x * (SHARED ? PARTS : 1u) + gl_LocalInvocationID.x;
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        if (p == 0u || SHARED) {
            uint n = first + p * gl_WorkGroupSize.x;
            inside[p] = n < count;
            uint[4] at = walk(0u, min(n, count - 1u));
            from[p] = FROM(at[0]);
            to[p] = TO(at[3]);
            factors[p] = factors_at(at[1], at[2]);
        } else {
            inside[p] = inside[0];
            from[p] = from[0] + p * x_step;
            to[p] = to[0] + p * y_step;
        }
        part[p] = read_part(from[p]);
    }
#if !defined(WAY_dequantize)
    Inverses inverses = inverses_of(factors[0]);
#endif
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        if (!inside[p]) return;
#if defined(WAY_dequantize)
        store_part(to[p], part[p], factors[SHARED ? p : 0u]);
#else
        if (SHARED && p > 0u) inverses = inverses_of(factors[p]);
        store_part(to[p], part[p], factors[SHARED ? p : 0u], inverses);
#endif
    }
}

void main() {
    if (VECTORS) {
        convert_vectors();
        return;
    }
    const uint own_each = WORDS ? PER_OUTPUT_WORD : 1u;
    uint n = invocation_index();
    if (n * own_each >= count) return;
    uint to = 0u, word = 0u, filled = 0u;
    [[unroll]] for (uint i = 0u; i < own_each; ++i) {
        uint element = n * own_each + i;
        if (element >= count) break;
        uint[4] at = walk(0u, element);
        float zero = zero_point(place_of(zero_offset) + at[2]);
        uint made = converted(READ(FROM(at[0])), zero, scale_float(scale_offset + at[1]));
        if (i == 0u) to = TO(at[3]);
        word |= made << i * OUTPUT_BITS_EACH;
        filled += OUTPUT_BITS_EACH;
    }
    const uint own = OUTPUT_BITS_EACH == 32u ? ~0u : (1u << OUTPUT_BITS_EACH) - 1u;
    if (WORDS && filled == 32u || OUTPUT_BITS_EACH == 32u) {
        y_words[to / PER_OUTPUT_WORD] = word;
    } else {
        // Changes only these elements' own bits, because others share the word.
        uint mask = WORDS ? (1u << filled) - 1u : own, shift = to % PER_OUTPUT_WORD * OUTPUT_BITS_EACH;
        uint changes = (y_words[to / PER_OUTPUT_WORD] >> shift ^ word) & mask;
        atomicXor(y_words[to / PER_OUTPUT_WORD], changes << shift);
    }
}
