// 64-bit integers as two words, x the low one, for devices without shaderInt64. Arithmetic is modulo
// 2^64, for signed and unsigned numbers alike.
#ifndef INCLUDED_INTEGERS
#define INCLUDED_INTEGERS

uvec2 widen(int x) {
    return uvec2(uint(x), uint(x >> 31));
}

uvec2 add64(uvec2 x, uvec2 y) {
    uint carry;
    uint low = uaddCarry(x.x, y.x, carry);
    return uvec2(low, x.y + y.y + carry);
}

uvec2 negate64(uvec2 x) {
    return uvec2(0u - x.x, ~x.y + uint(x.x == 0u));
}

uvec2 subtract64(uvec2 x, uvec2 y) {
    return add64(x, negate64(y));
}

// The 64-bit product of two signed words.
uvec2 multiply64(int x, int y) {
    int high, low;
    imulExtended(x, y, high, low);
    return uvec2(uint(low), uint(high));
}

// The nearest float32, ties to even. Computed with integers, because devices may round conversions in any
// direction.
float round_to_float(uvec2 x, bool is_signed) {
    bool negative = is_signed && int(x.y) < 0;
    if (negative) x = negate64(x);
    if ((x.x | x.y) == 0u) return 0.0;
    // Shift the highest set bit to bit 63: 24 bits of significand, 40 to be rounded away.
    int top = x.y != 0u ? 32 + findMSB(x.y) : findMSB(x.x);
    int shift = 63 - top;
    if (shift >= 32) x = uvec2(0u, x.x << (shift - 32));
    else if (shift > 0) x = uvec2(x.x << shift, (x.y << shift) | (x.x >> (32 - shift)));
    uint significand = x.y >> 8;
    uint rest = x.y & 0xFFu;
    bool up = rest > 0x80u || (rest == 0x80u && (x.x != 0u || (significand & 1u) != 0u));
    // The significand's leading one adds 1 to the exponent. So does a carry from rounding.
    uint bits = (uint(126 + top) << 23) + significand + uint(up);
    return uintBitsToFloat(bits | (negative ? 0x80000000u : 0u));
}
#endif
