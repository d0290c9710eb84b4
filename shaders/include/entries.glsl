// Entries of a sort: two words of precedence, the upper one first, then the inverted index. The includer
// defines the constants TYPE and LEAST.
#include "include/typed.glsl"
#include "include/ordered.glsl"

INPUT_TENSOR(x, 0, TYPE)

uvec3 entry_of(uvec2 bits, uint index) {
    if (!IS_FLOAT(TYPE) && BYTES_OF(TYPE) < 4u) bits.x <<= 32u - 8u * BYTES_OF(TYPE);
    uvec2 rank = equal_precedence(bits, TYPE, false);  // NaN comes first in both directions
    if (LEAST) rank = ~rank;
    return uvec3(BYTES_OF(TYPE) == 8u ? rank.y : 0u, rank.x, ~index);
}

// Elements of up to 16 bits with an index below 65,535: an entry in one word.
uint short_entry_of(uvec2 bits, uint index) {
    if (!IS_FLOAT(TYPE)) bits.x <<= 32u - 8u * BYTES_OF(TYPE);
    // The rank of NaN is 1 above that of infinity. This sum makes it 65,536.
    uint rank = equal_precedence(bits, TYPE, false).x + 0xFFFFu;
    return (LEAST ? ~rank : rank) & 0xFFFF0000u | ~index & 0xFFFFu;
}

bool comes_before(uvec3 a, uvec3 b) {
    if (BYTES_OF(TYPE) == 8u && a.x != b.x) return a.x > b.x;
    return a.y != b.y ? a.y > b.y : a.z > b.z;
}
