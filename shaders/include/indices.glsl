// What an index means along an axis. INDEX_TYPE is the code of its data type; include typed.glsl first.
// A negative index counts from the end, once. The sign of 64-bit indices is their bit 63.
struct Index {
    uint at;      // clamped to the axis
    bool inside;  // whether it did not need to be
};

Index index_along(uvec2 bits, uint size) {
    bool negative = false;
    if (IS_SIGNED(INDEX_TYPE)) {
        if (BYTES_OF(INDEX_TYPE) == 4u) bits.y = uint(int(bits.x) >> 31);
        negative = int(bits.y) < 0;
    }
    if (negative) {
        uint back = 0u - bits.x;  // how far from the end, where it is less than 2^32
        bool inside = bits.y == 0xFFFFFFFFu && back != 0u && back <= size;
        return Index(inside ? size - back : 0u, inside);
    }
    bool inside = bits.y == 0u && bits.x < size;
    return Index(inside ? bits.x : size - 1u, inside);
}
