//@ op DML_OPERATOR_JOIN DML_OPERATOR_SPLIT
//@ variants HOW: join split ; MOST: p14 p28
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// As join.comp does, for more tensors, on devices that bind as many. The push constants that every device
// has hold where 28 begin. A workgroup moves units of one part: all its invocations take the same branch.
layout(constant_id = 1) const uint PARTS = 14u;
layout(constant_id = 2) const bool VECTORS = true;
layout(constant_id = 3) const uint EACH = 4u;  // units of an invocation
layout(constant_id = 4) const bool ON_CPU = false;

#if defined(MOST_p14)
#define PARAMS_BINDING 15
#define FOR_EACH_PART(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) \
    DO(13)
#else
#define PARAMS_BINDING 29
#define FOR_EACH_PART(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) \
    DO(13) DO(14) DO(15) DO(16) DO(17) DO(18) DO(19) DO(20) DO(21) DO(22) DO(23) DO(24) DO(25) DO(26) DO(27)
#endif

#define OFFSET(p) uint part##p##_offset;
layout(push_constant) uniform Push {
    FOR_EACH_PART(OFFSET)
    uint whole_offset;
    uint params_offset;
    uint rows;
    uint pitch;  // of the whole's rows
};
#include "include/grid.glsl"
#include "include/params.glsl"

// Words of a part.
const uint GROUP = 0u;  // the first one
const uint BEGIN = 1u;  // in a row of the whole
const uint WIDTH = 2u;  // of its rows
const uint WORDS = 3u;

#if defined(HOW_join)
#define PART readonly
#define WHOLE writeonly
#define MOVE(whole, part) whole = part
#else
#define PART writeonly
#define WHOLE readonly
#define MOVE(whole, part) part = whole
#endif
#define TENSOR(access, name, slot) \
    layout(binding = slot) access buffer name##_Words { uint name##_words[]; }; \
    layout(binding = slot) access buffer name##_Vectors { uvec4 name##_vectors[]; };
#define PART_TENSOR(p) TENSOR(PART, part##p, p)
FOR_EACH_PART(PART_TENSOR)
TENSOR(WHOLE, whole, PARAMS_BINDING - 1)

void main() {
    uint group = group_index(), part = 0u;
    [[unroll]] for (uint p = 1u; p < PARTS; ++p) part += uint(group >= param(p * WORDS + GROUP));
    uint width = param(part * WORDS + WIDTH), begin = whole_offset + param(part * WORDS + BEGIN);
    uint units = rows * width;
    uint first = (group - param(part * WORDS + GROUP)) * gl_WorkGroupSize.x * EACH;

    if (ON_CPU) {  // neighbours: one division serves them all
        first += gl_LocalInvocationID.x * EACH;
        uint row = first / width, column = first - row * width;
#define MOVE_RUN(p) \
        if (p < PARTS && part == p) { \
            uint at = first, to = begin + row * pitch + column, end = begin + row * pitch + width; \
            for (uint i = 0u; i < EACH && at < units; ++i) { \
                if (VECTORS) MOVE(whole_vectors[to], part##p##_vectors[part##p##_offset + at]); \
                else MOVE(whole_words[to], part##p##_words[part##p##_offset + at]); \
                ++at; \
                ++to; \
                if (to == end) { \
                    to += pitch - width; \
                    end += pitch; \
                } \
            } \
        }
        FOR_EACH_PART(MOVE_RUN)
        return;
    }

    uint at[EACH];
    uint whole_at[EACH];
    uvec4 unit[EACH];
    first += gl_LocalInvocationID.x;
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        at[i] = min(first + i * gl_WorkGroupSize.x, units - 1u);
        uint row = at[i] / width;
        whole_at[i] = begin + row * pitch + (at[i] - row * width);
    }
#if defined(HOW_join)
#define LOAD(p) \
    if (p < PARTS && part == p) { \
        [[unroll]] for (uint i = 0u; i < EACH; ++i) { \
            if (VECTORS) unit[i] = part##p##_vectors[part##p##_offset + at[i]]; \
            else unit[i].x = part##p##_words[part##p##_offset + at[i]]; \
        } \
    }
    FOR_EACH_PART(LOAD)
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        if (first + i * gl_WorkGroupSize.x >= units) return;
        if (VECTORS) whole_vectors[whole_at[i]] = unit[i];
        else whole_words[whole_at[i]] = unit[i].x;
    }
#else
#define STORE(p) \
    if (p < PARTS && part == p) { \
        [[unroll]] for (uint i = 0u; i < EACH; ++i) { \
            if (first + i * gl_WorkGroupSize.x >= units) return; \
            if (VECTORS) part##p##_vectors[part##p##_offset + at[i]] = unit[i]; \
            else part##p##_words[part##p##_offset + at[i]] = unit[i].x; \
        } \
    }
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        if (VECTORS) unit[i] = whole_vectors[whole_at[i]];
        else unit[i].x = whole_words[whole_at[i]];
    }
    FOR_EACH_PART(STORE)
#endif
}
