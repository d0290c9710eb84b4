//@ op DML_OPERATOR_QUANTIZE DML_OPERATOR_DEQUANTIZE
//@ variants WAY: quantize dequantize
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation converts EACH elements. VECTORS: eight neighbours, which are whole vectors or words. WORDS:
// the elements of a word of a packed output, each of which is walked to. Else one. The walk splits dimensions
// into blocks, inside which the strides of scale and zero point are 0.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;  // of the floating-point side
layout(constant_id = 2) const uint BITS = 8u;  // of the quantized side
layout(constant_id = 3) const bool SIGNED = false;
layout(constant_id = 4) const bool HAS_ZERO = false;
layout(constant_id = 5) const bool VECTORS = false;
layout(constant_id = 6) const bool WORDS = false;
layout(constant_id = 7) const bool SHARED = false;  // a vector's elements share scale and zero point
layout(push_constant) uniform Push {
    uint count;  // elements, or vectors of eight
    uint scale_step;  // in a vector
    uint zero_step;
    uint x_offset;
    uint y_offset;
    uint scale_offset;
    uint zero_offset;
    uint params_offset;
};
#include "include/grid.glsl"
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
const uint EACH = VECTORS ? 8u : WORDS ? PER_OUTPUT_WORD : 1u;

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

#if defined(WAY_dequantize)
// The bits of a number.
uint converted(float x, float zero, float by) {
    precise float value = (x - zero) * by;
    return bits_of(value, TYPE);
}

void store_vectors(uint to, uint bits[MOST]) {
    if (BYTES_OF(TYPE) == 2u) {
        y_vectors[to / 8u] = uvec4(bits[0], bits[2], bits[4], bits[6]) |
                             uvec4(bits[1], bits[3], bits[5], bits[7]) << 16;
        return;
    }
    y_vectors[to / 4u] = uvec4(bits[0], bits[1], bits[2], bits[3]);
    y_vectors[to / 4u + 1u] = uvec4(bits[4], bits[5], bits[6], bits[7]);
}

void read_vectors(uint from, out float x[MOST]) {
    uint first = x_words[from / PER_WORD], second = BITS == 4u ? first : x_words[from / PER_WORD + 1u];
    [[unroll]] for (uint i = 0u; i < MOST; ++i) x[i] = quantized(i < 4u ? first : second, i);
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

void store_vectors(uint to, uint bits[MOST]) {
    uint words[2] = uint[2](0u, 0u);
    [[unroll]] for (uint i = 0u; i < MOST; ++i) words[i / PER_WORD] |= bits[i] << i % PER_WORD * BITS;
    y_words[to / PER_WORD] = words[0];
    if (BITS == 8u) y_words[to / PER_WORD + 1u] = words[1];
}

void read_vectors(uint from, out float x[MOST]) {
    if (BYTES_OF(TYPE) == 4u) {
        vec4 low = uintBitsToFloat(x_vectors[from / 4u]);
        vec4 high = uintBitsToFloat(x_vectors[from / 4u + 1u]);
        [[unroll]] for (uint i = 0u; i < MOST; ++i) x[i] = i < 4u ? low[i % 4u] : high[i % 4u];
        return;
    }
    uvec4 pairs = x_vectors[from / 8u];
    [[unroll]] for (uint i = 0u; i < MOST; ++i)
        x[i] = half_to_float(pairs[i / 2u] >> i % 2u * 16u & 0xFFFFu);
}

#define OUTPUT_BITS_EACH BITS
#define READ(at) x_float(at)
#define FROM(at) (x_offset + at)
#define TO(at) (place_of(y_offset) + at)
#endif

void main() {
    uint n = invocation_index();
    if (n * (WORDS ? EACH : 1u) >= count) return;
    uint bits[MOST];
    [[unroll]] for (uint i = 0u; i < MOST; ++i) bits[i] = 0u;
    if (VECTORS) {
        uint[4] at = walk(0u, n);
        float x[MOST];
        read_vectors(FROM(at[0]), x);
        float zero = zero_point(place_of(zero_offset) + at[2]), by = scale_float(scale_offset + at[1]);
        [[unroll]] for (uint i = 0u; i < MOST; ++i) {
            if (!SHARED && i > 0u) {
                zero = zero_point(place_of(zero_offset) + at[2] + i * zero_step);
                by = scale_float(scale_offset + at[1] + i * scale_step);
            }
            bits[i] = converted(x[i], zero, by);
        }
        store_vectors(TO(at[3]), bits);
        return;
    }
    uint to = 0u, word = 0u, filled = 0u;
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        uint element = n * EACH + i;
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
