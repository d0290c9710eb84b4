// Sums of products of signed bytes that lie packed in words. The includer enables
// GL_EXT_spirv_intrinsics.
const uint ONES = 0x01010101u;

// OpSDotKHR on packed words: capabilities DotProductInput4x8BitPackedKHR and DotProductKHR.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019],
                  id = 4450)
int packed_dot_product(uint x, uint y, spirv_literal uint format);

int dot_product(uint x, uint y) {
    return packed_dot_product(x, y, 0u);
}

int dot_product(uvec4 x, uvec4 y) {
    return dot_product(x.x, y.x) + dot_product(x.y, y.y) + dot_product(x.z, y.z) +
           dot_product(x.w, y.w);
}
