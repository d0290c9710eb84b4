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

bool comes_before(uvec3 a, uvec3 b) {
    if (BYTES_OF(TYPE) == 8u && a.x != b.x) return a.x > b.x;
    return a.y != b.y ? a.y > b.y : a.z > b.z;
}
