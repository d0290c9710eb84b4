// What attention_rotary.comp has beside attention_lines.glsl: the new key and value, and the end.
const bool HALVES = BYTES_OF(TYPE) == 2u;

shared uvec4 s_fresh_key[HEAD_VECTORS];
shared uvec4 s_fresh_value[VALUE_VECTORS];

// Four neighbours from an even element on.
#define FOUR_OF(name, at) (HALVES \
    ? vec4(halves_to_floats(name##_words[(at) / 2u]), halves_to_floats(name##_words[(at) / 2u + 1u])) \
    : uintBitsToFloat(uvec4(name##_words[at], name##_words[(at) + 1u], name##_words[(at) + 2u], \
                            name##_words[(at) + 3u])))
// Stores four n of vectors.
#define PUT_FOUR(vectors, n, x) \
    if (HALVES) { \
        vectors[(n) / 2u][(n) % 2u * 2u] = floats_to_halves(x[0], x[1]); \
        vectors[(n) / 2u][(n) % 2u * 2u + 1u] = floats_to_halves(x[2], x[3]); \
    } else { \
        vectors[n] = floatBitsToUint(x); \
    }

uint position_at(uint batch, uint past) {
    uint position = past;
    if (IDS > 0u) position = ids_words[(ids_offset + batch) * IDS];
    return min(position, positions - 1u);
}

// Four elements of a head that begins at ``from``, turned: those from ``element`` on.
#define TURNED(x, name, from, element, place) \
    { \
        x = FOUR_OF(name, (from) + (element)); \
        if ((element) < 2u * PAIRS) { \
            if (INTERLEAVED) { \
                uint at = (place) * PAIRS + (element) / 2u; \
                vec2 c = TWO_OF(cos, cos_offset + at), s = TWO_OF(sin, sin_offset + at); \
                x = vec4(x.x * c.x - x.y * s.x, x.y * c.x + x.x * s.x, \
                         x.z * c.y - x.w * s.y, x.w * c.y + x.z * s.y); \
            } else { \
                bool low = (element) < PAIRS; \
                uint at = (place) * PAIRS + (element) % PAIRS; \
                vec4 c = FOUR_OF(cos, cos_offset + at), s = FOUR_OF(sin, sin_offset + at); \
                vec4 other = FOUR_OF(name, (from) + (low ? (element) + PAIRS : (element) - PAIRS)); \
                x = low ? x * c - other * s : x * c + other * s; \
            } \
        } \
    }
#define TWO_OF(name, at) (HALVES ? halves_to_floats(name##_words[(at) / 2u]) \
    : vec2(uintBitsToFloat(name##_words[at]), uintBitsToFloat(name##_words[(at) + 1u])))

// The new row in the place of what lies in the cache. Places behind the last key are the last key's.
#define REPLACE_FRESH(side, SIDE, fresh, vectors) \
    if (owns && first + LINES * AT_ONCE > past) \
        [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) \
            if (min(first + line + n * LINES, end - 1u) == past) \
                [[unroll]] for (uint c = 0u; c < SIDE##_EACH; ++c) \
                    side##_next[n * SIDE##_EACH + c] = fresh[min(c * LANES + lane, (vectors) - 1u)];

// The last workgroup of a key head combines the records of its parts.
void finish(uint batch, uint head, uint own_head, uint filled) {
    uint i = gl_LocalInvocationIndex, rows = group;
    if (filled > 1u) {
        if (!arrives_last(own_head, filled)) return;
    } else {
        memoryBarrierBuffer();
        barrier();
    }
    const uint TOGETHER = 8u, ACROSS = VALUE_VECTORS * FOURS, RECORD = ACROSS + 1u;
    for (uint n = i; n < rows * ACROSS; n += INVOCATIONS) {
        uint row = n / ACROSS, column = n % ACROSS;
        uint from = records_offset / 4u + (own_head * parts * rows + row) * RECORD;
        vec4 total = vec4(0.0);
        float all = 0.0, top = LOWEST;
        for (uint r = 0u; r < filled; r += TOGETHER) {
            vec4 some[TOGETHER];
            vec2 ends[TOGETHER];
            float now = top;
            [[unroll]] for (uint e = 0u; e < TOGETHER; ++e) {
                uint at = from + min(r + e, filled - 1u) * rows * RECORD;
                some[e] = records[at + column];
                ends[e] = records[at + ACROSS].xy;
            }
            [[unroll]] for (uint e = 0u; e < TOGETHER; ++e) now = max(now, ends[e].x);
            float base = now == LOWEST ? 0.0 : now, shrink = power(top - base);
            total *= shrink;
            all *= shrink;
            [[unroll]] for (uint e = 0u; e < TOGETHER; ++e) {
                float share = r + e < filled ? power(ends[e].x - base) : 0.0;
                if (share > 0.0) total += share * some[e];
                all += share * ends[e].y;
            }
            top = now;
        }
        uint query_head = head * group + row;
        if (SINK) {
            float own = sink_float(sink_offset + query_head), now = max(top, own), shrink = power(top - now);
            all = all * shrink + power(own - now);
            total *= shrink;
        }
        total *= all == 0.0 ? 0.0 : 1.0 / all;
        uint to = y_offset + batch * y_by + (query_head * ACROSS + column) * 4u;
        if (HALVES) {
            uvec2 pairs = floats_to_halves(total);
            y_words[to / 2u] = pairs.x;
            y_words[to / 2u + 1u] = pairs.y;
        } else {
            [[unroll]] for (uint e = 0u; e < 4u; ++e) y_words[to + e] = floatBitsToUint(total[e]);
        }
    }
}
