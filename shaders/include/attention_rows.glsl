// What the shaders for few rows without matrix units share. The includer defines EACH, the elements of a
// vector of 16 bytes, and includes attention.glsl.

// Four elements of a vector of eight, or all elements of a vector of four.
vec4 quarter(uvec4 x, uint n) {
    if (BYTES_OF(TYPE) == 4u) return uintBitsToFloat(x);
    uvec2 pair = n == 0u ? x.xy : x.zw;
    return vec4(halves_to_floats(pair.x), halves_to_floats(pair.y));
}

float power(float x) {
    return HAS_EXACT_UNITS ? exp2(x * LOG2_E) : exp_of(x);
}

#ifndef ROTATES
// Four elements of a row's query.
vec4 query_four(uint batch, uint head, uint row, uint element, uint step) {
    uint from = q_offset + batch * q_by[0] + (head * group + row / queries) * q_by[1] + row % queries * q_by[2]
                + element * step;
    return vec4(q_float(from), q_float(from + step), q_float(from + 2u * step), q_float(from + 3u * step));
}

// Where the record of a row and a part begins in the output: the undivided output, the maximum, the sum.
uint record_of(uint batch, uint head, uint row, uint part, uint value_size) {
    uint query_head = head * group + row / queries;
    return y_offset + (((batch * key_heads * group + query_head) * queries + row % queries) * parts + part)
                      * (value_size + 2u);
}
#endif
