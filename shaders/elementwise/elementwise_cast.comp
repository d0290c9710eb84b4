//@ op DML_OPERATOR_CAST
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define INPUTS 1
#define ATTRIBUTES
#include "include/elementwise.glsl"
#include "include/integers64.glsl"
#include "include/float16.glsl"
#include "include/float_to_integer.glsl"

// Converts any type to any other. FLOAT64 is converted by integer code, so every device can do it, with
// the same bits. Floats round to nearest even. Floats become integers by truncation and
// saturation, and NaN becomes 0. Integers wrap when they are narrowed.

// size * 2^exponent.
struct Number {
    bool negative;
    bool is_nan;
    bool is_infinite;
    uvec2 size;
    int exponent;
};

int fraction_bits(uint type) {
    return BYTES_OF(type) == 8u ? 52 : BYTES_OF(type) == 4u ? 23 : 10;
}

int exponent_bits(uint type) {
    return BYTES_OF(type) == 8u ? 11 : BYTES_OF(type) == 4u ? 8 : 5;
}

Number number_of(uvec2 bits, uint type) {
    int width = 8 * int(BYTES_OF(type));
    Number x = Number(false, false, false, bits, 0);
    if (!IS_FLOAT(type)) {
        if (!IS_SIGNED(type)) return x;
        if (width < 64) bits.y = uint(int(bits.x) >> 31);
        x.negative = int(bits.y) < 0;
        x.size = x.negative ? negate64(bits) : bits;
        return x;
    }
    int fraction = fraction_bits(type);
    int most = (1 << exponent_bits(type)) - 1;
    uvec2 above = shift_right64(bits, uint(fraction));
    int field = int(above.x) & most;
    x.negative = (above.x >> exponent_bits(type) & 1u) != 0u;
    x.size = shift_right64(shift_left64(bits, uint(64 - fraction)), uint(64 - fraction));
    x.is_nan = field == most && !is_zero64(x.size);
    x.is_infinite = field == most && is_zero64(x.size);
    if (field != 0) x.size = add64(x.size, shift_left64(uvec2(1u, 0u), uint(fraction)));
    x.exponent = max(field, 1) - most / 2 - fraction;
    return x;
}

uvec2 integer_of(Number x, uint type) {
    int width = 8 * int(BYTES_OF(type));
    bool is_signed = IS_SIGNED(type);
    if (!IS_FLOAT(A_TYPE)) return x.negative ? negate64(x.size) : x.size;
    uvec2 most = shift_right64(uvec2(0xFFFFFFFFu), uint(64 - width + int(is_signed)));
    if (is_signed && x.negative) most = add64(most, uvec2(1u, 0u));
    if (x.is_nan || (x.negative && !is_signed)) return uvec2(0u);
    uvec2 size = most;
    if (!x.is_infinite && (is_zero64(x.size) || top_bit64(x.size) + x.exponent < width)) {
        size = x.exponent < 0 ? shift_right64(x.size, uint(-x.exponent))
                              : shift_left64(x.size, uint(x.exponent));
        if (less64(most, size, false)) size = most;
    }
    return x.negative ? negate64(size) : size;
}

uvec2 float_of(Number x, uint type) {
    int fraction = fraction_bits(type);
    int most = (1 << exponent_bits(type)) - 1;
    uvec2 sign = shift_left64(uvec2(uint(x.negative), 0u), uint(fraction + exponent_bits(type)));
    uvec2 infinite = shift_left64(uvec2(uint(most), 0u), uint(fraction));
    if (x.is_nan) return add64(infinite, shift_left64(uvec2(1u, 0u), uint(fraction - 1)));
    if (x.is_infinite) return add64(sign, infinite);
    if (is_zero64(x.size)) return sign;
    // The exponent field of the result, and how many digits are dropped.
    int field = max(top_bit64(x.size) + x.exponent + most / 2, 1);
    if (field >= most) return add64(sign, infinite);
    int drop = field - most / 2 - fraction - x.exponent;
    uvec2 kept = x.size;
    if (drop <= 0) {
        kept = shift_left64(kept, uint(-drop));
    } else {
        kept = shift_right64(x.size, uint(drop));
        // The dropped digits as a fraction of 2^64, to compare with one half.
        uvec2 rest = drop < 64 ? shift_left64(x.size, uint(64 - drop)) : x.size;
        if (drop > 64) rest = uvec2(0u);
        bool above = less64(uvec2(0u, 0x80000000u), rest, false);
        bool tie = rest == uvec2(0u, 0x80000000u);
        if (above || (tie && (kept.x & 1u) != 0u)) kept = add64(kept, uvec2(1u, 0u));
    }
    // The significand's leading one adds 1 to the exponent field. So does a carry from rounding.
    kept = add64(kept, shift_left64(uvec2(uint(field - 1), 0u), uint(fraction)));
    return add64(sign, kept);
}

bool has_float64() {
    if (A_BYTES == 8u) if (IS_FLOAT(A_TYPE)) return true;
    if (OUT_BYTES == 8u) return IS_FLOAT(OUT_TYPE);
    return false;
}

// The nearest float32 of a FLOAT32, a FLOAT16 or an integer.
float float_of(uvec2 bits) {
    if (IS_FLOAT(A_TYPE)) return A_BYTES == 2u ? half_to_float(bits.x) : uintBitsToFloat(bits.x);
    if (A_BYTES == 8u) return round_to_float(bits, IS_SIGNED(A_TYPE));
    return A_BYTES == 4u ? to_float(int(bits.x), IS_SIGNED(A_TYPE)) : float(int(bits.x));
}

uvec2 short_cast(uvec2 bits) {
    if (IS_FLOAT(OUT_TYPE)) {
        float x = float_of(bits);
        return uvec2(OUT_BYTES == 2u ? float_to_half(x) : floatBitsToUint(x), 0u);
    }
    if (IS_FLOAT(A_TYPE)) {
        float x = float_of(bits);
        return OUT_BYTES == 8u ? to_integer64(x, IS_SIGNED(OUT_TYPE)) : uvec2(to_integer(x, OUT_TYPE), 0u);
    }
    if (A_BYTES < 8u) if (IS_SIGNED(A_TYPE)) return widen(int(bits.x));
    return bits;
}

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    if (!has_float64()) return short_cast(a);
    Number x = number_of(a, A_TYPE);
    if (IS_FLOAT(OUT_TYPE)) return float_of(x, OUT_TYPE);
    return integer_of(x, OUT_TYPE);
}
