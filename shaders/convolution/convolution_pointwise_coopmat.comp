//@ op DML_OPERATOR_CONVOLUTION
//@ variants TILE:
//@     s16(subgroups=16)
//@     s12(subgroups=12)
//@ glslang >= 14
//@ target vulkan1.1
//@ tail *
//@ unchecked *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
// Convolutions of one tap on matrix units, FLOAT16 with float32 sums, channels last, of small constant filters that
// convolution_pack_filter.comp has put into the order of matrix units. A part of the columns stays in shared memory.
// Each subgroup goes from one tile of 16 pixels to the next by itself, without barriers: an invocation's vectors of the
// next tile are on their way while this one is multiplied (DeviceTraits.fragments_alike). Pixels are right operands,
// columns of the filter left ones. Columns are packed in an order that gives each invocation eight neighbouring channels
// of its sums.
// Nothing is read or written outside of the tensors: rows, columns and vectors of the filter are clamped, channels and
// vectors of a tail that do not exist become the first of their buffer, and such outputs are not stored.
layout(constant_id = 1) const bool HAS_BIAS = false;
layout(constant_id = 2) const uint CHUNKS = 1u;     // of 32 channels of the input
layout(constant_id = 3) const uint STRIPS = 1u;     // of 64 columns, of a workgroup
layout(constant_id = 4) const uint TOGETHER = 1u;   // tiles of a subgroup that are on their way
layout(constant_id = 5) const uint CHANNELS = 32u;  // of the input
layout(constant_id = 6) const uint SIZE_Y = 1u;     // positions
layout(constant_id = 7) const uint SIZE_X = 1u;
layout(constant_id = 8) const uint COLUMN_TILES = 1u;
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint rows;  // positions in all batches
    uint out_channels;
    uint x_strides[3];  // batch, y, x: from output to output
    uint y_strides[3];
    uint bias_stride;
    uint activation_at;
    uint x_offset;
    uint w_offset;
    uint y_offset;
    uint bias_offset;
    TAIL_FIELD
    uint params_offset;
};
#define PARAMS_BINDING AFTER_TAIL(4)
#include "include/params.glsl"
layout(binding = 0) readonly buffer Input { uvec4 x_vectors[]; };
layout(binding = 1) readonly buffer FilterVectors { uvec4 w_vectors[]; };
layout(binding = 2) writeonly buffer OutputVectors { uvec4 y_vectors[]; };
layout(binding = 3) readonly buffer Bias { float16_t bias[]; };
#include "include/typed.glsl"
#define TAIL_BINDING 4
#define TAIL_TYPE 34u
#include "include/tail.glsl"

const uint SUBGROUPS = TILE_subgroups;
const uint INVOCATIONS = 32u * SUBGROUPS;
layout(local_size_x = INVOCATIONS) in;
const uint FRAGMENT = 16u, COLUMNS = 4u;
#define Product coopmat<float, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseAccumulator>
#define RowFragment coopmat<float16_t, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseB>
#define ColumnFragment coopmat<float16_t, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseA>

const uint VECTORS = STRIPS * CHUNKS * 256u;
shared uvec4 s_filter[VECTORS];
shared vec4 s_bias[STRIPS * 16u];

// The element of a position's first channel.
uint place_of(uint row, uint strides[3]) {
    uint x = row % SIZE_X, line = row / SIZE_X;
    return line / SIZE_Y * strides[0] + line % SIZE_Y * strides[1] + x * strides[2];
}

// A tail's vectors are asked for before pixels are multiplied.
#if defined(TAIL)
#define ASKS_TAIL HAS_TAIL_TENSOR
#else
#define ASKS_TAIL false
#endif

// Eight elements of a tail's tensor that are a vector.
uvec4 tail_eight(uint at) {
#if defined(TAIL)
    if (HAS_TAIL_TENSOR) return tail_vectors[(tail_offset + at) / 8u];
#endif
    return uvec4(0u);
}

vec4 four_of(uvec2 pair) {
    return vec4(half_to_float(pair.x & 0xFFFFu), half_to_float(pair.x >> 16),
                half_to_float(pair.y & 0xFFFFu), half_to_float(pair.y >> 16));
}

void main() {
    uint i = gl_LocalInvocationIndex, lane = gl_SubgroupInvocationID;
    const uint PART = FRAGMENT * TOGETHER;
    uint column_tile = gl_WorkGroupID.x % COLUMN_TILES, first_column = column_tile * STRIPS * 64u;
    uint first = (gl_WorkGroupID.x / COLUMN_TILES * SUBGROUPS + gl_SubgroupID) * PART;
    uint apart = gl_NumWorkGroups.x / COLUMN_TILES * SUBGROUPS * PART;
    uvec4 low[TOGETHER * CHUNKS], high[TOGETHER * CHUNKS];
#define FROM(row) ((x_offset + place_of(min(row, rows - 1u), x_strides)) / 8u + lane % 4u)
// The last channels may be fewer than 32.
#define IS_INSIDE(chunk) ((chunk) * 32u + 32u <= CHANNELS || (chunk) * 32u + lane % 4u * 8u < CHANNELS)
#define ASK(n, from_low, from_high, chunk) { \
        low[n] = x_vectors[IS_INSIDE(chunk) ? (from_low) + (chunk) * 4u : 0u]; \
        high[n] = x_vectors[IS_INSIDE(chunk) ? (from_high) + (chunk) * 4u : 0u]; \
    }
    [[unroll]] for (uint t = 0u; t < TOGETHER; ++t) {
        uint row = first + t * FRAGMENT + lane / 4u, from_low = FROM(row), from_high = FROM(row + 8u);
        [[unroll]] for (uint chunk = 0u; chunk < CHUNKS; ++chunk) ASK(t * CHUNKS + chunk, from_low, from_high, chunk)
    }
    uint w_vector = column_tile * VECTORS, w_last = (out_channels + 63u) / 64u * CHUNKS * 256u - 1u;
    for (uint v = i; v < VECTORS; v += INVOCATIONS) s_filter[v] = w_vectors[w_offset / 8u + min(w_vector + v, w_last)];
    for (uint c = i; c < STRIPS * 64u; c += INVOCATIONS) {
        uint channel = min(first_column + c, out_channels - 1u);
        s_bias[c / 4u][c % 4u] = HAS_BIAS ? float(bias[bias_offset + channel * bias_stride]) : 0.0;
    }
    barrier();
#define HALVES(to, at, word) { \
        f16vec2 pair = unpackFloat2x16(word); \
        to[at] = pair.x; \
        to[at + 1] = pair.y; \
    }
#define MULTIPLY(n, step, first_word, second_word) { \
        RowFragment x; \
        HALVES(x, 0, low[n].first_word) \
        HALVES(x, 2, low[n].second_word) \
        HALVES(x, 4, high[n].first_word) \
        HALVES(x, 6, high[n].second_word) \
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) { \
            uvec4 words = s_filter[w_at + (step) * 128u + c * 32u]; \
            ColumnFragment w; \
            HALVES(w, 0, words.x) \
            HALVES(w, 4, words.y) \
            HALVES(w, 2, words.z) \
            HALVES(w, 6, words.w) \
            products[c] = coopMatMulAdd(w, x, products[c]); \
        } \
    }
#define PLACE_VECTOR(at) { \
        uint r = row + lane % 4u * 2u + at % 2u + at / 2u * 8u; \
        there[at] = r < rows && own < out_channels; \
        to[at] = place_of(r, y_strides) + own; \
        others[at] = tail_eight(there[at] ? to[at] : 0u); \
    }
#define STORE_VECTOR(at) { \
        if (!ASKS_TAIL) PLACE_VECTOR(at) \
        vec4 low_ = vec4(products[0][at], products[0][at + 4], products[1][at], products[1][at + 4]); \
        vec4 high_ = vec4(products[2][at], products[2][at + 4], products[3][at], products[3][at + 4]); \
        vec4 others_low = four_of(others[at].xy), others_high = four_of(others[at].zw); \
        if (HAS_BIAS) { \
            low_ += s_bias[(own - first_column) / 4u]; \
            high_ += s_bias[(own - first_column) / 4u + 1u]; \
        } \
        [[unroll]] for (uint e = 0u; e < 4u; ++e) { \
            low_[e] = finish_beside(low_[e], others_low[e]); \
            high_[e] = finish_beside(high_[e], others_high[e]); \
        } \
        if (there[at]) \
            y_vectors[(y_offset + to[at]) / 8u] = uvec4(packHalf2x16(low_.xy), packHalf2x16(low_.zw), \
                                                    packHalf2x16(high_.xy), packHalf2x16(high_.zw)); \
    }
    [[dont_unroll]] for (; first < rows; first += apart) {
        [[unroll]] for (uint t = 0u; t < TOGETHER; ++t) {
            uint row = first + t * FRAGMENT;
            uint next = row + apart + lane / 4u, from_low = FROM(next), from_high = FROM(next + 8u);
            [[unroll]] for (uint strip = 0u; strip < STRIPS; ++strip) {
                uint own = first_column + strip * 64u + lane / 4u * 8u, to[4];
                bool there[4];
                uvec4 others[4];
                if (ASKS_TAIL) {
                    PLACE_VECTOR(0)
                    PLACE_VECTOR(1)
                    PLACE_VECTOR(2)
                    PLACE_VECTOR(3)
                }
                Product products[COLUMNS];
                [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) products[c] = Product(0);
                [[unroll]] for (uint chunk = 0u; chunk < CHUNKS; ++chunk) {
                    uint w_at = (strip * CHUNKS + chunk) * 256u + lane;
                    if (!IS_INSIDE(chunk)) low[t * CHUNKS + chunk] = high[t * CHUNKS + chunk] = uvec4(0u);
                    MULTIPLY(t * CHUNKS + chunk, 0u, x, y)
                    MULTIPLY(t * CHUNKS + chunk, 1u, z, w)
                    if (strip + 1u == STRIPS) ASK(t * CHUNKS + chunk, from_low, from_high, chunk)
                }
                STORE_VECTOR(0)
                STORE_VECTOR(1)
                STORE_VECTOR(2)
                STORE_VECTOR(3)
            }
        }
    }
}
