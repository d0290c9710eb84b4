//@ op -
//@ variants OP: @OPERATOR
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define INPUTS 2
#define ATTRIBUTES uint scale; uint bias; uint attributes[5];
#include "include/elementwise.glsl"
#include "include/float_to_integer.glsl"

// Operators on integers of 8, 16 and 32 bits, computed in 32 bits and wrapped. Operators on raw bits
// treat every type of these widths as unsigned.
layout(constant_id = 6) const bool HAS_SCALE_BIAS = false;

const bool SIGNED = IS_SIGNED(A_TYPE);

bool less(int x, int y) {
    return SIGNED ? x < y : uint(x) < uint(y);
}

int maximum(int x, int y) {
    return less(x, y) ? y : x;
}

int minimum(int x, int y) {
    return less(y, x) ? y : x;
}

int magnitude(int x) {
    return SIGNED ? max(x, int(0u - uint(x))) : x;
}

// Numbers of at most 16 bits are divided as floats, because a GPU divides integers slowly. A device's
// quotient may be a little below a whole number, so the dividend is made a little larger.
const bool NARROW = BYTES_OF(A_TYPE) < 4u;

float small_float(int x) {
    precise float result = intBitsToFloat(0x4B400000 + x) - 12582912.0;
    return result;
}

int narrow_quotient(int x, float divisor) {
    return int(small_float(x) * 1.000003814697265625 / divisor);
}

// Division by 0 gives all bits one. The lowest number divided by -1 wraps.
int quotient(int x, int y) {
    if (NARROW) {
        float divisor = small_float(y);
        int result = narrow_quotient(x, divisor);
        return divisor == 0.0 ? -1 : result;
    }
    if (y == 0) return -1;
    uint size = uint(magnitude(x)) / uint(magnitude(y));
    return int(SIGNED && (x ^ y) < 0 ? 0u - size : size);
}

// Division by 0 leaves the dividend.
int modulus(int x, int y) {
    if (NARROW) {
        float divisor = small_float(y);
        int result = x - narrow_quotient(x, divisor) * y;
        return divisor == 0.0 ? x : result;
    }
    if (y == 0) return x;
    uint size = uint(magnitude(x)) % uint(magnitude(y));
    return int(SIGNED && x < 0 ? 0u - size : size);
}

int floor_modulus(int x, int y) {
    if (NARROW) {
        float half_up = intBitsToFloat((y & 0x80000000) | 0x3F000000);
        int result = x - int(floor((small_float(x) + half_up) / small_float(y))) * y;
        return y == 0 ? x : result;
    }
    int rest = modulus(x, y);
    return SIGNED && rest != 0 && y != 0 && (rest ^ y) < 0 ? rest + y : rest;
}

int power(int x, int y) {
    if (IS_SIGNED(B_TYPE) && y < 0) {
        if (x == 1 || (SIGNED && x == -1)) return (y & 1) != 0 ? x : 1;
        return 0;
    }
    uint result = 1u;
    uint factor = uint(x);
    if (BYTES_OF(B_TYPE) == 1u) {
        [[unroll]] for (int i = 0; i < 8; ++i) {
            result *= (y >> i & 1) != 0 ? factor : 1u;
            factor *= factor;
        }
        return int(result);
    }
    for (uint rest = uint(y); rest != 0u; rest >>= 1) {
        if ((rest & 1u) != 0u) result *= factor;
        factor *= factor;
    }
    return int(result);
}

// Rounds toward zero.
int mean(int x, int y) {
    int whole = x & y;
    int difference = x ^ y;
    if (!SIGNED) return int(uint(whole) + (uint(difference) >> 1));
    whole += difference >> 1;
    return whole + (whole < 0 ? difference & 1 : 0);
}

int parameter(uint i) {
    return int(attributes[i]);
}

const int WIDTH = 8 * int(BYTES_OF(A_TYPE));

// The third attribute is the threshold negated.
int shrunk(int x) {
    if (less(parameter(1u), x)) return x - parameter(0u);
    return less(x, parameter(2u)) ? x + parameter(0u) : 0;
}

#define OPERATOR(name, expression) \
    int op_##name(int x, int y) { \
        return expression; \
    }

OPERATOR(identity, x)
OPERATOR(abs, magnitude(x))
OPERATOR(negate, int(0u - uint(x)))
OPERATOR(sign, SIGNED ? clamp(x, -1, 1) : int(min(uint(x), 1u)))
OPERATOR(clip, minimum(parameter(1u), maximum(parameter(0u), x)))
OPERATOR(clip1, maximum(parameter(0u), minimum(x, parameter(1u))))
OPERATOR(threshold, maximum(x, parameter(0u)))
OPERATOR(bit_not, ~x)
OPERATOR(bit_count, bitCount(x))
OPERATOR(logical_not, int(x == 0))

OPERATOR(add, x + y)
OPERATOR(subtract, x - y)
OPERATOR(multiply, int(uint(x) * uint(y)))
OPERATOR(divide, quotient(x, y))
OPERATOR(modulus_truncate, modulus(x, y))
OPERATOR(modulus_floor, floor_modulus(x, y))
OPERATOR(pow, power(x, y))
OPERATOR(mean, mean(x, y))
OPERATOR(difference_square, int(uint(x - y) * uint(x - y)))
OPERATOR(max, maximum(x, y))
OPERATOR(min, minimum(x, y))
OPERATOR(bit_and, x & y)
OPERATOR(bit_or, x | y)
OPERATOR(bit_xor, x ^ y)
OPERATOR(bit_shift_left, uint(y) < uint(WIDTH) ? x << y : 0)
OPERATOR(bit_shift_right, uint(y) < uint(WIDTH) ? int(uint(x) >> y) : 0)
OPERATOR(logical_and, int(x != 0 && y != 0))
OPERATOR(logical_or, int(x != 0 || y != 0))
OPERATOR(logical_xor, int((x != 0) != (y != 0)))
OPERATOR(logical_equals, int(x == y))
OPERATOR(logical_greater_than, int(less(y, x)))
OPERATOR(logical_less_than, int(less(x, y)))
OPERATOR(logical_greater_than_or_equal, int(!less(x, y)))
OPERATOR(logical_less_than_or_equal, int(!less(y, x)))
OPERATOR(parameterized_relu, less(x, 0) ? int(uint(x) * uint(y)) : x)
OPERATOR(relu, maximum(x, 0))
OPERATOR(shrink, shrunk(x))

#define NAMED(op) op_##op
#define CALL(op) NAMED(op)

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    int x = int(a.x);
    if (HAS_SCALE_BIAS) x = scaled_integer(x, A_TYPE, uintBitsToFloat(scale), uintBitsToFloat(bias));
    return uvec2(CALL(OP)(x, int(b.x)), 0u);
}
