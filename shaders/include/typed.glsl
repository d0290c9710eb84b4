// Tensors of any data type, as bits (include/bits.glsl) and as numbers:
//
//   INPUT_TENSOR(x, binding, TYPE):  INPUT_BITS, and float x_float(at)
//   OUTPUT_TENSOR(y, binding, TYPE): OUTPUT_BITS, and y_store_float(at, value)
//
// Loading a float converts integers. Storing one rounds to float16, and truncates and saturates to
// integers.
#include "include/bits.glsl"
#include "include/units.glsl"
#include "include/float16.glsl"
#include "include/float_to_integer.glsl"

float number_of(uvec2 bits, uint type) {
    if (!IS_FLOAT(type)) return to_float(int(bits.x), IS_SIGNED(type));
    return BYTES_OF(type) == 2u ? half_to_float(bits.x) : uintBitsToFloat(bits.x);
}

uint bits_of(float x, uint type) {
    if (!IS_FLOAT(type)) return to_integer(x, type);
    return BYTES_OF(type) == 2u ? float_to_half(x) : floatBitsToUint(x);
}

#define INPUT_TENSOR(x, slot, TYPE) \
    INPUT_BITS(x, slot, TYPE) \
    float x##_float(uint at) { return number_of(x##_bits(at), TYPE); }

#define OUTPUT_TENSOR(y, slot, TYPE) \
    OUTPUT_BITS(y, slot, TYPE) \
    void y##_store_float(uint at, float value) { y##_store_bits(at, uvec2(bits_of(value, TYPE), 0u)); }
