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

// The largest score of a row, or 0 without one.
float base_of(uint row) {
    float top = LOWEST;
    [[unroll]] for (uint n = 0u; n < LINES; ++n) top = max(top, s_most[row * LINES + n]);
    return top == LOWEST ? 0.0 : top;
}

// Whether this workgroup is the last one of ``count`` that come here. What they wrote can be read then.
bool is_last(uint counter, uint count) {
    if (count > 1u) return arrives_last(counter, count);
    memoryBarrierBuffer();
    barrier();
    return true;
}

const uint RECORD = VALUE_VECTORS * FOURS + 1u;

uint record_at(uint own_head, uint slot) {
    uint slots = parts + (parts - 1u) / FAN_IN + 1u;
    return records_offset / 4u + (own_head * slots + slot) * group * RECORD;
}

// Combines records from slot ``first`` on: into another one, or the output.
void combine(uint batch, uint head, uint own_head, uint first, uint count, uint into, bool is_output) {
    const uint AT_A_TIME = 8u, ACROSS = RECORD - 1u;
    for (uint n = gl_LocalInvocationIndex; n < group * ACROSS; n += INVOCATIONS) {
        uint row = n / ACROSS, column = n % ACROSS, from = record_at(own_head, first) + row * RECORD;
        vec4 total = vec4(0.0);
        float all = 0.0, top = LOWEST;
        for (uint r = 0u; r < count; r += AT_A_TIME) {
            vec4 some[AT_A_TIME];
            vec2 ends[AT_A_TIME];
            float now = top;
            [[unroll]] for (uint e = 0u; e < AT_A_TIME; ++e) {
                uint at = from + min(r + e, count - 1u) * group * RECORD;
                some[e] = records[at + column];
                ends[e] = records[at + ACROSS].xy;
            }
            [[unroll]] for (uint e = 0u; e < AT_A_TIME; ++e) now = max(now, ends[e].x);
            float base = now == LOWEST ? 0.0 : now, shrink = power(top - base);
            total *= shrink;
            all *= shrink;
            [[unroll]] for (uint e = 0u; e < AT_A_TIME; ++e) {
                float share = r + e < count ? power(ends[e].x - base) : 0.0;
                if (share > 0.0) total += share * some[e];
                all += share * ends[e].y;
            }
            top = now;
        }
        if (!is_output) {
            uint to = record_at(own_head, into) + row * RECORD;
            records[to + column] = total;
            if (column == 0u) records[to + ACROSS] = vec4(top, all, 0.0, 0.0);
            continue;
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

// The last workgroup of a key head combines the records of its parts. Of many parts, the last one of each FAN_IN
// combines those first.
void finish(uint batch, uint head, uint own_head, uint part, uint filled) {
    uint groups = (parts - 1u) / FAN_IN + 1u, counter = own_head * (groups + 1u), first = 0u;
    if (filled > 2u * FAN_IN) {
        uint own = part / FAN_IN, count = min(FAN_IN, filled - own * FAN_IN);
        if (!is_last(counter + 1u + own, count)) return;
        combine(batch, head, own_head, own * FAN_IN, count, parts + own, false);
        filled = (filled - 1u) / FAN_IN + 1u;
        first = parts;
    }
    if (is_last(counter, filled)) combine(batch, head, own_head, first, filled, 0u, true);
}
