//@ op DML_OPERATOR_JOIN DML_OPERATOR_SPLIT
//@ variants HOW: join split ; MOST: p6 p14
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// As join_many.comp does, for tensors of any strides and widths. Each part has a walk of its rows. ROWS: they
// are contiguous in both tensors, and an invocation writes the part of a row that lies in one vector of the
// output. Else a row is one element.
layout(constant_id = 1) const uint PARTS = 6u;
layout(constant_id = 2) const uint BYTES = 4u;  // of an element
layout(constant_id = 3) const bool ROWS = false;

#if defined(MOST_p6)
#define PARAMS_BINDING 7
#define FOR_EACH_PART(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#else
#define PARAMS_BINDING 15
#define FOR_EACH_PART(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) \
    DO(13)
#endif

#define OFFSET(p) uint part##p##_offset;
layout(push_constant) uniform Push {
    FOR_EACH_PART(OFFSET)
    uint whole_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"

// Words of a part.
const uint GROUP = 0u;  // the first one
const uint SIZE = 1u;  // of its rows
const uint COUNT = 2u;  // its rows
const uint BEGIN = 3u;  // its first element in the whole
const uint WALK = 4u;  // where its walk begins: strides of the part, then of the whole
const uint WORDS = 5u;

#define TENSOR(name, slot) \
    layout(binding = slot) buffer name##_Words { uint name##_words[]; }; \
    layout(binding = slot) buffer name##_Vectors { uvec4 name##_vectors[]; };
#define PART_TENSOR(p) TENSOR(part##p, p)
FOR_EACH_PART(PART_TENSOR)
TENSOR(whole, PARAMS_BINDING - 1)
WALK(walk, 2)

const uint PER_VECTOR = 16u / BYTES;

// Words ``first`` to ``first`` + 4, or others where the tensor has none. A first word may lie before it.
#define READ(name) \
    [[unroll]] for (uint w = 0u; w < 5u; ++w) given[w] = name##_words[min(word + w, uint(name##_words.length()) - 1u)];

// Bytes ``low`` to before ``high`` of a vector. Others may change its other bytes.
#define WRITE(name, at) \
    if (high - low == 16u) { \
        name##_vectors[at] = vector; \
    } else { \
        [[unroll]] for (uint w = 0u; w < 4u; ++w) { \
            uint begin = max(low, 4u * w), end = min(high, 4u * w + 4u); \
            if (begin < end) { \
                if (end - begin == 4u) { \
                    name##_words[4u * (at) + w] = vector[w]; \
                } else { \
                    uint mask = (1u << 8u * (end - begin)) - 1u << 8u * (begin - 4u * w); \
                    atomicXor(name##_words[4u * (at) + w], (name##_words[4u * (at) + w] ^ vector[w]) & mask); \
                } \
            } \
        } \
    }

void main() {
    uint group = group_index(), part = 0u;
    [[unroll]] for (uint p = 1u; p < PARTS; ++p) part += uint(group >= param(p * WORDS + GROUP));
    uint words = part * WORDS, size = param(words + SIZE);
    uint number = (group - param(words + GROUP)) * gl_WorkGroupSize.x + gl_LocalInvocationID.x, piece = 0u;
    if (ROWS) {
        uint per_row = (size + PER_VECTOR - 2u) / PER_VECTOR + 1u;  // vectors that a row may lie in
        uint row = number / per_row;
        piece = number - row * per_row;
        number = row;
    }
    if (number >= param(words + COUNT)) return;
    uint[2] at = walk(param(words + WALK), number);
    at[1] += whole_offset + param(words + BEGIN);
#define ADD_OFFSET(p) if (p < PARTS && part == p) at[0] += part##p##_offset;
    FOR_EACH_PART(ADD_OFFSET)
#if defined(HOW_join)
    uint from = at[0], to = at[1];
#else
    uint from = at[1], to = at[0];
#endif
    uint vector_at = to / PER_VECTOR + piece, begin = vector_at * PER_VECTOR;
    uint first = max(begin, to), last = min(begin + PER_VECTOR, to + size);
    if (first >= last) return;
    uint low = (first - begin) * BYTES, high = (last - begin) * BYTES;

    // The input's bytes that go to the vector, from its first byte on.
    from += first - to;
    uint word, shift = 0u;
    if (BYTES >= 4u) {
        word = (from - (first - begin)) * (BYTES / 4u);
    } else {
        uint byte = from * BYTES + 16u - low;
        word = byte / 4u - 4u;
        shift = byte % 4u * 8u;
    }
    uint given[5];
#if defined(HOW_join)
#define READ_PART(p) if (p < PARTS && part == p) { READ(part##p) }
    FOR_EACH_PART(READ_PART)
#else
    READ(whole)
#endif
    uvec4 vector;
    [[unroll]] for (uint w = 0u; w < 4u; ++w)
        vector[w] = BYTES >= 4u ? given[w] : given[w] >> shift | given[w + 1u] << 1u << 31u - shift;
#if defined(HOW_join)
    WRITE(whole, vector_at)
#else
#define WRITE_PART(p) if (p < PARTS && part == p) { WRITE(part##p, vector_at) }
    FOR_EACH_PART(WRITE_PART)
#endif
}
