// Elements of any data type as unsigned numbers, for maxima and sorts. An element that comes first has a
// larger number. Numbers have two words, x the low one. Types of up to 32 bits use only x.
//
//   precedence(bits, type, least): the largest (or least) comes first; -0 is below 0, NaN is first
//   with_precedence(...):          the inverse function
//   equal_precedence(...):         precedence, but -0 equals 0, and all NaN are equal
#ifndef INCLUDED_ORDERED
#define INCLUDED_ORDERED
#include "include/float_bits.glsl"

uint infinity_of(uint type) {
    return mix(0x7F800000u, 0x7C000000u, BYTES_OF(type) == 2u);
}

// Selections instead of branches and early returns: a slow compiler takes minutes for loops of the latter.
uvec2 integer_precedence(uvec2 bits, uint type, bool least) {
    bool wide = BYTES_OF(type) == 8u;
    uvec2 sign = mix(uvec2(0x80000000u, 0u), uvec2(0u, 0x80000000u), bvec2(wide));
    bits ^= mix(uvec2(0u), sign, bvec2(IS_SIGNED(type)));
    bits = mix(bits, ~bits, bvec2(least));
    return uvec2(bits.x, mix(0u, bits.y, wide));
}

uvec2 precedence(uvec2 bits, uint type, bool least) {
    uint infinite = infinity_of(type), key = key_of(mix(bits.x, bits.x << 16, BYTES_OF(type) == 2u));
    uvec2 of_float = uvec2(mix(key - ~infinite, infinite - key, least), 0u);
    return mix(integer_precedence(bits, type, least), of_float, bvec2(IS_FLOAT(type)));
}

uvec2 with_precedence(uvec2 x, uint type, bool least) {
    if (!IS_FLOAT(type)) {
        // Both steps are their own inverse.
        if (least) x = ~x;
        return BYTES_OF(type) == 8u ? integer_precedence(x, type, false)
                                    : integer_precedence(uvec2(x.x, 0u), type, false);
    }
    uint bits = key_of(least ? infinity_of(type) - x.x : x.x + ~infinity_of(type));
    return uvec2(BYTES_OF(type) == 2u ? bits >> 16 : bits, 0u);
}

uvec2 equal_precedence(uvec2 bits, uint type, bool least) {
    uint infinite = infinity_of(type), rank = uint(rank_of(mix(bits.x, bits.x << 16, BYTES_OF(type) == 2u)));
    uvec2 of_float = uvec2(min(mix(rank + infinite, infinite - rank, least), 2u * infinite + 1u), 0u);
    return mix(integer_precedence(bits, type, least), of_float, bvec2(IS_FLOAT(type)));
}
#endif
