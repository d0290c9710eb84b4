// Elements of any data type as bits, in buffers of words. TYPE is the code that the host writes
// (DataType.code): bytes, 16 if signed, 32 if floating point. It should be a constant, so that
// the code of other types is removed.
//
//   INPUT_BITS(x, binding, TYPE):  uvec2 x_bits(at), and x_words and x_vectors, of 16 bytes
//   OUTPUT_BITS(y, binding, TYPE): y_store_bits(at, bits), and y_words and y_vectors
//
// ``at`` counts elements from the start of the buffer. Narrow integers are extended to 32 bits, by their
// sign if signed. The second word is the upper half of 64-bit elements, else 0.
#ifndef INCLUDED_BITS
#define INCLUDED_BITS
#define BYTES_OF(type) ((type) & 15u)
#define IS_SIGNED(type) (((type) & 16u) != 0u)
#define IS_FLOAT(type) (((type) & 32u) != 0u)

uvec2 extended(uint word, uint byte, uint type) {
    uint bytes = BYTES_OF(type);
    if (bytes == 4u) return uvec2(word, 0u);
    int from = int(byte % 4u * 8u), count = int(8u * bytes);
    return uvec2(IS_SIGNED(type) ? uint(bitfieldExtract(int(word), from, count))
                                 : bitfieldExtract(word, from, count), 0u);
}

// Element ``e`` of a vector of 16 bytes.
uvec2 element_of(uvec4 vector, uint e, uint type) {
    uint bytes = BYTES_OF(type);
    if (bytes == 8u) return e == 0u ? vector.xy : vector.zw;
    return extended(vector[e * bytes / 4u], e * bytes, type);
}

// Sets element ``e`` of a vector, which must be 0.
void set_element(inout uvec4 vector, uint e, uvec2 bits, uint type) {
    uint bytes = BYTES_OF(type);
    if (bytes == 8u) {
        if (e == 0u) vector.xy = bits;
        else vector.zw = bits;
    } else {
        vector[e * bytes / 4u] |= bits.x << e * bytes % 4u * 8u;
    }
}

#define INPUT_BITS(x, slot, TYPE) \
    layout(binding = slot) readonly buffer x##_Words { uint x##_words[]; }; \
    layout(binding = slot) readonly buffer x##_Vectors { uvec4 x##_vectors[]; }; \
    uvec2 x##_bits(uint at) { \
        const uint bytes = BYTES_OF(TYPE); \
        if (bytes == 8u) return uvec2(x##_words[2u * at], x##_words[2u * at + 1u]); \
        return extended(x##_words[at * bytes / 4u], at * bytes, TYPE); \
    }

// A store of a narrow element changes only its own bits. So neighbours in one word do not race, and bytes
// between strided elements are kept.
#define OUTPUT_BITS(y, slot, TYPE) \
    layout(binding = slot) buffer y##_Words { uint y##_words[]; }; \
    layout(binding = slot) writeonly buffer y##_Vectors { uvec4 y##_vectors[]; }; \
    void y##_store_bits(uint at, uvec2 bits) { \
        const uint bytes = BYTES_OF(TYPE); \
        if (bytes == 8u) { \
            y##_words[2u * at] = bits[0]; \
            y##_words[2u * at + 1u] = bits[1]; \
        } else if (bytes == 4u) { \
            y##_words[at] = bits[0]; \
        } else { \
            uint word = at * bytes / 4u, shift = at * bytes % 4u * 8u; \
            uint own = (y##_words[word] >> shift ^ bits[0]) & ((1u << (8u * bytes)) - 1u); \
            atomicXor(y##_words[word], own << shift); /* no other invocation changes them */ \
        } \
    }
#endif
