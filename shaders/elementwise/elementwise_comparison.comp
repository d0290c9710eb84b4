//@ op -
//@ variants OP: @OPERATOR
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define INPUTS 2
#define ATTRIBUTES
#include "include/elementwise.glsl"
#include "include/float_bits.glsl"

// Operators that need only the order of FLOAT32 and FLOAT16 numbers, which follows from their bits. The
// bits of a FLOAT16 are the upper half of the word.
const uint INFINITE = BYTES_OF(A_TYPE) == 2u ? 0x7C000000u : 0x7F800000u;

bool less_or_equal(uint x, uint y) {
    return rank_of(x) <= rank_of(y) && rank_of(x) >= -int(INFINITE) && rank_of(y) <= int(INFINITE);
}

bool equal(uint x, uint y) {
    return rank_of(x) == rank_of(y) && (x & 0x7FFFFFFFu) <= INFINITE;
}

#define OPERATOR(name, expression) \
    uint op_##name(uint x, uint y) { \
        return uint(expression); \
    }

OPERATOR(max, maximum(x, y, INFINITE))
OPERATOR(min, minimum(x, y, INFINITE))
OPERATOR(logical_equals, equal(x, y))
OPERATOR(logical_greater_than, less(y, x, INFINITE))
OPERATOR(logical_less_than, less(x, y, INFINITE))
OPERATOR(logical_greater_than_or_equal, less_or_equal(y, x))
OPERATOR(logical_less_than_or_equal, less_or_equal(x, y))

#define NAMED(op) op_##op
#define CALL(op) NAMED(op)

uvec2 compute(uvec2 a, uvec2 b, uvec2 c) {
    const uint shift = BYTES_OF(A_TYPE) == 2u ? 16u : 0u;
    uint x = CALL(OP)(a.x << shift, b.x << shift);
    return uvec2(IS_FLOAT(OUT_TYPE) ? x >> shift : x, 0u);
}
