// Elements of any type as values that are added, multiplied, or of which the least or largest is wanted. The
// includer includes typed.glsl and defines TYPE and FUNCTION.
//
//   HELD(y, TYPE): uvec2 y_held(at), an element of an OUTPUT_TENSOR
#include "include/integers64.glsl"
#include "include/ordered.glsl"

const uint SUM = 0u, PRODUCT = 1u, LEAST = 2u, LARGEST = 3u;
const bool BY_FLOATS = IS_FLOAT(TYPE) && FUNCTION < LEAST;
const bool LONG = BYTES_OF(TYPE) == 8u;

// Values are floats, integers of two words, or numbers of which the largest is wanted.
uvec2 value_of(uvec2 bits) {
    if (BY_FLOATS) return uvec2(floatBitsToUint(number_of(bits, TYPE)), 0u);
    return FUNCTION >= LEAST ? precedence(bits, TYPE, FUNCTION == LEAST) : bits;
}

uvec2 bits_of_value(uvec2 value) {
    if (BY_FLOATS) return uvec2(bits_of(uintBitsToFloat(value.x), TYPE), 0u);
    return FUNCTION >= LEAST ? with_precedence(value, TYPE, FUNCTION == LEAST) : value;
}

// What changes no value: -0 is the sum's.
uvec2 nothing() {
    if (FUNCTION >= LEAST) return uvec2(0u);
    if (FUNCTION == PRODUCT) return uvec2(BY_FLOATS ? floatBitsToUint(1.0) : 1u, 0u);
    return uvec2(BY_FLOATS ? 0x80000000u : 0u, 0u);
}

uvec2 combine(uvec2 a, uvec2 b) {
    if (BY_FLOATS) {
        float x = uintBitsToFloat(a.x), y = uintBitsToFloat(b.x);
        return uvec2(floatBitsToUint(FUNCTION == SUM ? x + y : x * y), 0u);
    }
    if (FUNCTION >= LEAST) {
        if (!LONG) return uvec2(max(a.x, b.x), 0u);
        return less64(a, b, false) ? b : a;
    }
    if (!LONG) return uvec2(FUNCTION == SUM ? a.x + b.x : a.x * b.x, 0u);
    return FUNCTION == SUM ? add64(a, b) : multiply64(a, b);
}

#define HELD(y, TYPE) \
    uvec2 y##_held(uint at) { \
        const uint bytes = BYTES_OF(TYPE); \
        if (bytes == 8u) return uvec2(y##_words[2u * at], y##_words[2u * at + 1u]); \
        return extended(y##_words[at * bytes / 4u], at * bytes, TYPE); \
    }
