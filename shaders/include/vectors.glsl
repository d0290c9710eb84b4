// The input and the output of an operator that moves bits, as words and as vectors of 16 bytes.
#include "include/elements.glsl"

layout(binding = 0) readonly buffer InputWords { uint in_words[]; };
layout(binding = 0) readonly buffer InputVectors { uvec4 in_vectors[]; };
layout(binding = 1) buffer OutputWords { uint out_words[]; };
layout(binding = 1) writeonly buffer OutputVectors { uvec4 out_vectors[]; };

#if defined(T_b64)
const uint PER_VECTOR = 2u;
#elif defined(ELEMENT_BITS)
const uint PER_VECTOR = 4u * ELEMENTS_PER_WORD;
#else
const uint PER_VECTOR = 4u;
#endif

// Elements from ``from`` on; all of them lie in the tensor.
uvec4 load_vector(uint from) {
    if (from % PER_VECTOR == 0u) return in_vectors[from / PER_VECTOR];
#if defined(T_b64)
    uint word = 2u * from;
#elif defined(ELEMENT_BITS)
    uint word = from / ELEMENTS_PER_WORD;
#else
    uint word = from;
#endif
    uvec4 x = uvec4(in_words[word], in_words[word + 1u], in_words[word + 2u], in_words[word + 3u]);
#if defined(ELEMENT_BITS)
    uint shift = element_shift(from);
    if (shift != 0u) x = x >> shift | uvec4(x.yzw, in_words[word + 4u]) << (32u - shift);
#endif
    return x;
}

ELEMENT element_of(uvec4 vector, uint e) {
#if defined(T_b64)
    return e == 0u ? vector.xy : vector.zw;
#elif defined(ELEMENT_BITS)
    return vector[e / ELEMENTS_PER_WORD] >> element_shift(e) & ELEMENT_MASK;
#else
    return vector[e];
#endif
}

void set_element(inout uvec4 vector, uint e, ELEMENT x) {
#if defined(T_b64)
    if (e == 0u) vector.xy = x;
    else vector.zw = x;
#elif defined(ELEMENT_BITS)
    vector[e / ELEMENTS_PER_WORD] |= x << element_shift(e);  // where zeros are
#else
    vector[e] = x;
#endif
}

uvec4 filled_vector(ELEMENT x) {
#if defined(T_b64)
    return x.xyxy;
#elif defined(T_b16)
    return uvec4(x | x << 16u);
#elif defined(T_b8)
    return uvec4(x * 0x01010101u);
#else
    return uvec4(x);
#endif
}

// The first ``have`` elements, to ``to`` and after it.
void store_vector(uint to, uint have, uvec4 vector) {
    if (have == PER_VECTOR && to % PER_VECTOR == 0u) {
        out_vectors[to / PER_VECTOR] = vector;
        return;
    }
    uint e = 0u;
#if defined(ELEMENT_BITS)
    while (e < have) {
        if ((to + e) % ELEMENTS_PER_WORD == 0u && e + ELEMENTS_PER_WORD <= have) {
            uint word = 0u;
            for (uint i = 0u; i < ELEMENTS_PER_WORD; ++i)
                word |= element_of(vector, e + i) << element_shift(i);
            out_words[(to + e) / ELEMENTS_PER_WORD] = word;
            e += ELEMENTS_PER_WORD;
        } else {
            STORE_ELEMENT(out_words, to + e, element_of(vector, e));
            ++e;
        }
    }
#else
    for (; e < have; ++e) STORE_ELEMENT(out_words, to + e, element_of(vector, e));
#endif
}
