// Division, comparison and shifts of 64-bit integers as two words, x the low one.
#ifndef INCLUDED_INTEGERS64
#define INCLUDED_INTEGERS64
#include "include/float_bits.glsl"
#include "include/integers.glsl"

bool is_zero64(uvec2 x) {
    return (x.x | x.y) == 0u;
}

bool less64(uvec2 x, uvec2 y, bool is_signed) {
    if (x.y == y.y) return x.x < y.x;
    return is_signed ? int(x.y) < int(y.y) : x.y < y.y;
}

uvec2 multiply64(uvec2 x, uvec2 y) {
    uint high, low;
    umulExtended(x.x, y.x, high, low);
    return uvec2(low, high + x.x * y.y + x.y * y.x);
}

uvec2 shift_left64(uvec2 x, uint count) {
    if (count >= 64u) return uvec2(0u);
    if (count >= 32u) return uvec2(0u, x.x << (count - 32u));
    if (count == 0u) return x;
    return uvec2(x.x << count, (x.y << count) | (x.x >> (32u - count)));
}

uvec2 shift_right64(uvec2 x, uint count) {
    if (count >= 64u) return uvec2(0u);
    if (count >= 32u) return uvec2(x.y >> (count - 32u), 0u);
    if (count == 0u) return x;
    return uvec2((x.x >> count) | (x.y << (32u - count)), x.y >> count);
}

int top_bit64(uvec2 x) {
    return x.y != 0u ? 32 + findMSB(x.y) : findMSB(x.x);
}

// The quotient and rest of unsigned numbers; y is not 0.
uvec2 divide64(uvec2 x, uvec2 y, out uvec2 rest) {
    rest = x;
    if ((x.y | y.y) == 0u) {
        rest.x = x.x % y.x;
        return uvec2(x.x / y.x, 0u);
    }
    uvec2 quotient = uvec2(0u);
    int shift = top_bit64(x) - top_bit64(y);
    if (shift < 0) return quotient;
    uvec2 divisor = shift_left64(y, uint(shift));
    for (; shift >= 0; --shift) {
        quotient = shift_left64(quotient, 1u);
        if (!less64(rest, divisor, false)) {
            rest = subtract64(rest, divisor);
            quotient.x |= 1u;
        }
        divisor = shift_right64(divisor, 1u);
    }
    return quotient;
}

// x truncated toward zero and saturated; 0 for NaN.
uvec2 to_integer64(float x, bool is_signed) {
    bool negative = sign_bit(x) != 0u;
    if (is_nan(x) || (negative && !is_signed)) return uvec2(0u);
    int exponent = int(magnitude_bits(x) >> 23) - 150;  // of the last digit
    if (exponent < -23) return uvec2(0u);
    if (exponent >= (is_signed ? 40 : 41))
        return !is_signed ? uvec2(0xFFFFFFFFu) : negative ? uvec2(0u, 0x80000000u)
                                                          : uvec2(0xFFFFFFFFu, 0x7FFFFFFFu);
    uint significand = (floatBitsToUint(x) & 0x7FFFFFu) | 0x800000u;
    uvec2 size = exponent < 0 ? uvec2(significand >> -exponent, 0u)
                              : shift_left64(uvec2(significand, 0u), uint(exponent));
    return negative ? negate64(size) : size;
}
#endif
