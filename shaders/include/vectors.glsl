// Input x and output y of an operator that moves bits, accessed by vectors of 16 bytes from any element
// on. A variant has elements of one width.
#include "include/bits.glsl"
#if defined(T_b8)
const uint BYTES = 1u;
#elif defined(T_b16)
const uint BYTES = 2u;
#elif defined(T_b32)
const uint BYTES = 4u;
#else
const uint BYTES = 8u;
#endif
INPUT_BITS(x, 0, BYTES)
OUTPUT_BITS(y, 1, BYTES)

const uint PER_VECTOR = 16u / BYTES;
const uint PER_WORD = BYTES < 4u ? 4u / BYTES : 1u;

// A vector of elements from ``from`` on, by words. All of them must lie in the tensor.
uvec4 load_words(uint from) {
    uint word = from * BYTES / 4u;
    if (BYTES == 8u) word = 2u * from;
    uvec4 v = uvec4(x_words[word], x_words[word + 1u], x_words[word + 2u], x_words[word + 3u]);
    if (BYTES < 4u) {
        uint shift = from * BYTES % 4u * 8u;
        if (shift != 0u) v = v >> shift | uvec4(v.yzw, x_words[word + 4u]) << (32u - shift);
    }
    return v;
}

// The same, as a vector where it is one of the buffer's.
uvec4 load_vector(uint from) {
    if (from % PER_VECTOR == 0u) return x_vectors[from / PER_VECTOR];
    return load_words(from);
}

uvec2 element_of(uvec4 vector, uint e) {
    return element_of(vector, e, BYTES);
}

void set_element(inout uvec4 vector, uint e, uvec2 bits) {
    set_element(vector, e, bits, BYTES);
}

uvec4 filled_vector(uvec2 bits) {
    if (BYTES == 8u) return bits.xyxy;
    if (BYTES == 4u) return uvec4(bits.x);
    return uvec4(bits.x * (BYTES == 2u ? 0x00010001u : 0x01010101u));
}

// Stores the first ``have`` elements of a vector from ``to`` on.
void store_vector(uint to, uint have, uvec4 vector) {
    if (have == PER_VECTOR && to % PER_VECTOR == 0u) {
        y_vectors[to / PER_VECTOR] = vector;
        return;
    }
    uint e = 0u;
    while (e < have) {
        if (BYTES < 4u && (to + e) % PER_WORD == 0u && e + PER_WORD <= have) {
            uint word = 0u;
            for (uint i = 0u; i < PER_WORD; ++i)
                word |= element_of(vector, e + i).x << i * BYTES * 8u;
            y_words[(to + e) / PER_WORD] = word;
            e += PER_WORD;
        } else {
            y_store_bits(to + e, element_of(vector, e));
            ++e;
        }
    }
}

// Elements ``first`` to before ``last`` of the output, which lie in one vector. No other invocation changes
// them. For a driver on the CPU: a few words take less than many elements.
void store_words(uint first, uint last, uvec4 vector) {
    uint begin = first / PER_VECTOR * PER_VECTOR, word = first / PER_VECTOR * 4u;
    uint low = (first - begin) * BYTES, high = (last - begin) * BYTES;
    [[unroll]] for (uint w = 0u; w < 4u; ++w) {
        uint from = max(low, 4u * w), to = min(high, 4u * w + 4u);
        if (from >= to) continue;
        if (to - from == 4u) {
            y_words[word + w] = vector[w];
        } else {
            uint mask = (1u << 8u * (to - from)) - 1u << 8u * (from - 4u * w);
            atomicXor(y_words[word + w], (y_words[word + w] ^ vector[w]) & mask);
        }
    }
}
