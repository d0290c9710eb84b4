// What the shaders of attention share. Rows are the queries of all query heads that share a key head. The
// includer defines PARAMS_BINDING and ATTENTION_TYPE, the code of the tensors' type, and has the constants
// RELATIVE, MASK and CAUSAL. It may define MORE_PUSH, up to two more words. ROTATES: there is one query, which
// is turned, and whose key and value are appended to caches (attention_rotary.comp).
#ifndef MORE_PUSH
#define MORE_PUSH
#endif
// With CAUSAL, a query sees at most so many keys, of which its own is the last. 0: all before it.
layout(constant_id = 20) const uint WINDOW = 0u;
// The bits of a float. Scores c become SOFT_CAP * tanh(c / SOFT_CAP). 0: they stay.
layout(constant_id = 21) const uint SOFT_CAP = 0u;
#ifdef ROTATES
layout(push_constant) uniform Push {
    uint batches;
    uint key_heads;
    uint group;
    uint keys;
    uint parts;
    float scale;
    uint q_by;  // strides by batch; heads follow each other
    uint y_by;
    uint fresh_by[2];
    uint k_by[3];
    uint v_by[3];
    uint positions;  // rows of cosines
    uint q_offset;
    uint k_offset;
    uint v_offset;
    uint lengths_offset;
    uint y_offset;
    MORE_PUSH
};
const uint queries = 1u, span = 0u, lengths_stride = 1u;
#else
layout(push_constant) uniform Push {
    uint batches;
    uint key_heads;
    uint group;  // query heads of a key head
    uint queries;
    uint keys;
    uint parts;
    uint span;  // keys of a part
    float scale;
    float filter_value;
    uint lengths_stride;
    uint q_by[3];  // strides by batch, head and position
    uint k_by[3];
    uint v_by[3];
    uint y_by[3];
    uint q_offset;
    uint k_offset;
    uint v_offset;
    uint mask_offset;
    uint relative_offset;
    uint lengths_offset;
    uint y_offset;
    uint params_offset;
    MORE_PUSH
};
#endif
#include "include/grid.glsl"
#include "include/typed.glsl"
#include "include/exponentials.glsl"

INPUT_TENSOR(q, 0, ATTENTION_TYPE)
#ifdef ROTATES
layout(binding = 1) buffer K_Vectors { uvec4 k_vectors[]; };
layout(binding = 2) buffer V_Vectors { uvec4 v_vectors[]; };
INPUT_TENSOR(lengths, 3, 20u)
OUTPUT_TENSOR(y, 4, OUTPUT_TYPE)
// By key head, slot and row: undivided outputs, then the maximum and the sum.
layout(binding = 5) coherent buffer Records { vec4 records[]; };
#define ARRIVED_BINDING 6
#include "include/arrived.glsl"
INPUT_TENSOR(fresh_k, 7, ATTENTION_TYPE)
INPUT_TENSOR(fresh_v, 8, ATTENTION_TYPE)
INPUT_TENSOR(cos, 9, ATTENTION_TYPE)
INPUT_TENSOR(sin, 10, ATTENTION_TYPE)
INPUT_TENSOR(ids, 11, 20u)
INPUT_TENSOR(sink, 12, ATTENTION_TYPE)
#define ELEMENT_STRIDES uvec4(1u)
#define RELATIVE_STRIDES uvec4(0u)
#define MASK_STRIDES uvec4(0u)
#else
#include "include/params.glsl"
INPUT_TENSOR(k, 1, ATTENTION_TYPE)
INPUT_TENSOR(v, 2, ATTENTION_TYPE)
INPUT_TENSOR(mask, 3, 20u)
INPUT_TENSOR(relative, 4, ATTENTION_TYPE)
INPUT_TENSOR(lengths, 5, 20u)
OUTPUT_TENSOR(y, 6, OUTPUT_TYPE)

uvec4 four_params(uint i) {
    return uvec4(param(i), param(i + 1u), param(i + 2u), param(i + 3u));
}

// The strides of the elements of a head of queries, keys, values and output. Then those of biases and of
// masks, by batch, head, position and key.
#define ELEMENT_STRIDES four_params(0u)
#define RELATIVE_STRIDES four_params(4u)
#define MASK_STRIDES four_params(8u)
#endif

// A mask of lengths keeps the keys of a batch from ``low`` to ``high``. With CAUSAL, a query sees those up to
// its position after ``past`` ones.
struct Seen {
    uint low;
    uint high;
    uint past;  // as many short of all queries, if negative
};

Seen seen_by(uint batch, uvec4 mask_by) {
    Seen seen = Seen(0u, keys, 0u);
    if (CAUSAL)
        seen.past = uint(clamp(int(lengths_words[lengths_offset + batch * lengths_stride]), -int(queries), int(keys)));
#ifndef ROTATES
    if (MASK >= 1u && MASK <= 3u)
        seen.high = uint(clamp(int(mask_words[mask_offset + batch * mask_by.x]), 0, int(keys)));
    if (MASK == 2u)
        seen.low = uint(clamp(int(mask_words[mask_offset + batch * mask_by.x + mask_by.y]), 0, int(keys)));
#endif
    return seen;
}

// How many keys a query at this position sees with CAUSAL.
uint seen_from(uint past, uint position) {
    return uint(max(int(past + position) + 1, 0));
}

// The first key that a query at this position sees with CAUSAL.
uint seen_since(uint past, uint position) {
    return WINDOW == 0u ? 0u : uint(max(int(past + position) + 1 - int(WINDOW), 0));
}

bool sees(uint past, uint position, uint key) {
    return key < seen_from(past, position) && key >= seen_since(past, position);
}

// The keys of a part: the first one, and how many of them, a multiple of ``tile``. With CAUSAL the parts divide
// the keys that queries see, which may be much fewer than a cache has room for.
uvec2 keys_of_part(uint past, uint part, uint tile) {
    if (!CAUSAL) return uvec2(part * span, span);
    uint since = seen_since(past, 0u), all = min(seen_from(past, queries - 1u), keys);
    uint tiles = (max(all, since + 1u) - since - 1u) / tile + 1u, own = (tiles - 1u) / parts * tile + tile;
    return uvec2(since + part * own, own);
}

// A score under a soft cap. tanh of |x| is (1 - e) / (1 + e) with e = exp(-2 |x|).
float capped(float score) {
    if (SOFT_CAP == 0u) return score;
    float cap = uintBitsToFloat(SOFT_CAP), e = exp_of(-2.0 * abs(score / cap));
    return (score < 0.0 ? -cap : cap) * ((1.0 - e) / (1.0 + e));
}

#ifndef ROTATES
// Where the biases (x) and the mask (y) of a query begin.
uvec2 added_from(uint batch, uint query_head, uint position, uvec4 relative_by, uvec4 mask_by) {
    return uvec2(relative_offset, mask_offset) + batch * uvec2(relative_by.x, mask_by.x)
           + query_head * uvec2(relative_by.y, mask_by.y) + position * uvec2(relative_by.z, mask_by.z);
}
#endif
