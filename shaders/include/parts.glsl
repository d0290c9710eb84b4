// Copies between two layouts, part by part. A part spans one to three dimensions. RANK further dimensions
// count the parts. For each of these, ``below`` is the number of parts in the dimensions after it. The
// offset of a part is the sum of part / below[d] * steps[d] modulo 2^32, where a step is the dimension's
// stride minus size times stride of the next dimension. So no division depends on another. The includer may
// define a smaller MOST_RANK, which leaves room for PARTS_FIELDS.
#ifndef MOST_RANK
#define MOST_RANK 7
#define PARTS_FIELDS
#endif
layout(constant_id = 1) const uint RANK = 0u;

layout(push_constant) uniform Push {
    uint in_offset;
    uint out_offset;
    uint count;
    uint sizes[4];
    uint in_strides[2];
    uint out_strides[2];
    uint below[MOST_RANK];
    uint in_steps[MOST_RANK];
    uint out_steps[MOST_RANK];
    PARTS_FIELDS
};

// Where a part begins in the input and in the output.
uvec2 part_offsets(uint part) {
    uvec2 at = uvec2(in_offset, out_offset);
    [[unroll]] for (uint d = 0u; d < RANK; ++d)
        at += part / below[d] * uvec2(in_steps[d], out_steps[d]);
    return at;
}

// Whether all parts are aligned to vectors, and the first strides are whole vectors.
bool is_aligned() {
    uint any = in_offset | out_offset;
    for (uint i = 0u; i < 2u; ++i) any |= in_strides[i] | out_strides[i];
    [[unroll]] for (uint d = 0u; d < RANK; ++d) any |= in_steps[d] | out_steps[d];
    return any % PER_VECTOR == 0u;
}
