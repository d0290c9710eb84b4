//@ op DML_OPERATOR_JOIN DML_OPERATOR_SPLIT
//@ variants HOW: join split
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Copies packed tensors into the rows of a whole tensor, or out of them: the rows of the parts follow one
// another in a row of the whole. join_many.comp takes more parts than 7. Units are vectors of 16 bytes,
// or words.
layout(constant_id = 1) const uint PARTS = 7u;
layout(constant_id = 2) const bool VECTORS = true;
layout(constant_id = 3) const uint EACH = 1u;  // units of an invocation

layout(push_constant) uniform Push {
    uint part0_offset;
    uint part1_offset;
    uint part2_offset;
    uint part3_offset;
    uint part4_offset;
    uint part5_offset;
    uint part6_offset;
    uint whole_offset;
    uint count;
    uint pitch;  // of the whole's rows
    uint begins[8];  // of the parts in a row; then the row's size
};
#include "include/grid.glsl"

#if defined(HOW_join)
#define PART readonly
#define WHOLE writeonly
#else
#define PART writeonly
#define WHOLE readonly
#endif
#define TENSOR(access, name, slot) \
    layout(binding = slot) access buffer name##_Words { uint name##_words[]; }; \
    layout(binding = slot) access buffer name##_Vectors { uvec4 name##_vectors[]; };
TENSOR(PART, part0, 0)
TENSOR(PART, part1, 1)
TENSOR(PART, part2, 2)
TENSOR(PART, part3, 3)
TENSOR(PART, part4, 4)
TENSOR(PART, part5, 5)
TENSOR(PART, part6, 6)
TENSOR(WHOLE, whole, 7)

#define FOR_EACH_PART(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6)

void main() {
    uint first = group_index() * gl_WorkGroupSize.x * EACH + gl_LocalInvocationID.x;
    uint size = begins[PARTS];
    uint part[EACH];
    uint at[EACH];
    uint whole_at[EACH];
    uvec4 unit[EACH];
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        uint index = min(first + i * gl_WorkGroupSize.x, count - 1u);
        uint row = index / size;
        uint column = index - row * size;
        whole_at[i] = whole_offset + row * pitch + column;
        part[i] = 0u;
        at[i] = column + row * begins[1];
        [[unroll]] for (uint p = 1u; p < PARTS; ++p) {
            if (column >= begins[p]) {
                part[i] = p;
                at[i] = column - begins[p] + row * (begins[p + 1u] - begins[p]);
            }
        }
    }
#if defined(HOW_join)
#define LOAD(p) \
        if (p < PARTS && part[i] == p) { \
            if (VECTORS) unit[i] = part##p##_vectors[part##p##_offset + at[i]]; \
            else unit[i].x = part##p##_words[part##p##_offset + at[i]]; \
        }
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        FOR_EACH_PART(LOAD)
    }
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        if (first + i * gl_WorkGroupSize.x >= count) return;
        if (VECTORS) whole_vectors[whole_at[i]] = unit[i];
        else whole_words[whole_at[i]] = unit[i].x;
    }
#else
#define STORE(p) \
        if (p < PARTS && part[i] == p) { \
            if (VECTORS) part##p##_vectors[part##p##_offset + at[i]] = unit[i]; \
            else part##p##_words[part##p##_offset + at[i]] = unit[i].x; \
        }
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        if (VECTORS) unit[i] = whole_vectors[whole_at[i]];
        else unit[i].x = whole_words[whole_at[i]];
    }
    [[unroll]] for (uint i = 0u; i < EACH; ++i) {
        if (first + i * gl_WorkGroupSize.x >= count) return;
        FOR_EACH_PART(STORE)
    }
#endif
}
