//@ op DML_OPERATOR_CONVOLUTION
//@ variants TILE:
//@     c1f2(subgroups=4)
//@     c1f2s8(subgroups=8)
//@ glslang >= 14
//@ target vulkan1.1
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
// Convolutions with small filters on matrix units, channels last. The filter stays for one tile of the image after
// the other. A tile, with the pixels around it, lies in shared memory. Outputs are counted along its rows with these
// pixels, so that rows of a matrix are always one pixel apart, and a tap is a distance.
layout(constant_id = 1) const bool HAS_BIAS = false;
layout(constant_id = 2) const uint TAPS_Y = 1u;
layout(constant_id = 3) const uint TAPS_X = 1u;
layout(constant_id = 4) const uint VECTORS = 8u;  // of channels, even
layout(constant_id = 5) const uint TILE_Y = 1u;   // outputs of a tile
layout(constant_id = 6) const uint TILE_X = 32u;
layout(constant_id = 7) const uint SHARED = 1u;  // vectors of shared memory for a tile
layout(constant_id = 8) const uint LOADS = 4u;   // vectors of a tile for each invocation
#include "include/tailed.glsl"
layout(push_constant) uniform Push {
    uint x_tiles;
    uint y_tiles;
    uint batches;
    uint out_channels;
    int in_sizes[2];  // y, x
    uint out_sizes[2];
    int first[2];     // the first tap of the first output
    uint steps[2];    // from output to output
    uint x_strides[3];  // batch, y, x
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
layout(binding = 0) readonly buffer Input { uvec4 x_vectors[]; };
const uint SUBGROUPS = TILE_subgroups;
const uint COLUMNS = 1u, FRAGMENTS = 2u;  // of a subgroup at a time
const uint SIDEWAYS = 4u;  // subgroups that share the pixels of a fragment
const uint STEPS = TAPS_Y * TAPS_X * VECTORS / 2u;
#include "include/resident_filter.glsl"

const uint PIXEL = VECTORS + 1u;  // a vector of padding avoids bank conflicts
const uint WIDTH = TILE_X + TAPS_X - 1u, HEIGHT = TILE_Y + TAPS_Y - 1u;
const uint OUTPUTS = TILE_Y * WIDTH - (TAPS_X - 1u);
shared uvec4 s_tile[SHARED];

struct Place {
    uint batch;
    uint y;
    uint x;
};

Place place_of(uint tile) {
    Place at;
    uint next = tile / x_tiles;
    at.x = (tile - next * x_tiles) * TILE_X;
    at.batch = next / y_tiles;
    at.y = (next - at.batch * y_tiles) * TILE_Y;
    return at;
}

#define STORE_FRAGMENT(r) \
    { \
        uint output_ = (f + r) * FRAGMENT + gl_SubgroupInvocationID / 2u, column = output_ % WIDTH; \
        uint y = at.y + output_ / WIDTH, x = at.x + column; \
        bool there = column < TILE_X && output_ < OUTPUTS && y < out_sizes[0] && x < out_sizes[1]; \
        uint place = at.batch * y_strides[0] + y * y_strides[1] + x * y_strides[2]; \
        STORE(products[r], 0, there, place) \
    }

void main() {
    uint i = gl_LocalInvocationIndex;
    const uint column_tile = 0u;
    uint apart = gl_NumWorkGroups.x;
    uint tiles = batches * y_tiles * x_tiles;
    uint part_column = gl_SubgroupID % SIDEWAYS * PART_COLUMNS;
    uint tile = gl_WorkGroupID.x;
    uvec4 next[LOADS];
    uint kept;
    // Asks for a tile. Nothing waits for it before it is stored.
#define LOAD(tile) \
    { \
        Place at = place_of(min(tile, tiles - 1u)); \
        int top = int(at.y * steps[0]) + first[0], left = int(at.x * steps[1]) + first[1]; \
        uint from = x_offset + at.batch * x_strides[0]; \
        kept = 0u; \
        [[unroll]] for (uint l = 0u; l < LOADS; ++l) { \
            uint vector = i + l * INVOCATIONS, pixel = vector / VECTORS; \
            int y = top + int(pixel / WIDTH * steps[0]), x = left + int(pixel % WIDTH * steps[1]); \
            bool inside = uint(y) < uint(in_sizes[0]) && uint(x) < uint(in_sizes[1]); \
            kept |= inside ? 1u << l : 0u; \
            next[l] = x_vectors[inside ? (from + uint(y) * x_strides[1] + uint(x) * x_strides[2]) / 8u \
                                         + vector % VECTORS : 0u]; \
        } \
    }
    LOAD(tile)
    KEEP_FILTER(taps, column_tile, part_column)
    fill_bias(column_tile);
    uint strip = gl_SubgroupID * STRIP;
    for (; tile < tiles; tile += apart) {
        barrier();
        [[unroll]] for (uint l = 0u; l < LOADS; ++l) {
            uint vector = i + l * INVOCATIONS;
            if (vector < WIDTH * HEIGHT * VECTORS)
                s_tile[vector / VECTORS * PIXEL + vector % VECTORS] = (kept >> l & 1u) != 0u ? next[l] : uvec4(0u);
        }
        barrier();
        LOAD(tile + apart)
        Place at = place_of(tile);
        for (uint f = gl_SubgroupID / SIDEWAYS * FRAGMENTS; f * FRAGMENT < OUTPUTS;
             f += SUBGROUPS / SIDEWAYS * FRAGMENTS) {
            Product products[FRAGMENTS][COLUMNS];
            [[unroll]] for (uint r = 0u; r < FRAGMENTS; ++r)
                [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) products[r][c] = Product(0);
            [[unroll]] for (uint s = 0u; s < STEPS; ++s) {
                uint tap = s / (VECTORS / 2u), place = tap / TAPS_X * WIDTH + tap % TAPS_X;
                [[unroll]] for (uint r = 0u; r < FRAGMENTS; ++r) {
                    RowFragment pixels;
                    coopMatLoad(pixels, s_tile, ((f + r) * FRAGMENT + place) * PIXEL + s % (VECTORS / 2u) * 2u, PIXEL,
                                gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                        products[r][c] = coopMatMulAdd(pixels, taps[s][c], products[r][c]);
                }
            }
            STORE_FRAGMENT(0)
            STORE_FRAGMENT(1)
        }
    }
}
