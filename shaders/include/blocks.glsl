// Blocks of UNIT bytes: an element, or several that are neighbours in both tensors. They move as bits.
// The includer includes typed.glsl and defines UNIT. This file declares x and y.
INPUT_TENSOR(x, 0, UNIT)
OUTPUT_TENSOR(y, 2, UNIT)

uvec4 load_block(uint at) {
    if (UNIT == 16u) return x_vectors[at];
    return uvec4(x_bits(at), 0u, 0u);
}

void store_block(uint at, uvec4 block) {
    if (UNIT == 16u) y_vectors[at] = block;
    else y_store_bits(at, block.xy);
}
