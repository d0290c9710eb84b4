//@ op -
//@ variants OP: @OPERATOR
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define INPUTS 2
#define ATTRIBUTES uint scale; uint bias; uint attributes[5];
#include "include/elementwise.glsl"
#include "include/integers64.glsl"

// Operators on 64-bit integers as two words, wrapped. Operators on raw bits treat every type of this
// width as unsigned.
layout(constant_id = 6) const bool HAS_SCALE_BIAS = false;

const bool SIGNED = IS_SIGNED(A_TYPE);

bool is_negative(uvec2 x) {
    return SIGNED && int(x.y) < 0;
}

bool less(uvec2 x, uvec2 y) {
    return less64(x, y, SIGNED);
}

uvec2 maximum(uvec2 x, uvec2 y) {
    return less(x, y) ? y : x;
}

uvec2 minimum(uvec2 x, uvec2 y) {
    return less(y, x) ? y : x;
}

uvec2 magnitude64(uvec2 x) {
    return is_negative(x) ? negate64(x) : x;
}

uvec2 sign_of(uvec2 x) {
    return is_negative(x) ? uvec2(0xFFFFFFFFu) : uvec2(uint(!is_zero64(x)), 0u);
}

// Division by 0 gives all bits one. The lowest number divided by -1 wraps.
uvec2 quotient(uvec2 x, uvec2 y) {
    if (is_zero64(y)) return uvec2(0xFFFFFFFFu);
    uvec2 rest;
    uvec2 size = divide64(magnitude64(x), magnitude64(y), rest);
    return is_negative(x) != is_negative(y) ? negate64(size) : size;
}

// Division by 0 leaves the dividend.
uvec2 modulus(uvec2 x, uvec2 y) {
    if (is_zero64(y)) return x;
    uvec2 rest;
    divide64(magnitude64(x), magnitude64(y), rest);
    return is_negative(x) ? negate64(rest) : rest;
}

uvec2 floor_modulus(uvec2 x, uvec2 y) {
    uvec2 rest = modulus(x, y);
    bool signs_differ = !is_zero64(rest) && !is_zero64(y) && is_negative(rest) != is_negative(y);
    return signs_differ ? add64(rest, y) : rest;
}

uvec2 parameter(uint i) {
    return uvec2(attributes[2u * i], attributes[2u * i + 1u]);
}

uvec2 truth(bool x) {
    return uvec2(uint(x), 0u);
}

#define OPERATOR(name, expression) \
    uvec2 op_##name(uvec2 x, uvec2 y) { \
        return expression; \
    }

OPERATOR(identity, x)
OPERATOR(abs, magnitude64(x))
OPERATOR(negate, negate64(x))
OPERATOR(sign, sign_of(x))
OPERATOR(clip, minimum(parameter(1u), maximum(parameter(0u), x)))
OPERATOR(clip1, maximum(parameter(0u), minimum(x, parameter(1u))))
OPERATOR(bit_not, ~x)
OPERATOR(bit_count, uvec2(bitCount(x.x) + bitCount(x.y), 0u))

OPERATOR(add, add64(x, y))
OPERATOR(subtract, subtract64(x, y))
OPERATOR(multiply, multiply64(x, y))
OPERATOR(divide, quotient(x, y))
OPERATOR(modulus_truncate, modulus(x, y))
OPERATOR(modulus_floor, floor_modulus(x, y))
OPERATOR(max, maximum(x, y))
OPERATOR(min, minimum(x, y))
OPERATOR(bit_and, x & y)
OPERATOR(bit_or, x | y)
OPERATOR(bit_xor, x ^ y)
OPERATOR(bit_shift_left, y.y == 0u ? shift_left64(x, y.x) : uvec2(0u))
OPERATOR(bit_shift_right, y.y == 0u ? shift_right64(x, y.x) : uvec2(0u))
OPERATOR(logical_equals, truth(x == y))
OPERATOR(logical_greater_than, truth(less(y, x)))
OPERATOR(logical_less_than, truth(less(x, y)))
OPERATOR(logical_greater_than_or_equal, truth(!less(x, y)))
OPERATOR(logical_less_than_or_equal, truth(!less(y, x)))

#define NAMED(op) op_##op
#define CALL(op) NAMED(op)

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    if (HAS_SCALE_BIAS) {
        precise float shifted = round_to_float(a, SIGNED);
        shifted = shifted * uintBitsToFloat(scale) + uintBitsToFloat(bias);
        a = to_integer64(shifted, SIGNED);
    }
    return CALL(OP)(a, b);
}
