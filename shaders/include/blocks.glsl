// Blocks of UNIT bytes, which move as bits: elements, or several that lie side by side in all that moves
// them. Include typed.glsl first and declare UNIT. Declares x and y.
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
