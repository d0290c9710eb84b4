// Indices along an axis. The includer includes typed.glsl and defines INDEX_TYPE, the code of their type.
// The size is added to a negative index, once. The sign of a 64-bit index is its bit 63.
struct Index {
    uint at;      // clamped to the axis
    bool inside;  // whether the index lay inside the axis
};

Index index_along(uvec2 bits, uint size) {
    bool negative = false;
    if (IS_SIGNED(INDEX_TYPE)) {
        if (BYTES_OF(INDEX_TYPE) == 4u) bits.y = uint(int(bits.x) >> 31);
        negative = int(bits.y) < 0;
    }
    if (negative) {
        uint back = 0u - bits.x;  // the distance from the end, if below 2^32
        bool inside = bits.y == 0xFFFFFFFFu && back != 0u && back <= size;
        return Index(inside ? size - back : 0u, inside);
    }
    bool inside = bits.y == 0u && bits.x < size;
    return Index(inside ? bits.x : size - 1u, inside);
}
