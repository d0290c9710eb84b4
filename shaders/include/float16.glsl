// float16 <-> float32 by integer code, because packHalf2x16 may round in any direction, and devices may
// flush denormals. Widening is exact, narrowing rounds to nearest even. Devices with HAS_EXACT_UNITS do
// the same by themselves. Shaders that define MAY_BE_BFLOAT16 take BFLOAT16 in the place of float16 where
// OF_BFLOAT16 says so. rounded_to_half is of float16 only.
#ifndef INCLUDED_FLOAT16
#define INCLUDED_FLOAT16
#ifndef HAS_EXACT_UNITS
#define HAS_EXACT_UNITS false
#endif

#ifdef MAY_BE_BFLOAT16
layout(constant_id = 22) const bool OF_BFLOAT16 = false;
#define IF_BFLOAT16(value) if (OF_BFLOAT16) return value;
#else
#define IF_BFLOAT16(value)
#endif

float half_to_float(uint bits) {
    IF_BFLOAT16(uintBitsToFloat(bits << 16))
    if (HAS_EXACT_UNITS) return unpackHalf2x16(bits).x;
    uint magnitude = (bits & 0x7FFFu) << 13;
    uint result = magnitude + (112u << 23);
    if (magnitude >= 0x0F800000u) result += 112u << 23;  // infinity or NaN
    // A denormal is computed as x + 2^-14 - 2^-14, where 2^-14 is the smallest normal number.
    precise float small = uintBitsToFloat(magnitude + (113u << 23)) - 6.103515625e-5;
    if (magnitude < 0x00800000u) result = floatBitsToUint(small);
    return uintBitsToFloat(result | ((bits & 0x8000u) << 16));
}

uint float_to_half(float x) {
#ifdef MAY_BE_BFLOAT16
    if (OF_BFLOAT16) {
        uint word = floatBitsToUint(x);
        bool is_number = (word & 0x7FFFFFFFu) <= 0x7F800000u;
        return is_number ? word + 0x7FFFu + (word >> 16 & 1u) >> 16 : 0x7FC0u;
    }
#endif
    if (HAS_EXACT_UNITS) return packHalf2x16(vec2(x, 0.0));
    uint bits = floatBitsToUint(x);
    uint magnitude = bits & 0x7FFFFFFFu;
    // A carry from rounding passes into the exponent, up to infinity.
    uint result = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    // The sum with 0.5 rounds to multiples of 2^-24, the unit of denormals.
    precise float sum = uintBitsToFloat(magnitude) + 0.5;
    if (magnitude < 0x38800000u) result = floatBitsToUint(sum) - 0x3F000000u;
    if (magnitude >= 0x477FF000u) result = 0x7C00u;  // from 65520 on
    if (magnitude > 0x7F800000u) result = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
    return result | ((bits >> 16) & 0x8000u);
}

// Two in a word, the first in the lower half.
vec2 halves_to_floats(uint word) {
    IF_BFLOAT16(uintBitsToFloat(uvec2(word << 16, word & 0xFFFF0000u)))
    if (HAS_EXACT_UNITS) return unpackHalf2x16(word);
    return vec2(half_to_float(word & 0xFFFFu), half_to_float(word >> 16));
}

uint floats_to_halves(float low, float high) {
    IF_BFLOAT16(float_to_half(low) | float_to_half(high) << 16)
    if (HAS_EXACT_UNITS) return packHalf2x16(vec2(low, high));
    return float_to_half(low) | float_to_half(high) << 16;
}

uvec2 floats_to_halves(vec4 x) { return uvec2(floats_to_halves(x.x, x.y), floats_to_halves(x.z, x.w)); }

// The nearest float16, as a float. Compilers remove a pair of packing and unpacking, unless something
// happens to the bits between: dispatches have one workgroup along z, which compilers do not know.
float rounded_to_half(float x) {
    if (HAS_EXACT_UNITS) return unpackHalf2x16(packHalf2x16(vec2(x, 0.0)) ^ (gl_NumWorkGroups.z - 1u)).x;
    uint bits = floatBitsToUint(x), magnitude = bits & 0x7FFFFFFFu;
    uint result = (magnitude + 0xFFFu + (magnitude >> 13 & 1u)) & ~0x1FFFu;
    precise float small = uintBitsToFloat(magnitude) + 0.5;  // rounds to multiples of 2^-24
    small -= 0.5;
    if (magnitude < 0x38800000u) result = floatBitsToUint(small);
    if (magnitude >= 0x477FF000u) result = 0x7F800000u;
    if (magnitude > 0x7F800000u) result = magnitude | 0x00400000u;
    return uintBitsToFloat(result | bits & 0x80000000u);
}

// Both take the name of a uint[] buffer member. A store changes only its own bits, so neighbours in one
// word do not race.
#define LOAD_HALF(words, index) \
    half_to_float((words[(index) / 2u] >> ((index) % 2u * 16u)) & 0xFFFFu)
#define STORE_HALF(words, index, bits) \
    { \
        atomicAnd(words[(index) / 2u], ~(0xFFFFu << ((index) % 2u * 16u))); \
        atomicOr(words[(index) / 2u], (bits) << ((index) % 2u * 16u)); \
    }
#endif
