// Square roots by the device's inversesqrt, which is accurate to 2 ulp; sqrt may be less accurate.
#ifndef INCLUDED_ROOTS
#define INCLUDED_ROOTS
#include "include/float_pairs.glsl"

// The square root to an ulp.
float near_root(float x) {
    float inverse = inversesqrt(x + 1.0e-37);  // also for 0
    float root = x * inverse;
    return root + (x - root * root) * (0.5 * inverse);
}

// The square root to hardly more than half an ulp, also of denormals.
float sqrt_of(float x) {
    if (HAS_IEEE_UNITS) return sqrt(x);
    uint bits = floatBitsToUint(x);
    // Scaled so that the rest is not denormal, and the square of the root is finite.
    bool small = bits < 0x10000000u;
    float scaled = x * 8.507059173023462e+37 * 16777216.0;
    if (bits < 0x00800000u) scaled = float(bits) * 2.0;
    if (!small) scaled = x * 0.25;
    float inverse = inversesqrt(scaled);
    precise float root = scaled * inverse;
    root = root + rest_of(scaled, root, root) * (0.5 * inverse);
    float result = root * (small ? 2.6469779601696886e-23 : 2.0);
    if (bits - 1u >= 0x7F7FFFFFu)  // 0, infinite, negative or NaN
        result = is_zero(x) || bits == 0x7F800000u ? x : NOT_A_NUMBER;
    return result;
}
#endif
