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
    return BYTES_OF(type) == 2u ? 0x7C000000u : 0x7F800000u;
}

uvec2 integer_precedence(uvec2 bits, uint type, bool least) {
    if (BYTES_OF(type) == 8u) {
        if (IS_SIGNED(type)) bits.y ^= 0x80000000u;
        return least ? ~bits : bits;
    }
    if (IS_SIGNED(type)) bits.x ^= 0x80000000u;
    return uvec2(least ? ~bits.x : bits.x, 0u);
}

uvec2 precedence(uvec2 bits, uint type, bool least) {
    if (!IS_FLOAT(type)) return integer_precedence(bits, type, least);
    uint key = key_of(BYTES_OF(type) == 2u ? bits.x << 16 : bits.x);
    return uvec2(least ? infinity_of(type) - key : key - ~infinity_of(type), 0u);
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
    if (!IS_FLOAT(type)) return integer_precedence(bits, type, least);
    uint infinite = infinity_of(type);
    uint rank = uint(rank_of(BYTES_OF(type) == 2u ? bits.x << 16 : bits.x));
    return uvec2(min(least ? infinite - rank : rank + infinite, 2u * infinite + 1u), 0u);
}
#endif
