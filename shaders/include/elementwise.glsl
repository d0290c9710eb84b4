// The frame of all elementwise shaders. It loads and stores elements of any width and strides. The
// includer defines INPUTS (1 to 3), ATTRIBUTES (more push fields), and
//   uvec2 compute(uvec2 a, uvec2 b, uvec2 c)
// It takes and returns the bits of one element. Narrow integers are extended to 32 bits. Only the
// result's bits of the output's type count. The second word is the upper half of 64-bit elements, else 0.
//
// With NUMBERED defined, a is not a tensor, but the number of an element, computed from a_strides.
//
// The output is walked in rows along its last dimension. A contiguous row is computed in parts of EACH
// elements, which are 16 bytes in the widest type (without inputs that repeat one element), and at least
// a word of the output. In other layouts a part is one element. An invocation computes PARTS parts, a
// workgroup's size apart. It reads all before it computes.
//
// With PREPARES defined, prepare(b, c) is called once for a row, with the first elements of the part.
// With GUESSES defined, compute may set ``unsure``. Then the whole part is computed again by
// compute_exactly(a, b, c).
//
// With TABULATED defined, fill_table() fills a table in shared memory first, and looked_up(a, b) returns
// the results for the four bytes of a word. The operands are one row, EVEN or ALIGNED. Each workgroup
// computes parts until none is left.
#include "include/grid.glsl"
#include "include/bits.glsl"

// STRIDED: the output's rows are not contiguous. ANYWHERE: they are. ALIGNED: all rows are contiguous and
// begin with a vector. EVEN: they also end with one. Inputs that repeat one element do not count.
const uint STRIDED = 0u;
const uint ANYWHERE = 1u;
const uint ALIGNED = 2u;
const uint EVEN = 3u;
layout(constant_id = 1) const uint LAYOUT = STRIDED;
layout(constant_id = 2) const uint OUT_TYPE = 36u;
layout(constant_id = 3) const uint A_TYPE = 36u;
layout(constant_id = 4) const uint B_TYPE = 0u;  // 0: no such input
layout(constant_id = 5) const uint C_TYPE = 0u;
// CPU drivers execute both sides of a branch. For them the rare side is a short loop.
layout(constant_id = 7) const bool ON_CPU = false;
// The device's fma rounds once, its conversions of float16 are IEEE's. Its exp2, log2, sqrt, inversesqrt
// and quotients are accurate to a few ulp and keep NaN.
layout(constant_id = 10) const bool EXACT_UNITS = false;
#define HAS_EXACT_UNITS EXACT_UNITS
layout(constant_id = 11) const uint PARTS = 1u;  // or 2
layout(constant_id = 12) const uint RANK = 1u;  // up to 5
// A bit for each input: its last stride is 0 (REPEATED), or 1.
layout(constant_id = 13) const uint REPEATED = 0u;
layout(constant_id = 14) const uint CONTIGUOUS = 0u;
layout(constant_id = 15) const bool BY_ROW = false;  // all parts of a workgroup lie in one row
layout(constant_id = 16) const bool BACKWARDS = false;  // the first workgroup computes the last parts
// The device's quotients, sqrt and rounding functions are IEEE's, also for denormals.
layout(constant_id = 17) const bool IEEE_UNITS = false;
#define HAS_IEEE_UNITS IEEE_UNITS

layout(push_constant) uniform Push {
    uint rows;
    uint sizes[5];
    uint out_strides[5];
    uint out_offset;
    uint a_strides[5];
    uint a_offset;
#if INPUTS > 1
    uint b_strides[5];
    uint b_offset;
#endif
#if INPUTS > 2
    uint c_strides[5];
    uint c_offset;
#endif
    ATTRIBUTES
};

const uint LAST = RANK - 1u;
const uint OUT_BYTES = BYTES_OF(OUT_TYPE);
const uint A_BYTES = BYTES_OF(A_TYPE);
const uint B_BYTES = BYTES_OF(B_TYPE);
const uint C_BYTES = BYTES_OF(C_TYPE);
const uint A_WIDTH = (REPEATED & 1u) != 0u ? 0u : A_BYTES;
const uint B_WIDTH = (REPEATED & 2u) != 0u ? 0u : B_BYTES;
const uint C_WIDTH = (REPEATED & 4u) != 0u ? 0u : C_BYTES;
const uint WIDER = OUT_BYTES > A_WIDTH ? OUT_BYTES : A_WIDTH;
const uint OTHER = B_WIDTH > C_WIDTH ? B_WIDTH : C_WIDTH;
const uint WIDEST = WIDER > OTHER ? WIDER : OTHER;
const uint BY_VECTOR = 16u / WIDEST;
const uint BY_WORD = OUT_BYTES == 8u ? 1u : 4u / OUT_BYTES;
const uint EACH = LAYOUT == STRIDED ? 1u : BY_VECTOR > BY_WORD ? BY_VECTOR : BY_WORD;

// The elements of a part, as in memory.
struct Part {
    uvec4 low;
    uvec4 high;  // the second half of 4 elements of 8 bytes
};

// An element, extended to 32 bits according to its type.
uvec2 element_of(Part part, uint e, uint type) {
    const uint bytes = BYTES_OF(type);
    uint word = e * bytes / 4u;
    if (bytes == 8u) {
        uvec4 block = e < 2u ? part.low : part.high;
        return e % 2u == 0u ? block.xy : block.zw;
    }
    if (bytes == 4u) return uvec2(part.low[word], 0u);
    int from = int(e * bytes % 4u * 8u);
    if (IS_SIGNED(type))
        return uvec2(bitfieldExtract(int(part.low[word]), from, int(8u * bytes)), 0u);
    return uvec2(bitfieldExtract(part.low[word], from, int(8u * bytes)), 0u);
}

void insert(inout Part part, uint e, uint bytes, uvec2 x) {
    uint word = e * bytes / 4u;
    if (bytes == 8u) {
        if (e == 0u) part.low.xy = x;
        else if (e == 1u) part.low.zw = x;
        else if (e == 2u) part.high.xy = x;
        else part.high.zw = x;
    } else if (bytes == 4u) {
        part.low[word] = x.x;
    } else {
        part.low[word] = bitfieldInsert(part.low[word], x.x, int(e * bytes % 4u * 8u), int(8u * bytes));
    }
}

// Whether a part can be read as vectors.
bool is_aligned(uint at, uint bytes) {
    const uint span = EACH * bytes;
    return span >= 4u && at * bytes % (span < 16u ? span : 16u) == 0u;
}

// Defines the load of a part of an input. Elements after the first ``have`` are undefined. The type
// of an absent input is 0. It counts as a byte, so that drivers which unroll loops before they drop
// code that is never reached find a bound.
#define INPUT(name, slot, type) \
    layout(binding = slot) readonly buffer name##_Vectors { uvec4 name##_vectors[]; }; \
    layout(binding = slot) readonly buffer name##_Pairs { uvec2 name##_pairs[]; }; \
    layout(binding = slot) readonly buffer name##_Words { uint name##_words[]; }; \
    const bool name##_repeats = (REPEATED & 1u << slot) != 0u; \
    const bool name##_is_contiguous = (CONTIGUOUS & 1u << slot) != 0u; \
\
    uint name##_step() { \
        return name##_repeats ? 0u : name##_is_contiguous ? 1u : name##_strides[LAST]; \
    } \
\
    uvec2 name##_element(uint at) { \
        const uint bytes = BYTES_OF(type); \
        if (bytes == 8u) return uvec2(name##_words[2u * at], name##_words[2u * at + 1u]); \
        return uvec2(name##_words[at * bytes / 4u] >> (bytes < 4u ? at * bytes % 4u * 8u : 0u), 0u); \
    } \
\
    Part load_##name(uint at) { \
        Part part = Part(uvec4(0u), uvec4(0u)); \
        const uint bytes = BYTES_OF(type); \
        const uint span = EACH * bytes; \
        uint byte = at * bytes; \
        if (span == 4u) { \
            part.low.x = name##_words[byte / 4u]; \
        } else if (span == 8u) { \
            part.low.xy = name##_pairs[byte / 8u]; \
        } else { \
            part.low = name##_vectors[byte / 16u]; \
            if (span == 32u) part.high = name##_vectors[byte / 16u + 1u]; \
        } \
        return part; \
    } \
\
    Part read_##name(uint at, uint have) { \
        Part part = Part(uvec4(0u), uvec4(0u)); \
        if (type == 0u) return part; \
        const uint bytes = max(BYTES_OF(type), 1u); \
        if (LAYOUT == ANYWHERE) if (have == 0u) return part; \
        bool plain = LAYOUT >= ALIGNED; \
        if (ON_CPU) plain = plain || name##_is_contiguous && have == EACH && is_aligned(at, bytes); \
        if (name##_repeats || LAYOUT == STRIDED) { \
            part.low.xy = name##_element(at); \
        } else if (plain) { \
            part = load_##name(at); \
        } else if (!name##_is_contiguous) { \
            uint passes = ON_CPU ? have : EACH; \
            [[unroll]] for (uint e = 0u; e < passes; ++e) \
                insert(part, e, bytes, name##_element(at + min(e, have - 1u) * name##_step())); \
        } else { \
            uint first = at * bytes / 4u; \
            uint last = (at * bytes + have * bytes - 1u) / 4u; \
            uint shift = at * bytes % 4u * 8u; \
            uint words = ON_CPU ? last - first + 1u : (EACH * bytes + 3u) / 4u; \
            [[unroll]] for (uint w = 0u; w < words; ++w) { \
                uint x = name##_words[min(first + w, last)]; \
                if (bytes < 4u) \
                    x = x >> shift | name##_words[min(first + w + 1u, last)] << 1u << 31u - shift; \
                if (w < 4u) part.low[w] = x; \
                else part.high[w - 4u] = x; \
            } \
        } \
        return part; \
    }

INPUT(a, 0, A_TYPE)
#if INPUTS > 1
INPUT(b, 1, B_TYPE)
#endif
#if INPUTS > 2
INPUT(c, 2, C_TYPE)
#endif

OUTPUT_BITS(out, INPUTS, OUT_TYPE)
layout(binding = INPUTS) writeonly buffer OutputPairs { uvec2 out_pairs[]; };

void store_part(uint at, uint have, Part part) {
    const uint span = EACH * OUT_BYTES;
    if (LAYOUT == EVEN || LAYOUT != STRIDED && have == EACH) {
        if (span == 4u) out_words[at / EACH] = part.low.x;
        else if (span == 8u) out_pairs[at / EACH] = part.low.xy;
        else out_vectors[at / EACH] = part.low;
        return;
    }
    for (uint e = 0u; e < have; ++e) out_store_bits(at + e, element_of(part, e, OUT_TYPE));
}

// The beginning of a part in each operand, and the number of its elements.
struct Place {
    uint have;
    uint to;
    uint a;
    uint b;
    uint c;
};

// The most parts of a row.
uint parts_per_row() {
    uint last = sizes[LAST] - 1u;
    return LAYOUT == ANYWHERE ? (last + EACH - 1u) / EACH + 1u : last / EACH + 1u;
}

Place place_of(uint group, uint lane) {
    const uint span = gl_WorkGroupSize.x * PARTS;
    uint per_row = parts_per_row();
    uint row = 0u, part = group * span + lane;
    if (BY_ROW) {
        if (RANK > 1u) {
            uint groups = (per_row + span - 1u) / span;
            row = group / groups;
            part -= row * groups * span;
        }
    } else {
        row = part / per_row;
        part -= row * per_row;
    }
    bool there = row < rows && part < per_row;
    // Invocations past the end read the last part again.
    row = min(row, rows - 1u);
    part = min(part, per_row - 1u);

    Place at = Place(0u, out_offset, a_offset, 0u, 0u);
#if INPUTS > 1
    at.b = b_offset;
#endif
#if INPUTS > 2
    at.c = c_offset;
#endif
    [[unroll]] for (uint d = LAST; d-- > 0u;) {
        uint next = d == 0u ? 0u : row / sizes[d];
        uint coordinate = row - next * sizes[d];
        row = next;
        at.to += coordinate * out_strides[d];
        at.a += coordinate * a_strides[d];
#if INPUTS > 1
        at.b += coordinate * b_strides[d];
#endif
#if INPUTS > 2
        at.c += coordinate * c_strides[d];
#endif
    }
    uint begin = part * EACH;  // within the row
    uint have = LAYOUT == EVEN ? EACH : min(EACH, sizes[LAST] - begin);
    if (LAYOUT == ANYWHERE) {
        uint skipped = at.to % EACH;
        uint end = min(begin + EACH - skipped, sizes[LAST]);
        begin = max(begin, skipped) - skipped;
        have = max(end, begin) - begin;
    }
    at.have = there ? have : 0u;
    at.to += begin * (LAYOUT == STRIDED ? out_strides[LAST] : 1u);
    at.a += begin * a_step();
#if INPUTS > 1
    at.b += begin * b_step();
#endif
#if INPUTS > 2
    at.c += begin * c_step();
#endif
    return at;
}

uvec2 compute(uvec2 a, uvec2 b, uvec2 c);
#if defined(GUESSES)
bool unsure = false;
uvec2 compute_exactly(uvec2 a, uvec2 b, uvec2 c);
#endif
#if defined(PREPARES)
void prepare(uvec2 b, uvec2 c);
#endif

#if defined(TABULATED)
void fill_table();
uint looked_up(uint a, uint b);

Part computed(Place at, Part a, Part b, Part c) {
    Part result = Part(uvec4(0u), uvec4(0u));
    [[unroll]] for (uint w = 0u; w < 4u; ++w) result.low[w] = looked_up(a.low[w], b.low[w]);
    return result;
}
#else
uvec2 computed_element(Place at, uint e, Part a, Part b, Part c, bool exactly) {
#if defined(NUMBERED)
    uvec2 x = uvec2(at.a + e * a_step(), 0u);
#else
    uvec2 x = element_of(a, a_repeats ? 0u : e, A_TYPE);
#endif
    uvec2 y = uvec2(0u), z = uvec2(0u);
    if (B_TYPE != 0u) y = element_of(b, (REPEATED & 2u) != 0u ? 0u : e, B_TYPE);
    if (C_TYPE != 0u) z = element_of(c, (REPEATED & 4u) != 0u ? 0u : e, C_TYPE);
#if defined(GUESSES)
    if (exactly) return compute_exactly(x, y, z);
#endif
    return compute(x, y, z);
}

Part computed(Place at, Part a, Part b, Part c) {
    Part result = Part(uvec4(0u), uvec4(0u));
    const uint together = EACH < BY_WORD ? EACH : BY_WORD;
    [[unroll]] for (uint w = 0u; w < EACH / together; ++w) {
        Part word = Part(uvec4(0u), uvec4(0u));
        [[unroll]] for (uint i = 0u; i < together; ++i)
            insert(word, i, OUT_BYTES, computed_element(at, w * together + i, a, b, c, false));
        if (OUT_BYTES == 8u) insert(result, w, 8u, word.low.xy);
        else result.low[w] = word.low.x;
    }
#if defined(GUESSES)
    if (!unsure) return result;
    result = Part(uvec4(0u), uvec4(0u));
    [[dont_unroll]] for (uint e = 0u; e < at.have; ++e)
        insert(result, e, OUT_BYTES, computed_element(at, e, a, b, c, true));
    unsure = false;
#endif
    return result;
}
#endif

struct Work {
    Place at;
    Part a;
    Part b;
    Part c;
};

void read(inout Work work) {
#if !defined(NUMBERED)
    work.a = read_a(work.at.a, work.at.have);
#endif
#if INPUTS > 1
    work.b = read_b(work.at.b, work.at.have);
#endif
#if INPUTS > 2
    work.c = read_c(work.at.c, work.at.have);
#endif
}

void swap(inout Work x, inout Work y) {
    Work other = x;
    x = y;
    y = other;
}

void prepare_for(Work work) {
#if defined(PREPARES)
    uvec2 b = uvec2(0u), c = uvec2(0u);
    if (B_TYPE != 0u) b = element_of(work.b, 0u, B_TYPE);
    if (C_TYPE != 0u) c = element_of(work.c, 0u, C_TYPE);
    prepare(b, c);
#endif
}

void finish(Work work) {
    if (work.at.have == 0u) return;
    store_part(work.at.to, work.at.have, computed(work.at, work.a, work.b, work.c));
}

#if defined(TABULATED)
void main() {
    uint group = group_index(), step = gl_NumWorkGroups.y * gl_NumWorkGroups.x;
    uint groups = (parts_per_row() - 1u) / gl_WorkGroupSize.x + 1u;
    Work next;
    next.at = place_of(group, gl_LocalInvocationID.x);
    read(next);
    fill_table();
    barrier();
    [[dont_unroll]] for (; group < groups; group += step) {
        Work work = next;
        next.at = place_of(group + step, gl_LocalInvocationID.x);
        read(next);
        finish(work);
    }
}
#else
void main() {
    uint group = group_index();
    if (BACKWARDS) group = gl_NumWorkGroups.y * gl_NumWorkGroups.x - 1u - group;
    Work x, y;
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        x.at = place_of(group, gl_LocalInvocationID.x + p * gl_WorkGroupSize.x);
        read(x);
        if (PARTS == 2u) swap(x, y);
    }
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        if (p == 0u || !BY_ROW) prepare_for(x);
        finish(x);
        x = y;
    }
}
#endif
