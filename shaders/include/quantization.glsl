#include "include/float_pairs.glsl"
#include "include/float_to_integer.glsl"

// The nearest whole number, halves to even, clamped to +-1024. NaN becomes the lowest.
int whole_number(float x) {
    if (is_nan(x)) return -1024;
    if (!HAS_EXACT_UNITS) return int(clamp(rounded(x, true), -1024.0, 1024.0));
    precise float shifted = clamp(x, -1024.0, 1024.0) + 12582912.0;  // rounded to a whole number
    return floatBitsToInt(shifted) - 0x4B400000;
}

// A whole number plus the zero point, clamped to an 8-bit type.
uint quantized(int whole, int zero_point, uint type) {
    int low = IS_SIGNED(type) ? -128 : 0;
    return uint(clamp(whole + zero_point, low, low + 255));
}
