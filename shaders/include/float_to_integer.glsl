// float32 to an integer of up to 32 bits, and back. Numbers are truncated toward zero and saturated. NaN
// becomes 0. The result is extended to 32 bits.
#ifndef INCLUDED_FLOAT_TO_INTEGER
#define INCLUDED_FLOAT_TO_INTEGER
#include "include/float_bits.glsl"

uint to_integer(float x, uint type) {
    uint bits = 8u * BYTES_OF(type);
    if (bits < 32u) {
        float low = IS_SIGNED(type) ? -float(1u << (bits - 1u)) : 0.0;
        float inside = min(max(x, low), low + float((1u << bits) - 1u));
        return is_nan(x) ? 0u : uint(int(inside));
    }
    float size = magnitude(x);
    bool negative = sign_bit(x) != 0u;
    if (is_nan(x) || (negative && !IS_SIGNED(type))) return 0u;
    uint most = 0xFFFFFFFFu >> (32u - bits);
    if (IS_SIGNED(type)) most = (most >> 1) + uint(negative);
    uint whole = size < 4294967296.0 ? min(uint(size), most) : most;
    return negative ? 0u - whole : whole;
}

// The value of an element of an integer type.
int extended(uint bits, uint type) {
    int unused = 32 - 8 * int(BYTES_OF(type));
    return IS_SIGNED(type) ? int(bits << unused) >> unused : int(bits);
}

// The nearest float32. Only the sum rounds: devices may round conversions in any direction.
float to_float(int x, bool is_signed) {
    float high = is_signed ? float(x >> 16) : float(uint(x) >> 16);
    precise float sum = high * 65536.0 + float(x & 0xFFFF);
    return sum;
}

// x with ScaleBias applied, as an integer of the type.
int scaled_integer(int x, uint type, float scale, float bias) {
    precise float scaled = to_float(x, IS_SIGNED(type));
    scaled = scaled * scale + bias;
    return int(to_integer(scaled, type));
}
#endif
