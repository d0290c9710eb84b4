// Elements of any data type in buffers of words. TYPE is the code that the host writes
// (DataType.code): bytes, 16 if signed, 32 if floating point. It should be a specialization
// constant, so that nothing is left of the other types.
//
//   INPUT_TENSOR(x, binding, TYPE):  uvec2 x_bits(at), float x_float(at), and vectors of 16 bytes
//   OUTPUT_TENSOR(y, binding, TYPE): y_store_bits(at, bits), y_store_float(at, value)
//
// ``at`` counts elements from the start of the buffer. Bits of narrow integers are extended to 32
// bits by their sign; .y is the upper half of 64-bit ones, else 0. Loading a float converts
// integers; storing one rounds to float16, and to integers truncates and saturates.
#define BYTES_OF(type) ((type) & 15u)
#define IS_SIGNED(type) (((type) & 16u) != 0u)
#define IS_FLOAT(type) (((type) & 32u) != 0u)

#include "include/units.glsl"
#include "include/float16.glsl"
#include "include/float_to_integer.glsl"

uvec2 extended(uint word, uint byte, uint type) {
    uint bytes = BYTES_OF(type);
    if (bytes == 4u) return uvec2(word, 0u);
    int from = int(byte % 4u * 8u), count = int(8u * bytes);
    return uvec2(IS_SIGNED(type) ? uint(bitfieldExtract(int(word), from, count))
                                 : bitfieldExtract(word, from, count), 0u);
}

float number_of(uvec2 bits, uint type) {
    if (!IS_FLOAT(type)) return to_float(int(bits.x), IS_SIGNED(type));
    return BYTES_OF(type) == 2u ? half_to_float(bits.x) : uintBitsToFloat(bits.x);
}

uint bits_of(float x, uint type) {
    if (!IS_FLOAT(type)) return to_integer(x, type);
    return BYTES_OF(type) == 2u ? float_to_half(x) : floatBitsToUint(x);
}

#define INPUT_TENSOR(x, slot, TYPE) \
    layout(binding = slot) readonly buffer x##_Words { uint x##_words[]; }; \
    layout(binding = slot) readonly buffer x##_Vectors { uvec4 x##_vectors[]; }; \
    uvec2 x##_bits(uint at) { \
        const uint bytes = BYTES_OF(TYPE); \
        if (bytes == 8u) return uvec2(x##_words[2u * at], x##_words[2u * at + 1u]); \
        return extended(x##_words[at * bytes / 4u], at * bytes, TYPE); \
    } \
    float x##_float(uint at) { return number_of(x##_bits(at), TYPE); }

// A store of a narrow element touches its own bits only: neighbours in one word do not race, and the
// bytes beside a strided element stay as they are.
#define OUTPUT_TENSOR(y, slot, TYPE) \
    layout(binding = slot) buffer y##_Words { uint y##_words[]; }; \
    layout(binding = slot) writeonly buffer y##_Vectors { uvec4 y##_vectors[]; }; \
    void y##_store_bits(uint at, uvec2 bits) { \
        const uint bytes = BYTES_OF(TYPE); \
        if (bytes == 8u) { \
            y##_words[2u * at] = bits.x; \
            y##_words[2u * at + 1u] = bits[1]; \
        } else if (bytes == 4u) { \
            y##_words[at] = bits.x; \
        } else { \
            uint word = at * bytes / 4u, shift = at * bytes % 4u * 8u; \
            uint own = (y##_words[word] >> shift ^ bits.x) & ((1u << (8u * bytes)) - 1u); \
            atomicXor(y##_words[word], own << shift); /* no other invocation changes them */ \
        } \
    } \
    void y##_store_float(uint at, float value) { y##_store_bits(at, uvec2(bits_of(value, TYPE), 0u)); }
