// The frame of every elementwise shader: it brings elements in and out, whatever their widths and
// strides. The includer defines INPUTS (1 to 3) and ATTRIBUTES (more push fields), and
//   uvec2 compute(uvec2 a, uvec2 b, uvec2 c)
// which takes and gives the bits of one element (y holds the upper half of 64-bit ones, else 0).
//
// With NUMBERED defined, a is no tensor: it is what a_strides say of an element, its number.
//
// The output is a number of lines along its last dimension. WHOLE: a line lies gapless; it is made in
// parts of EACH elements, so many that the widest type's fill a vector of 16 bytes and the output's at
// least a word. Otherwise a part is one element. An invocation makes one part.
//
// With PREPARES defined, prepare() comes before all calls of compute.
#include "include/grid.glsl"

// Data types as the host writes them: bytes, 16 if signed, 32 if floating point.
#define BYTES_OF(type) ((type) & 15u)
#define IS_SIGNED(type) (((type) & 16u) != 0u)
#define IS_FLOAT(type) (((type) & 32u) != 0u)

layout(constant_id = 1) const bool WHOLE = false;
layout(constant_id = 2) const uint OUT_TYPE = 36u;
layout(constant_id = 3) const uint A_TYPE = 36u;
layout(constant_id = 4) const uint B_TYPE = 0u;  // 0: there is none
layout(constant_id = 5) const uint C_TYPE = 0u;
// Keeps the loop over an invocation's elements a loop: drivers that run on the CPU are slow to
// compile it unrolled, GPUs are slow to run it otherwise.
layout(constant_id = 7) const bool ROLLED = false;
// The device's own fma rounds once, and its conversions to and from float16 are IEEE's.
layout(constant_id = 10) const bool EXACT_UNITS = false;
#define HAS_EXACT_UNITS EXACT_UNITS

layout(push_constant) uniform Push {
    uint lines;
    uint rank;
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

const uint OUT_BYTES = BYTES_OF(OUT_TYPE);
const uint A_BYTES = BYTES_OF(A_TYPE);
const uint B_BYTES = BYTES_OF(B_TYPE);
const uint C_BYTES = BYTES_OF(C_TYPE);
const uint WIDER = OUT_BYTES > A_BYTES ? OUT_BYTES : A_BYTES;
const uint OTHER = B_BYTES > C_BYTES ? B_BYTES : C_BYTES;
const uint WIDEST = WIDER > OTHER ? WIDER : OTHER;
const uint BY_VECTOR = 16u / WIDEST;
const uint BY_WORD = 4u / OUT_BYTES;
const uint EACH = WHOLE ? (BY_VECTOR > BY_WORD ? BY_VECTOR : BY_WORD) : 1u;

// A part's elements, side by side as they lie in memory.
struct Part {
    uvec4 low;
    uvec4 high;  // of 4 elements of 8 bytes
};

uvec2 element_of(Part part, uint e, uint bytes) {
    uint word = e * bytes / 4u;
    if (bytes == 8u) {
        uvec4 block = e < 2u ? part.low : part.high;
        return e % 2u == 0u ? block.xy : block.zw;
    }
    if (bytes == 4u) return uvec2(part.low[word], 0u);
    return uvec2(bitfieldExtract(part.low[word], int(e * bytes % 4u * 8u), int(8u * bytes)), 0u);
}

// The part must hold zeros there.
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
        bool is_top = (e + 1u) * bytes % 4u == 0u;  // the shift drops what is beyond
        uint bits = is_top ? x.x : bitfieldExtract(x.x, 0, int(8u * bytes));
        part.low[word] |= bits << (e * bytes % 4u * 8u);
    }
}

// What a fetch with step 0 brings, as many times as a part has room.
Part repeated(Part part, uint byte, uint bytes) {
    uvec2 x = part.low.xy;
    if (bytes == 1u) x.x = (x.x >> byte % 4u * 8u & 0xFFu) * 0x01010101u;
    if (bytes == 2u) x.x = bitfieldExtract(x.x, int(byte % 4u * 8u), 16) * 0x00010001u;
    return bytes == 8u ? Part(x.xyxy, x.xyxy) : Part(x.xxxx, x.xxxx);
}

// An input's elements for one part: at once where they lie so, else one by one. Beyond the end the
// last one repeats. With step 0 only the memory that holds the element: what is loaded is not touched
// before all loads are under way.
#define INPUT(name, slot, type) \
    layout(binding = slot) readonly buffer name##_Vectors { uvec4 name##_vectors[]; }; \
    layout(binding = slot) readonly buffer name##_Pairs { uvec2 name##_pairs[]; }; \
    layout(binding = slot) readonly buffer name##_Words { uint name##_words[]; }; \
\
    uvec2 name##_element(uint at) { \
        const uint bytes = BYTES_OF(type); \
        if (bytes == 8u) return uvec2(name##_words[2u * at], name##_words[2u * at + 1u]); \
        return uvec2(name##_words[at * bytes / 4u] >> (bytes < 4u ? at * bytes % 4u * 8u : 0u), 0u); \
    } \
\
    Part fetch_##name(uint at, uint step, uint have) { \
        Part part = Part(uvec4(0u), uvec4(0u)); \
        if (type == 0u) return part; \
        const uint bytes = BYTES_OF(type); \
        const uint span = EACH * bytes; \
        uint byte = at * bytes; \
        if (have == EACH && step == 1u && byte % (span < 16u ? span : 16u) == 0u && span >= 4u) { \
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
        if (step == 0u) { \
            part.low.x = name##_words[byte / 4u]; \
            if (bytes == 8u) part.low.y = name##_words[byte / 4u + 1u]; \
            return part; \
        } \
        uint passes = ROLLED ? have : EACH; \
        [[unroll]] for (uint e = 0u; e < passes; ++e) \
            insert(part, e, bytes, name##_element(at + min(e, have - 1u) * step)); \
        return part; \
    }

INPUT(a, 0, A_TYPE)
#if INPUTS > 1
INPUT(b, 1, B_TYPE)
#endif
#if INPUTS > 2
INPUT(c, 2, C_TYPE)
#endif

layout(binding = INPUTS) buffer OutputWords { uint out_words[]; };
layout(binding = INPUTS) writeonly buffer OutputPairs { uvec2 out_pairs[]; };
layout(binding = INPUTS) writeonly buffer OutputVectors { uvec4 out_vectors[]; };

uvec2 compute(uvec2 a, uvec2 b, uvec2 c);

// Touches the element's own bits only: neighbours in one word do not race, gaps stay as they are.
void store(uint at, uvec2 x) {
    if (OUT_BYTES == 8u) {
        out_words[2u * at] = x.x;
        out_words[2u * at + 1u] = x.y;
    } else if (OUT_BYTES == 4u) {
        out_words[at] = x.x;
    } else {
        uint word = at / (4u / OUT_BYTES);
        uint shift = at % (4u / OUT_BYTES) * OUT_BYTES * 8u;
        uint own_bits = (out_words[word] >> shift ^ x.x) & ((1u << (8u * OUT_BYTES)) - 1u);
        atomicXor(out_words[word], own_bits << shift);  // no other invocation changes them
    }
}

void store_part(uint at, uint have, Part part) {
    const uint span = EACH * OUT_BYTES;
    if (WHOLE && have == EACH) {
        if (span == 4u) out_words[at / EACH] = part.low.x;
        else if (span == 8u) out_pairs[at / EACH] = part.low.xy;
        else out_vectors[at / EACH] = part.low;
        return;
    }
    for (uint e = 0u; e < have; ++e) store(at + e, element_of(part, e, OUT_BYTES));
}

// Where a part begins in each operand, and how many elements it has.
struct Place {
    uint have;
    uint to;
    uint a;
    uint b;
    uint c;
};

Place place_of(uint index) {
    Place at = Place(0u, out_offset, a_offset, 0u, 0u);
#if INPUTS > 1
    at.b = b_offset;
#endif
#if INPUTS > 2
    at.c = c_offset;
#endif
    uint last = rank - 1u;
    uint size = sizes[last];
    uint part = index;
    uint line = 0u;
    if (lines > 1u) {
        uint per_line = WHOLE ? (size + EACH - 2u) / EACH + 1u : size;
        line = index / per_line;
        part = index - line * per_line;
        if (line >= lines) return at;
        for (uint d = last; d-- > 0u;) {
            uint next = d == 0u ? 0u : line / sizes[d];
            uint coordinate = line - next * sizes[d];
            line = next;
            at.to += coordinate * out_strides[d];
            at.a += coordinate * a_strides[d];
#if INPUTS > 1
            at.b += coordinate * b_strides[d];
#endif
#if INPUTS > 2
            at.c += coordinate * c_strides[d];
#endif
        }
    }
    uint first = at.to;
    if (WHOLE) {
        uint block = at.to / EACH + part;
        first = max(block * EACH, at.to);
        uint end = min(block * EACH + EACH, at.to + size);
        if (first >= end) return at;
        at.have = end - first;
        part = first - at.to;
    } else {
        if (part >= size) return at;
        at.have = 1u;
    }
    at.to += part * out_strides[last];
    at.a += part * a_strides[last];
#if INPUTS > 1
    at.b += part * b_strides[last];
#endif
#if INPUTS > 2
    at.c += part * c_strides[last];
#endif
    return at;
}

Part computed(Place at, Part a, Part b, Part c) {
    Part result = Part(uvec4(0u), uvec4(0u));
    uint passes = ROLLED ? at.have : EACH;
    [[unroll]] for (uint e = 0u; e < passes; ++e) {
#if defined(NUMBERED)
        uvec2 x = uvec2(at.a + e * a_strides[rank - 1u], 0u);
#else
        uvec2 x = element_of(a, e, A_BYTES);
#endif
        uvec2 y = uvec2(0u), z = uvec2(0u);
        if (B_TYPE != 0u) y = element_of(b, e, B_BYTES);
        if (C_TYPE != 0u) z = element_of(c, e, C_BYTES);
        insert(result, e, OUT_BYTES, compute(x, y, z));
    }
    return result;
}

#if defined(PREPARES)
void prepare();
#endif

void main() {
    Place at = place_of(invocation_index());
    if (at.have == 0u) return;
    Part a, b, c;
    uint last = rank - 1u;
#if !defined(NUMBERED)
    a = fetch_a(at.a, a_strides[last], at.have);
#endif
#if INPUTS > 1
    b = fetch_b(at.b, b_strides[last], at.have);
#endif
#if INPUTS > 2
    c = fetch_c(at.c, c_strides[last], at.have);
#endif
#if !defined(NUMBERED)
    if (a_strides[last] == 0u) a = repeated(a, at.a * A_BYTES, A_BYTES);
#endif
#if INPUTS > 1
    if (b_strides[last] == 0u) b = repeated(b, at.b * B_BYTES, B_BYTES);
#endif
#if INPUTS > 2
    if (c_strides[last] == 0u) c = repeated(c, at.c * C_BYTES, C_BYTES);
#endif
#if defined(PREPARES)
    prepare();
#endif
    store_part(at.to, at.have, computed(at, a, b, c));
}
