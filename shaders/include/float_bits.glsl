// Properties of a float32, computed from its bits. Devices may read denormals as zero, and need not keep
// NaN or the sign of zero in arithmetic and comparisons.
#ifndef FLOAT_BITS
#define FLOAT_BITS

// The device's fma rounds once, its conversions of float16 are IEEE's, and its rounding functions keep
// denormals, NaN and signs.
#ifndef HAS_EXACT_UNITS
#define HAS_EXACT_UNITS false
#endif

// The device's quotients, sqrt and rounding functions are IEEE's. This is a separate constant: glslang 15
// writes || and && of specialization constants in an order that drivers refuse.
#ifndef HAS_IEEE_UNITS
#define HAS_IEEE_UNITS false
#endif

#define NOT_A_NUMBER uintBitsToFloat(0x7FC00000u)

uint magnitude_bits(float x) {
    return floatBitsToUint(x) & 0x7FFFFFFFu;
}

uint sign_bit(float x) {
    return floatBitsToUint(x) & 0x80000000u;
}

float magnitude(float x) {
    return uintBitsToFloat(magnitude_bits(x));
}

float with_sign(float x, uint sign) {
    return uintBitsToFloat(magnitude_bits(x) | sign);
}

float negated(float x) {
    return uintBitsToFloat(floatBitsToUint(x) ^ 0x80000000u);
}

float infinity(uint sign) {
    return uintBitsToFloat(0x7F800000u | sign);
}

bool is_nan(float x) {
    return magnitude_bits(x) > 0x7F800000u;
}

bool is_infinite(float x) {
    return magnitude_bits(x) == 0x7F800000u;
}

bool is_zero(float x) {
    return magnitude_bits(x) == 0u;
}

// The order of numbers by their bits. A float16 is the upper half of the word. ``infinite`` is the bits
// of infinity. Ranks are integers in that order, the same for -0 and 0:
int rank_of(uint bits) {
    int sign = int(bits) >> 31;
    return (int(bits) & 0x7FFFFFFF ^ sign) - sign;
}

// Keys are unsigned, with -0 below 0:
uint key_of(uint bits) {
    return bits ^ uint(int(bits) >> 31) & 0x7FFFFFFFu;
}

// The ranks of NaN lie beyond those of the infinities.
bool less(uint x, uint y, uint infinite) {
    return rank_of(x) < rank_of(y) && rank_of(x) >= -int(infinite) && rank_of(y) <= int(infinite);
}

// NaN wins: its keys are above that of infinity, or below that of -infinity.
uint maximum(uint x, uint y, uint infinite) {
    return key_of(x) - ~infinite < key_of(y) - ~infinite ? y : x;
}

uint minimum(uint x, uint y, uint infinite) {
    return infinite - key_of(x) < infinite - key_of(y) ? y : x;
}

int rank_of(float x) {
    return rank_of(floatBitsToUint(x));
}

bool less(float x, float y) {
    return less(floatBitsToUint(x), floatBitsToUint(y), 0x7F800000u);
}

float maximum(float x, float y) {
    return uintBitsToFloat(maximum(floatBitsToUint(x), floatBitsToUint(y), 0x7F800000u));
}

float minimum(float x, float y) {
    return uintBitsToFloat(minimum(floatBitsToUint(x), floatBitsToUint(y), 0x7F800000u));
}

// Mantissa in [1, 2) and exponent of |x| > 0, also for denormals. x is not NaN.
float split(float x, out int exponent) {
    uint bits = magnitude_bits(x);
    exponent = -127;
    if (bits < 0x800000u) {
        bits = floatBitsToUint(float(bits));
        exponent = -149 - 127;
    }
    exponent += int(bits >> 23);
    return uintBitsToFloat((bits & 0x7FFFFFu) | 0x3F800000u);
}

// x * 2^exponent for 0 or a normal x > 0 and any exponent. Denormals are rounded to nearest. x may be
// rounded from x + beyond: the sign of ``beyond`` decides ties, which go to even if it is 0.
float scaled(float x, int exponent, float beyond) {
    uint bits = floatBitsToUint(x);
    if (bits == 0u) return x;
    int field = int(bits >> 23) + exponent;
    if (field >= 255) return infinity(0u);
    if (field > 0) return uintBitsToFloat((bits & 0x7FFFFFu) | (uint(field) << 23));
    if (field < -24) return 0.0;
    uint significand = (bits & 0x7FFFFFu) | 0x800000u;
    uint shift = uint(1 - field);
    uint kept = significand >> shift;
    uint rest = significand & ((1u << shift) - 1u);
    uint tie = 1u << (shift - 1u);
    bool tie_goes_up = beyond > 0.0 || (beyond == 0.0 && (kept & 1u) != 0u);
    return uintBitsToFloat(kept + uint(rest > tie || (rest == tie && tie_goes_up)));
}

float truncated(float x) {
    if (HAS_EXACT_UNITS) return trunc(x);
    if (HAS_IEEE_UNITS) return trunc(x);
    uint bits = floatBitsToUint(x);
    uint field = (bits >> 23) & 0xFFu;
    if (field < 127u) return uintBitsToFloat(bits & 0x80000000u);
    if (field >= 150u) return x;
    return uintBitsToFloat(bits & ~(0x7FFFFFu >> (field - 127u)));
}

float floored(float x) {
    if (HAS_EXACT_UNITS) return floor(x);
    if (HAS_IEEE_UNITS) return floor(x);
    float whole = truncated(x);
    return is_nan(x) || !less(x, whole) ? whole : whole - 1.0;
}

float ceiled(float x) {
    if (HAS_EXACT_UNITS) return ceil(x);
    if (HAS_IEEE_UNITS) return ceil(x);
    return negated(floored(negated(x)));
}

// The nearest whole number. Halves go to the even one, or away from zero.
float rounded(float x, bool halves_to_even) {
    if (HAS_EXACT_UNITS) {
        if (halves_to_even) return roundEven(x);
    }
    if (HAS_IEEE_UNITS) {
        if (halves_to_even) return roundEven(x);
    }
    float whole = truncated(x);
    float rest = magnitude(x - whole);
    bool up = rest > 0.5 || (rest == 0.5 && (!halves_to_even || mod(whole, 2.0) != 0.0));
    if (!up || magnitude_bits(x) >= 0x4B000000u) return whole;
    return with_sign(magnitude(whole) + 1.0, sign_bit(x));
}

#endif
