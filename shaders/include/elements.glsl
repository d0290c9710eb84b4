// Elements of 1, 2, 4 or 8 bytes in buffers of 32-bit words, moved as bits.
// A shader defines the width by one of T_b8, T_b16, T_b32, T_b64 (or the matching data types).

#if defined(T_b8)
#define ELEMENTS_PER_WORD 4u
#define ELEMENT_BITS 8u
#elif defined(T_b16)
#define ELEMENTS_PER_WORD 2u
#define ELEMENT_BITS 16u
#endif

#if defined(T_b64)
#define ELEMENT uvec2
#define ZERO_ELEMENT uvec2(0u)
#else
#define ELEMENT uint
#define ZERO_ELEMENT 0u
#endif

// LOAD_ELEMENT(words, index) and STORE_ELEMENT(words, index, value) take the name of a uint[] buffer
// member. A narrow store changes only its own bits. So neighbours in one word do not race, and bytes
// between strided elements are kept.
#if defined(ELEMENT_BITS)
#define ELEMENT_MASK ((1u << ELEMENT_BITS) - 1u)
uint element_shift(uint index) {
    return (index % ELEMENTS_PER_WORD) * ELEMENT_BITS;
}
#define LOAD_ELEMENT(words, index) \
    ((words[(index) / ELEMENTS_PER_WORD] >> element_shift(index)) & ELEMENT_MASK)
#define STORE_ELEMENT(words, index, value) \
    { \
        uint own_bits = (words[(index) / ELEMENTS_PER_WORD] >> element_shift(index)) & ELEMENT_MASK; \
        own_bits ^= (value); /* no other invocation changes them */ \
        atomicXor(words[(index) / ELEMENTS_PER_WORD], own_bits << element_shift(index)); \
    }
#elif defined(T_b64)
#define LOAD_ELEMENT(words, index) uvec2(words[2u * (index)], words[2u * (index) + 1u])
#define STORE_ELEMENT(words, index, value) \
    { \
        uvec2 element_bits = (value); \
        words[2u * (index)] = element_bits.x; \
        words[2u * (index) + 1u] = element_bits.y; \
    }
#else
#define LOAD_ELEMENT(words, index) words[index]
#define STORE_ELEMENT(words, index, value) words[index] = (value)
#endif
