// The elements of vectors of floats. The includer has the constant TYPE and includes include/typed.glsl before.
const bool HALVES = BYTES_OF(TYPE) == 2u;
const uint VECTOR = HALVES ? 8u : 4u;

float element(uvec4 vector, uint e) {
    return HALVES ? halves_to_floats(vector[e / 2u & 3u])[e % 2u] : uintBitsToFloat(vector[e & 3u]);
}
