// Tensors x and y as blocks of UNIT bytes, which move as bits. A block is an element, or several that are
// neighbours in both tensors. The includer includes typed.glsl and defines UNIT.
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
