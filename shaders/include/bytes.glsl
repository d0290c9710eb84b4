// Four 8-bit elements to a word.

// Defines a function that reads four elements from ``index`` on, of which ``count`` exist, from a uint[]
// buffer member. The second word may lie past the buffer's end, so it is read only for elements that
// exist. The other elements of the result are undefined.
#define NEIGHBOURS(name, words) \
    uint name(uint index, uint count) { \
        uint shift = index % 4u * 8u; \
        uint word = words[index / 4u] >> shift; \
        if (shift + 8u * min(count, 4u) > 32u) word |= words[index / 4u + 1u] << (32u - shift); \
        return word; \
    }

// A mask of the first ``count`` elements.
uint first_bytes(uint count) {
    return count < 4u ? (1u << (8u * count)) - 1u : 0xFFFFFFFFu;
}

// Byte i of word j becomes byte j of word i.
uvec4 transposed(uvec4 x) {
    // Operations of this form are one instruction where a GPU has any function of three words' bits.
    uvec2 even = (x.yw << 8) ^ (((x.yw << 8) ^ x.xz) & 0x00FF00FFu);
    uvec2 odd = x.yw ^ ((x.yw ^ (x.xz >> 8)) & 0x00FF00FFu);
    return uvec4((even.x & 0xFFFFu) | (even.y << 16), (odd.x & 0xFFFFu) | (odd.y << 16),
                 (even.x >> 16) | (even.y & 0xFFFF0000u), (odd.x >> 16) | (odd.y & 0xFFFF0000u));
}

int signed_byte(uint bits) {
    return int(bits << 24) >> 24;
}

int byte_sum(uint word) {
    int x = int(word);
    return (x << 24 >> 24) + (x << 16 >> 24) + (x << 8 >> 24) + (x >> 24);
}
