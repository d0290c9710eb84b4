// Convolutions on matrix units, FLOAT16 with float32 sums, whose subgroups keep their columns of the filter in
// registers. The output has its channels last, in whole vectors. The includer has push fields out_channels,
// bias_stride, activation_at and the offsets, and defines SUBGROUPS, SIDEWAYS (how many of them share the outputs
// of a fragment), COLUMNS (fragments of columns of each) and STEPS (of K).
#include "include/params.glsl"
// Not readonly, or a compiler may read the filter again instead of keeping it.
layout(binding = 1) buffer FilterVectors { uvec4 w_vectors[]; };
layout(binding = 2) writeonly buffer OutputVectors { uvec4 y_vectors[]; };
layout(binding = 3) readonly buffer Bias { float16_t bias[]; };
#include "include/typed.glsl"
#define TAIL_BINDING 4
#define TAIL_TYPE 34u
#include "include/tail.glsl"

const uint INVOCATIONS = 32u * SUBGROUPS;
layout(local_size_x = INVOCATIONS) in;
const uint FRAGMENT = 16u;
const uint PART_COLUMNS = COLUMNS * FRAGMENT;
const uint TILE_COLUMNS = PART_COLUMNS * SIDEWAYS;
#define Product coopmat<float, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseAccumulator>
#define RowFragment coopmat<float16_t, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseA>
#define ColumnFragment coopmat<float16_t, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseB>

const uint STRIP_PITCH = FRAGMENT / 4u + 1u, STRIP = FRAGMENT * STRIP_PITCH;
shared uvec4 s_strips[SUBGROUPS * STRIP];  // a fragment of each subgroup on its way out
shared float s_bias[TILE_COLUMNS];

// An array of the subgroup's columns of the filter, whose lines are contiguous.
#define KEEP_FILTER(taps, column_tile, part_column) \
    ColumnFragment taps[STEPS][COLUMNS]; \
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) { \
        uint column = min(column_tile + part_column + c * FRAGMENT, out_channels - FRAGMENT); \
        [[unroll]] for (uint s = 0u; s < STEPS; ++s) \
            coopMatLoad(taps[s][c], w_vectors, w_offset / 8u + (column * STEPS + s) * 2u, STEPS * 2u, \
                        gl_CooperativeMatrixLayoutColumnMajor); \
    }

// A barrier must follow.
void fill_bias(uint column_tile) {
    for (uint c = gl_LocalInvocationIndex; c < TILE_COLUMNS; c += INVOCATIONS) {
        uint channel = min(column_tile + c, out_channels - 1u);
        s_bias[c] = HAS_BIAS ? float(bias[bias_offset + channel * bias_stride]) : 0.0;
    }
}

// Eight outputs of a strip, which begin in ``column`` of the tile and at element ``to``.
uvec4 finished(uint strip, uint column, uint to) {
    uint from = strip + gl_SubgroupInvocationID / 2u * STRIP_PITCH + gl_SubgroupInvocationID % 2u * 2u;
    vec4 low = uintBitsToFloat(s_strips[from]), high = uintBitsToFloat(s_strips[from + 1u]);
    vec4 other_low = tail_four(to), other_high = tail_four(to + 4u);
    [[unroll]] for (uint e = 0u; e < 4u; ++e) {
        low[e] = finish_beside(HAS_BIAS ? low[e] + s_bias[column + e] : low[e], other_low[e]);
        high[e] = finish_beside(HAS_BIAS ? high[e] + s_bias[column + e + 4u] : high[e], other_high[e]);
    }
    return uvec4(packHalf2x16(low.xy), packHalf2x16(low.zw), packHalf2x16(high.xy), packHalf2x16(high.zw));
}

// Stores the product of fragment ``c`` of columns, if there is one. Each invocation has eight channels of the output
// gl_SubgroupInvocationID / 2 of the fragment, whose first element is ``place``. Not a loop over c: if a compiler does
// not unroll it, all products go to memory.
#define STORE(products, c, there, place) \
    if (c < COLUMNS) { \
        coopMatStore(products[min(c, COLUMNS - 1u)], s_strips, strip, STRIP_PITCH, \
                     gl_CooperativeMatrixLayoutRowMajor); \
        subgroupMemoryBarrierShared(); \
        subgroupBarrier(); \
        uint column = part_column + c * FRAGMENT + gl_SubgroupInvocationID % 2u * 8u; \
        if (there && column_tile + column < out_channels) { \
            uint to = place + column_tile + column; \
            y_vectors[(y_offset + to) / 8u] = finished(strip, column, to); \
        } \
        subgroupMemoryBarrierShared(); \
        subgroupBarrier(); \
    }
