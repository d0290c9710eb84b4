//@ op DML_OPERATOR_QUANTIZE DML_OPERATOR_DEQUANTIZE
//@ variants WAY: quantize dequantize
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation converts EACH neighbouring elements: eight that share a scale, or one. The walk splits
// dimensions into blocks, inside which the strides of scale and zero point are 0.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;  // of the floating-point side
layout(constant_id = 2) const uint BITS = 8u;  // of the quantized side
layout(constant_id = 3) const bool SIGNED = false;
layout(constant_id = 4) const bool HAS_ZERO = false;
layout(constant_id = 5) const bool VECTORS = false;
layout(push_constant) uniform Push {
    uint count;  // invocations
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

const uint EACH = VECTORS ? 8u : 1u;
const uint PER_WORD = 32u / BITS;

float quantized(uint word, uint at) {
    int from = int(at % PER_WORD * BITS);
    return SIGNED ? float(bitfieldExtract(int(word), from, int(BITS)))
                  : float(bitfieldExtract(word, from, int(BITS)));
}

float zero_point(uint at) {
    if (HAS_ZERO) return quantized(zero_words[at / PER_WORD], at);
    return SIGNED ? 0.0 : float(1u << (BITS - 1u));
}

void main() {
    uint n = invocation_index();
    if (n >= count) return;
    uint[4] at = walk(0u, n);
    float zero = zero_point(zero_offset * (8u / BITS) + at[2]);
    float by = scale_float(scale_offset + at[1]);
    // Offsets of 4-bit elements count bytes.
#if defined(WAY_dequantize)
    uint from = x_offset * (8u / BITS) + at[0], to = y_offset + at[3];
    if (!VECTORS) {
        precise float value = (quantized(x_words[from / PER_WORD], from) - zero) * by;
        y_store_float(to, value);
        return;
    }
    float values[8];
    [[unroll]] for (uint i = 0u; i < EACH; ++i)
        values[i] = (quantized(x_words[(from + i) / PER_WORD], from + i) - zero) * by;
    if (BYTES_OF(TYPE) == 2u) {
        uvec4 halves;
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            halves[i] = bits_of(values[2u * i % EACH], TYPE) |
                        (bits_of(values[(2u * i + 1u) % EACH], TYPE) << 16);
        y_vectors[to / 8u] = halves;
        return;
    }
    [[unroll]] for (uint i = 0u; i < 2u; ++i)
        y_vectors[to / 4u + i] =
            uvec4(floatBitsToUint(values[4u * i % EACH]), floatBitsToUint(values[(4u * i + 1u) % EACH]),
                  floatBitsToUint(values[(4u * i + 2u) % EACH]),
                  floatBitsToUint(values[(4u * i + 3u) % EACH]));
#else
    uint from = x_offset + at[0], to = y_offset * (8u / BITS) + at[3];
    const float span = float((1u << BITS) - 1u);
    const float low = SIGNED ? -float(1u << (BITS - 1u)) : 0.0;
    const uint mask = (1u << BITS) - 1u;
    uint word = 0u;
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        precise float quotient = x_float(from + i) / by;
        precise float value = roundEven(quotient) + zero;
        if (is_nan(value)) value = zero;
        uint bits = uint(int(clamp(value, low, low + span))) & mask;
        uint shift = (to + i) % PER_WORD * BITS;
        if (VECTORS) {
            word |= bits << shift;
            if ((to + i) % PER_WORD != PER_WORD - 1u) continue;
            y_words[(to + i) / PER_WORD] = word;
            word = 0u;
        } else {
            // Changes only the element's own bits, because others share the word.
            uint own = (y_words[to / PER_WORD] >> shift ^ bits) & mask;
            atomicXor(y_words[to / PER_WORD], own << shift);
        }
    }
#endif
}
