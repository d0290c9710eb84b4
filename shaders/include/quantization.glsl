#include "include/float_pairs.glsl"
#include "include/float_to_integer.glsl"

// A whole number plus the zero point, clamped to an 8-bit type; NaN becomes the lowest.
uint quantized(float whole, int zero_point, uint type) {
    int low = IS_SIGNED(type) ? -128 : 0;
    float shifted = is_nan(whole) ? -1024.0 : clamp(whole, -1024.0, 1024.0);
    return uint(clamp(int(shifted) + zero_point, low, low + 255));
}
