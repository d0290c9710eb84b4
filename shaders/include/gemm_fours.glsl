// Four elements of A or B of a GEMM, contiguous or not. The includer includes include/gemm.glsl.
layout(binding = 0) readonly buffer APairs { uvec2 a_pairs[]; };
layout(binding = 1) readonly buffer BPairs { uvec2 b_pairs[]; };

// Whether four contiguous elements of a matrix follow its rows or columns, else K.
layout(constant_id = 5) const bool A_MN_CONTIGUOUS = false;
layout(constant_id = 6) const bool B_MN_CONTIGUOUS = false;
// Whether four elements are one aligned load: never, as a push field tells for A and for B, or always.
layout(constant_id = 7) const uint VECTORS = 0u;
const bool ALL_VECTORS = VECTORS == 2u;
#define A_VECTORS (ALL_VECTORS || VECTORS == 1u && HAS_A_VECTORS)
#define B_VECTORS (ALL_VECTORS || VECTORS == 1u && HAS_B_VECTORS)

vec4 from_halves(uvec2 pair) {
    if (HAS_EXACT_UNITS) return vec4(unpackHalf2x16(pair.x), unpackHalf2x16(pair.y));
    return vec4(half_to_float(pair.x & 0xFFFFu), half_to_float(pair.x >> 16),
                half_to_float(pair.y & 0xFFFFu), half_to_float(pair.y >> 16));
}

// A vector of four elements of ``x``, by its number, and by the place of its first element.
#define VECTOR_AT(x, n) \
    (BYTES_OF(TYPE) == 4u ? uintBitsToFloat(x##_vectors[n]) : from_halves(x##_pairs[n]))
#define VECTOR(x, at) VECTOR_AT(x, (at) / 4u)

// Four elements of ``x``. Those beyond K are 0. Rows and columns beyond the edge repeat others.
#define FOUR(x) \
    vec4 x##_four(bool across, bool vectors, uint from, uint line, uint lines, uint line_step, \
                  uint k, uint end, uint k_step) { \
        if (vectors) { \
            line = min(line, lines - (across ? 4u : 1u)); \
            uint at = from + line * line_step + min(k, end - (across ? 1u : 4u)) * k_step; \
            vec4 found = VECTOR(x, at); \
            return k < end ? found : vec4(0.0); \
        } \
        vec4 found; \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) { \
            uint l = min(line + (across ? i : 0u), lines - 1u), e = k + (across ? 0u : i); \
            float one = x##_float(from + l * line_step + min(e, end - 1u) * k_step); \
            found[i] = e < end ? one : 0.0; \
        } \
        return found; \
    }
FOUR(a)
FOUR(b)
