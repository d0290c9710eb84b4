// OUTPUT_EACH(y, TYPE) defines y_store_each(to, bits): it stores EACH neighbouring elements from ``to`` on, as
// a vector of 16 bytes or as words where they begin with one. The includer defines the constant EACH, a power
// of two of at most 16 bytes, and y (include/bits.glsl).
#define OUTPUT_EACH(y, TYPE) \
    void y##_store_each(uint to, uvec2 bits[EACH]) { \
        const uint bytes = BYTES_OF(TYPE); \
        if (bytes == 8u || bytes * EACH % 4u != 0u || to * bytes % 4u != 0u) { \
            [[unroll]] for (uint e = 0u; e < EACH; ++e) y##_store_bits(to + e, bits[e]); \
            return; \
        } \
        uvec4 words = uvec4(0u); \
        [[unroll]] for (uint e = 0u; e < EACH; ++e) { \
            uint own = bytes == 4u ? bits[e].x : bits[e].x & (1u << 8u * bytes) - 1u; \
            words[e * bytes / 4u & 3u] |= own << e * bytes % 4u * 8u; \
        } \
        uint first = to * bytes / 4u; \
        if (EACH * bytes == 16u && first % 4u == 0u) { \
            y##_vectors[first / 4u] = words; \
            return; \
        } \
        [[unroll]] for (uint i = 0u; i < EACH * bytes / 4u; ++i) y##_words[first + i] = words[i & 3u]; \
    }

// INPUT_EACH(x, TYPE, ALIGNED) defines x_load_each(from, values): EACH neighbouring numbers, as a vector where
// ALIGNED says that it may be.
#define INPUT_EACH(x, TYPE, ALIGNED) \
    void x##_load_each(uint from, out float values[EACH]) { \
        if (EACH * BYTES_OF(TYPE) == 16u && (ALIGNED)) { \
            uvec4 vector = x##_vectors[from / EACH]; \
            [[unroll]] for (uint e = 0u; e < EACH; ++e) \
                values[e] = number_of(element_of(vector, e, TYPE), TYPE); \
        } else { \
            [[unroll]] for (uint e = 0u; e < EACH; ++e) values[e] = x##_float(from + e); \
        } \
    }
