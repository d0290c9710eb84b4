//@ op DML_OPERATOR_ELEMENT_WISE_POW DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW
//@ variants OP: pow constant_pow square cube
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define TABULATED
#include "include/elementwise_float.glsl"

// Powers of bytes, for large tensors. A table holds all possible results, in rows of 256 bytes.
#if defined(OP_pow)
// Powers of odd numbers repeat after 64 exponents. Powers of even numbers are 0 from the eighth on. So
// the first rows serve all exponents from 0 on. Two more rows serve negative exponents, even and odd.
const uint WHOLE_ROWS = 72u;
shared uint s_table[64u * (WHOLE_ROWS + 2u)];
#else
shared uint s_table[64u];
#endif

#define NAMED(op) op_##op
#define CALL(op) NAMED(op)

float compute(float x, float y) {
    return CALL(OP)(x, y);
}

uint byte_of(uint word, uint k) {
    return bitfieldExtract(word, int(8u * k), 8);
}

uint word_of(uvec4 x) {
    x &= 0xFFu;
    return x.x | x.y << 8 | x.z << 16 | x.w << 24;
}

// The entry is the lowest byte. The mask is free where shifts are modulo 32 anyway.
uint found(uint at) {
    return s_table[at / 4u] >> (8u * at & 31u);
}

#if defined(OP_pow)
// Each invocation computes four columns of some rows.
void fill_table() {
    uint column = gl_LocalInvocationID.x % 64u, row = gl_LocalInvocationID.x / 64u;
    uint rows = gl_WorkGroupSize.x / 64u;
    uvec4 x, power = uvec4(1u), step = uvec4(1u), below;
    [[unroll]] for (uint k = 0u; k < 4u; ++k) {
        int base = extended(4u * column + k, A_TYPE);
        if (HAS_SCALE_BIAS)
            base = scaled_integer(base, A_TYPE, uintBitsToFloat(scale), uintBitsToFloat(bias));
        x[k] = uint(base);
        below[k] = base == 1 ? 1u : base != -1 ? 0u : row == 0u ? 1u : 255u;
    }
    for (uint i = 0u; i < row; ++i) power *= x;
    for (uint i = 0u; i < rows; ++i) step *= x;
    if (row < 2u) s_table[64u * (WHOLE_ROWS + row) + column] = word_of(below);
    for (; row < WHOLE_ROWS; row += rows) {
        s_table[64u * row + column] = word_of(power);
        power *= step;
    }
}

uint rows_of(uint exponents) {
    uint signs = exponents & 0x80808080u;
    uint below = 0u;
    uint row = exponents & 0x7F7F7F7Fu | signs >> 1;
    if (IS_SIGNED(B_TYPE)) {
        below = (signs >> 7) * 255u;
        row = exponents & ~(below & 0xFEFEFEFEu) | below & WHOLE_ROWS * 0x01010101u;
    }
    uint beyond = row + (128u - WHOLE_ROWS) * 0x01010101u & 0x80808080u & ~below;
    return row ^ beyond >> 1;
}

uint looked_up(uint a, uint b) {
    uint rows = rows_of(b);
    uvec4 results;
    [[unroll]] for (uint k = 0u; k < 4u; ++k)
        results[k] = found(byte_of(rows, k) << 8 | byte_of(a, k));
    return word_of(results);
}
#else
void fill_table() {
    uint i = gl_LocalInvocationID.x;
    if (i < 64u) s_table[i] = 0u;
    barrier();
    for (; i < 256u; i += gl_WorkGroupSize.x) {
        uint result = compute(uvec2(extended(i, A_TYPE), 0u), uvec2(0u), uvec2(0u)).x;
        atomicOr(s_table[i / 4u], (result & 0xFFu) << 8u * (i % 4u));
    }
}

uint looked_up(uint a, uint b) {
    uvec4 results;
    [[unroll]] for (uint k = 0u; k < 4u; ++k) results[k] = found(byte_of(a, k));
    return word_of(results);
}
#endif
