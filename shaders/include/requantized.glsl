// Sums as quantized bytes: rounded half to even and clamped. An addition rounds in a quarter of the time
// that conversions take. The includer has OUTPUT_TYPE and include/units.glsl.
int out_zero = 0;

uint requantized(ivec4 sums, vec4 scales) {
    const bool SIGNED = (OUTPUT_TYPE & 16u) != 0u;
    const int LOW = SIGNED ? -128 : 0;
    uint bytes[4];
    [[unroll]] for (uint e = 0u; e < 4u; ++e) {
        precise float x = float(sums[e]) * scales[e];
        if (!HAS_EXACT_UNITS) x = roundEven(x);
        x = clamp(x, float(LOW - out_zero), float(LOW + 255 - out_zero));
        precise float shifted = x + 12582912.0;  // the last bits are those of the nearest whole number
        bytes[e] = (HAS_EXACT_UNITS ? floatBitsToUint(shifted) : uint(int(x))) + uint(out_zero);
    }
    return bytes[0] & 0xFFu | (bytes[1] & 0xFFu) << 8u | (bytes[2] & 0xFFu) << 16u | bytes[3] << 24u;
}
