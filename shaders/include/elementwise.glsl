// The frame of every elementwise shader: it brings elements in and out, whatever their widths and
// strides. The includer defines INPUTS (1 to 3) and ATTRIBUTES (more push fields), and
//   uvec2 compute(uvec2 a, uvec2 b, uvec2 c)
// which takes and gives the bits of one element (y holds the upper half of 64-bit ones, else 0).
//
// With NUMBERED defined, a is no tensor: it is what a_strides say of an element, its number.
//
// The output is a number of lines along its last dimension. WHOLE: a line lies gapless; an invocation
// makes the part of it that falls into one vector of 16 bytes. Otherwise it makes one element.
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
const uint EACH = WHOLE ? 16u / OUT_BYTES : 1u;

// Elements side by side in a block of 16 bytes, as their bits.
uvec2 element_of(uvec4 block, uint e, uint bytes) {
    if (bytes == 8u) return e == 0u ? block.xy : block.zw;
    uint word = block[e * bytes / 4u];
    if (bytes == 4u) return uvec2(word, 0u);
    return uvec2(bitfieldExtract(word, int(e * bytes % 4u * 8u), int(8u * bytes)), 0u);
}

// The block must hold zeros there.
void insert(inout uvec4 block, uint e, uint bytes, uvec2 x) {
    if (bytes == 8u) {
        if (e == 0u) block.xy = x;
        else block.zw = x;
    } else if (bytes == 4u) {
        block[e] = x.x;
    } else {
        uint bits = bitfieldExtract(x.x, 0, int(8u * bytes));
        block[e * bytes / 4u] |= bits << (e * bytes % 4u * 8u);
    }
}

// An input's elements for one invocation: whole vectors where they lie so, else one by one. Beyond
// the end the last one repeats.
#define INPUT(name, slot, type) \
    layout(binding = slot) readonly buffer name##_Vectors { uvec4 name[]; }; \
    const uint name##_BYTES = type == 0u ? 16u : BYTES_OF(type); \
    const uint name##_EACH = 16u / name##_BYTES; \
\
    uint name##_block(uint e) { \
        return name##_EACH < EACH ? e / name##_EACH : 0u; \
    } \
\
    void fetch_##name(uint at, uint step, uint have, inout uvec4 blocks[8]) { \
        if (type == 0u) return; \
        if (have == EACH && step == 1u && name##_EACH <= EACH && at % name##_EACH == 0u) { \
            [[unroll]] for (uint v = 0u; v < EACH / name##_EACH; ++v) \
                blocks[v] = name[at / name##_EACH + v]; \
            return; \
        } \
        uint passes = ROLLED ? have : EACH; \
        [[unroll]] for (uint e = 0u; e < passes; ++e) { \
            uint from = at + min(e, have - 1u) * step; \
            uint word = from * name##_BYTES / 4u; \
            uvec2 x = uvec2(name[word / 4u][word % 4u], 0u); \
            if (name##_BYTES == 8u) x.y = name[word / 4u][word % 4u + 1u]; \
            if (name##_BYTES < 4u) x.x >>= from * name##_BYTES % 4u * 8u; \
            insert(blocks[name##_block(e)], e % name##_EACH, name##_BYTES, x); \
        } \
    }

INPUT(a, 0, A_TYPE)
#if INPUTS > 1
INPUT(b, 1, B_TYPE)
#endif
#if INPUTS > 2
INPUT(c, 2, C_TYPE)
#endif

layout(binding = INPUTS) buffer OutputWords { uint out_words[]; };
layout(binding = INPUTS + 1) writeonly buffer OutputVectors { uvec4 out_vectors[]; };

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
        uint mask = (1u << (8u * OUT_BYTES)) - 1u;
        atomicAnd(out_words[word], ~(mask << shift));
        atomicOr(out_words[word], (x.x & mask) << shift);
    }
}

void main() {
    uint size = sizes[rank - 1u];
    uint per_line = WHOLE ? (size + EACH - 2u) / EACH + 1u : size;
    uint line = invocation_index() / per_line;
    uint part = invocation_index() - line * per_line;
    if (line >= lines) return;

    uint to = out_offset;
    uint a_at = a_offset;
    uint a_step = a_strides[rank - 1u];
#if INPUTS > 1
    uint b_at = b_offset;
    uint b_step = b_strides[rank - 1u];
#endif
#if INPUTS > 2
    uint c_at = c_offset;
    uint c_step = c_strides[rank - 1u];
#endif
    for (uint d = rank - 1u; d-- > 0u;) {
        uint next = line / sizes[d];
        uint coordinate = line - next * sizes[d];
        line = next;
        to += coordinate * out_strides[d];
        a_at += coordinate * a_strides[d];
#if INPUTS > 1
        b_at += coordinate * b_strides[d];
#endif
#if INPUTS > 2
        c_at += coordinate * c_strides[d];
#endif
    }

    uint skip = part;  // elements of the line before the first that is made here
    uint have = 1u;
    uint vector = 0u;
    if (WHOLE) {
        vector = to / EACH + part;
        uint first = max(vector * EACH, to);
        uint last = min(vector * EACH + EACH, to + size);
        if (first >= last) return;
        have = last - first;
        skip = first - to;
    }
    to += skip * out_strides[rank - 1u];
    uvec4 a_blocks[8], b_blocks[8], c_blocks[8];
    for (uint i = 0u; i < 8u; ++i) a_blocks[i] = b_blocks[i] = c_blocks[i] = uvec4(0u);
#if !defined(NUMBERED)
    fetch_a(a_at + skip * a_step, a_step, have, a_blocks);
#endif
#if INPUTS > 1
    fetch_b(b_at + skip * b_step, b_step, have, b_blocks);
#endif
#if INPUTS > 2
    fetch_c(c_at + skip * c_step, c_step, have, c_blocks);
#endif

    uvec4 result = uvec4(0u);
    uint passes = ROLLED ? have : EACH;
    [[unroll]] for (uint e = 0u; e < passes; ++e) {
#if defined(NUMBERED)
        uvec2 x = uvec2(a_at + (skip + e) * a_step, 0u);
#else
        uvec2 x = element_of(a_blocks[a_block(e)], e % a_EACH, a_BYTES);
#endif
        uvec2 y = uvec2(0u), z = uvec2(0u);
#if INPUTS > 1
        if (B_TYPE != 0u) y = element_of(b_blocks[b_block(e)], e % b_EACH, b_BYTES);
#endif
#if INPUTS > 2
        if (C_TYPE != 0u) z = element_of(c_blocks[c_block(e)], e % c_EACH, c_BYTES);
#endif
        insert(result, e, OUT_BYTES, compute(x, y, z));
    }
    if (WHOLE && have == EACH) {
        out_vectors[vector] = result;
    } else {
        for (uint e = 0u; e < have; ++e) store(to + e, element_of(result, e, OUT_BYTES));
    }
}
