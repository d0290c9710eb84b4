// Rows of floats that are read in chunks of WORDS words (1, 2 or 4). Rows consist of whole chunks, so a chunk
// lies inside a row or outside. ROW_OF_CHUNKS(x, slot, TYPE, WORDS, PHASE, SPAN) defines
//   void x_row(uint row, int first, int size, bool there, uint empty, out float made[SPAN])
// for an x of include/typed.glsl: the SPAN elements from ``first`` on, of a row of ``size`` elements that begins
// at ``row``. Words outside, or all unless ``there``, are ``empty``. PHASE is where ``first`` lies in its chunk.
#define ROW_OF_CHUNKS(x, slot, TYPE, WORDS, PHASE, SPAN) \
    layout(binding = slot) readonly buffer x##_Pairs { uvec2 x##_pairs[]; }; \
    void x##_row(uint row, int first, int size, bool there, uint empty, out float made[SPAN]) { \
        const uint per_word = 4u / BYTES_OF(TYPE); \
        const uint from = PHASE / per_word, last = (PHASE + SPAN - 1u) / per_word; \
        [[unroll]] for (uint w = from / WORDS * WORDS; w <= last; w += WORDS) { \
            int place = first + int(w * per_word) - int(PHASE); \
            bool inside = there && uint(place) < uint(size); \
            uint word = inside ? (row + uint(place)) / per_word : 0u; \
            uvec4 chunk = uvec4(0u); \
            if (WORDS == 4u && w >= from && w + 3u <= last) { \
                chunk = x##_vectors[word / 4u]; \
            } else if (WORDS == 2u && w >= from && w + 1u <= last) { \
                chunk.xy = x##_pairs[word / 2u]; \
            } else { \
                [[unroll]] for (uint i = 0u; i < WORDS; ++i) \
                    if (w + i >= from && w + i <= last) chunk[i] = x##_words[word + i]; \
            } \
            [[unroll]] for (uint i = 0u; i < WORDS * per_word; ++i) { \
                uint k = w * per_word + i; \
                if (k < PHASE || k >= PHASE + SPAN) continue; \
                uint bits = inside ? chunk[i / per_word & 3u] : empty; \
                made[k - PHASE] = per_word == 2u ? halves_to_floats(bits)[i % 2u] : uintBitsToFloat(bits); \
            } \
        } \
    }
