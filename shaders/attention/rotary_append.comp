//@ op -
//@ unchecked *
#version 450
#define MAY_BE_BFLOAT16
#extension GL_GOOGLE_include_directive : require
// Turns new queries and keys by their positions, and appends keys and values to caches after those of
// earlier tokens. An invocation turns two pairs of elements, or copies four neighbours: first come those of
// all queries, then those of keys, then of values.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool INTERLEAVED = false;  // a pair are neighbours, else half the turned ones apart
layout(constant_id = 3) const uint IDS = 0u;  // words of a position; 0 where positions follow the past
layout(push_constant) uniform Push {
    uint count;
    uint queries;
    uint heads;
    uint key_heads;
    uint fours;  // of a head of queries and keys
    uint value_fours;
    uint turned_fours;  // the first ones are turned
    uint capacity;
    uint positions;  // rows of cosines
    uint lengths_by;
    uint q_by[2];  // strides by batch and token
    uint k_by[2];
    uint v_by[2];
    uint key_by[3];  // strides by batch, head and row
    uint value_by[3];
    uint q_offset;
    uint k_offset;
    uint v_offset;
    uint cos_offset;
    uint sin_offset;
    uint lengths_offset;
    uint ids_offset;
    uint y_offset;
    uint key_offset;
    uint value_offset;
};
#include "include/grid.glsl"
#include "include/typed.glsl"
#define INPUT(x, slot) layout(binding = slot) readonly buffer x##_Words { uint x##_words[]; };
#define OUTPUT(y, slot) layout(binding = slot) writeonly buffer y##_Words { uint y##_words[]; };
INPUT(q, 0)
INPUT(k, 1)
INPUT(v, 2)
INPUT(cos, 3)
INPUT(sin, 4)
INPUT(lengths, 5)
INPUT(ids, 6)
OUTPUT(y, 7)
OUTPUT(key, 8)
OUTPUT(value, 9)

const bool HALVES = BYTES_OF(TYPE) == 2u;

// Two neighbours from an even element on.
#define TWO_OF(name, at) (HALVES ? halves_to_floats(name##_words[(at) / 2u]) \
    : vec2(uintBitsToFloat(name##_words[at]), uintBitsToFloat(name##_words[(at) + 1u])))
#define PUT_TWO(name, at, two) \
    if (HALVES) { \
        name##_words[(at) / 2u] = floats_to_halves((two)[0], (two)[1]); \
    } else { \
        name##_words[at] = floatBitsToUint((two)[0]); \
        name##_words[(at) + 1u] = floatBitsToUint((two)[1]); \
    }

// Where two pairs of a head lie: elements of the first two, and of the others.
uvec2 places(uint four) {
    if (INTERLEAVED || four >= turned_fours) return uvec2(4u * four, 4u * four + 2u);
    return uvec2(2u * four, 2u * (four + turned_fours));
}

void main() {
    uint index = invocation_index();
    if (index >= count) return;
    uint every = heads * fours, keys = key_heads * fours, values = key_heads * value_fours;
    uint token = index / (every + keys + values), own = index % (every + keys + values);
    uint batch = token / queries, row = token % queries;
    uint past = uint(max(int(lengths_words[lengths_offset + batch * lengths_by]), 0));
    uint place = past + row;
    bool fits = past < capacity && place < capacity;
    if (own >= every + keys) {
        own -= every + keys;
        uint head = own / value_fours, e = own % value_fours * 4u;
        uint from = v_offset + batch * v_by[0] + row * v_by[1] + head * value_fours * 4u + e;
        uint to = value_offset + batch * value_by[0] + head * value_by[1] + place * value_by[2] + e;
        if (!fits) return;
        const uint COUNT = HALVES ? 2u : 4u, PER_WORD = HALVES ? 2u : 1u;
        for (uint w = 0u; w < COUNT; ++w) value_words[to / PER_WORD + w] = v_words[from / PER_WORD + w];
        return;
    }
    bool is_key = own >= every;
    if (is_key) own -= every;
    uint head = own / fours, four = own % fours;
    uvec2 at = places(four);
    uint from = is_key ? k_offset + batch * k_by[0] + row * k_by[1] : q_offset + batch * q_by[0] + row * q_by[1];
    from += head * fours * 4u;
    vec2 low, high;
    if (is_key) {
        low = TWO_OF(k, from + at.x);
        high = TWO_OF(k, from + at.y);
    } else {
        low = TWO_OF(q, from + at.x);
        high = TWO_OF(q, from + at.y);
    }
    if (four < turned_fours) {
        uint position = place;
        if (IDS > 0u) position = ids_words[(ids_offset + token) * IDS];
        uint turn = min(position, positions - 1u) * 2u * turned_fours + 2u * four;
        vec2 c = TWO_OF(cos, cos_offset + turn), s = TWO_OF(sin, sin_offset + turn);
        if (INTERLEAVED) {
            vec2 turned = vec2(low.x * c.x - low.y * s.x, low.y * c.x + low.x * s.x);
            high = vec2(high.x * c.y - high.y * s.y, high.y * c.y + high.x * s.y);
            low = turned;
        } else {
            vec2 turned = low * c - high * s;
            high = high * c + low * s;
            low = turned;
        }
    }
    if (is_key) {
        if (!fits) return;
        uint to = key_offset + batch * key_by[0] + head * key_by[1] + place * key_by[2];
        PUT_TWO(key, to + at.x, low)
        PUT_TWO(key, to + at.y, high)
    } else {
        uint to = y_offset + (token * heads + head) * fours * 4u;
        PUT_TWO(y, to + at.x, low)
        PUT_TWO(y, to + at.y, high)
    }
}
