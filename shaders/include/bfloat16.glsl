// Numbers of BFLOAT16, which are the upper halves of FLOAT32. The build puts BFLOAT16 in the place of the
// FLOAT16 elements of matrices (kompute_dml/toolchain/bfloat16.py).
#include "include/float_bits.glsl"

float bfloat16_to_float(uint bits) {
    return uintBitsToFloat(bits << 16);
}

// Rounds to the nearest, ties to even. NaN stays one.
uint float_to_bfloat16(float x) {
    uint bits = floatBitsToUint(x);
    return is_nan(x) ? 0x7FC0u : bits + 0x7FFFu + (bits >> 16 & 1u) >> 16;
}
