//@ op DML_OPERATOR_CUMULATIVE_SUMMATION DML_OPERATOR_CUMULATIVE_PRODUCT
//@ variants KIND: float integer
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
// Long rows of vectors, of which each element is read once. A workgroup keeps a tile in registers. It
// publishes the tile's total and waits for all totals before: of single tiles within its block, of whole
// blocks before that. The last tile of a block publishes the block's total.
// Vulkan does not promise that workgroups which wait for each other end. So workgroups take tiles in the
// order in which they begin, and one that has looked TURNS times for a total makes it from the input. That
// gives the same bits, because the order of additions depends on sizes alone.
// The output may be the input. A total is published before its tile is stored. So a total that was made
// from the input is right if none is there afterwards.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool PRODUCT = false;
layout(constant_id = 3) const bool EXCLUSIVE = false;
layout(constant_id = 4) const bool BACKWARDS = false;
layout(constant_id = 5) const uint STRIPES = 16u;  // vectors of an invocation
layout(constant_id = 6) const uint BLOCK = 256u;  // tiles of a block
layout(constant_id = 7) const uint TURNS = 1024u;  // 0, for tests: all totals are made from the input, not the output
layout(constant_id = 8) const bool FENCES = true;  // false where a barrier of memory is one of the workgroup
layout(push_constant) uniform Push {
    uint columns;
    uint tiles;  // of a row
    uint all_tiles;
    uint x_offset;
    uint y_offset;
    uint zeroed_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/carries.glsl"

INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, TYPE)
WALK(walk_rows, 2)

const uint EACH = 16u / BYTES_OF(TYPE);
const uint TILE = gl_WorkGroupSize.x * STRIPES * EACH;

// Each word of a published carry differs from 0, so that nobody sees a part of one.
#if defined(KIND_integer)
#define PUBLISHED uvec4
#define PUBLISHED_WORDS 4u
PUBLISHED published_of(CARRY c) { return uvec4(c & 0xFFFFu, c >> 16u) | 0x10000u; }
CARRY carry_from(PUBLISHED p) { return (p.xy & 0xFFFFu) | p.zw << 16u; }
#else
#define PUBLISHED uvec2
#define PUBLISHED_WORDS 2u
// The largest number stands for a NaN.
PUBLISHED published_of(CARRY c) { return ~min(floatBitsToUint(c), uvec2(0xFFFFFFFEu)); }
CARRY carry_from(PUBLISHED p) { return uintBitsToFloat(~p); }
#endif
bool is_there(PUBLISHED p) { return all(notEqual(p, PUBLISHED(0u))); }

// Zero before and after. It holds two words, which count workgroups that have begun and blocks that are
// done; from word HEAD on, the tiles of each block that are done; the totals of blocks; those of tiles.
layout(binding = 2) coherent volatile buffer Zeroed { uint zeroed[]; };
layout(binding = 2) coherent volatile buffer ZeroedTotals { PUBLISHED zeroed_totals[]; };
const uint HEAD = 64u;
const uint DEEP = 8u;  // totals that an invocation looks for at once

shared uint s_number;
shared NUMBER s_sums[gl_WorkGroupSize.x];  // of subgroups
shared CARRY s_carries[2];

uint lane() { return gl_SubgroupInvocationID; }

// The sum of x over the lanes up to this one.
NUMBER of_lanes(NUMBER x) {
    for (uint reach = 1u; reach < gl_SubgroupSize; reach *= 2u) {
        NUMBER before = subgroupShuffle(x, max(lane(), reach) - reach);
        if (lane() >= reach) x = combine(before, x);
    }
    return x;
}

NUMBER last_of(NUMBER x) { return subgroupShuffle(x, gl_SubgroupSize - 1u); }

NUMBER of_all_lanes(NUMBER x) {
    for (uint reach = 1u; reach < gl_SubgroupSize; reach *= 2u) x = combine(x, subgroupShuffleXor(x, reach));
    return x;
}

CARRY carry_of_all_lanes(CARRY x) {
    for (uint reach = 1u; reach < gl_SubgroupSize; reach *= 2u) x = carried(x, subgroupShuffleXor(x, reach));
    return x;
}

uvec4 read(uint x_row, uint c) {
    uvec4 x = uvec4(0u);
    if (c < columns) x = x_vectors[(x_row + (BACKWARDS ? columns - c - EACH : c)) / EACH];
    return x;
}

NUMBER element(uvec4 x, uint e) { return number(element_of(x, BACKWARDS ? EACH - 1u - e : e, TYPE)); }

NUMBER of_vector(uvec4 x) {
    NUMBER sum = element(x, 0u);
    [[unroll]] for (uint e = 1u; e < EACH; ++e) sum = combine(sum, element(x, e));
    return sum;
}

// Adds up the stripes of a subgroup: in fours, so that a term is in few additions.
void next_stripe(uint s, inout NUMBER fours, inout NUMBER sum) {
    if (s % 4u > 0u) return;
    fours = combine(fours, sum);
    sum = NOTHING;
}

// Where subgroup ``w`` has this lane's vector of a stripe.
uint column_of(uint tile, uint w, uint s) {
    return tile * TILE + ((w * STRIPES + s) * gl_SubgroupSize + lane()) * EACH;
}

// A tile's total as its workgroup makes it, made by one subgroup.
NUMBER total_of_tile(uint x_row, uint tile) {
    NUMBER total = NOTHING;
    for (uint w = 0u; w < gl_NumSubgroups; ++w) {
        NUMBER fours = NOTHING, sum = NOTHING;
        for (uint s = 0u; s < STRIPES; ++s) {
            next_stripe(s, fours, sum);
            sum = combine(sum, last_of(of_lanes(of_vector(read(x_row, column_of(tile, w, s))))));
        }
        if (lane() == w % gl_SubgroupSize) total = combine(total, combine(fours, sum));
    }
    return of_all_lanes(total);
}

// The sum of the first ``n`` subgroups' sums.
NUMBER of_subgroups(uint n) {
    NUMBER total = NOTHING;
    for (uint w = lane(); w < n; w += gl_SubgroupSize) total = combine(total, s_sums[w]);
    return of_all_lanes(total);
}

PUBLISHED look(uint at) {
    return TURNS > 0u ? zeroed_totals[at] : PUBLISHED(0u);
}

// The same after all that this invocation has read before.
PUBLISHED look_afterwards(uint at) {
    if (FENCES) memoryBarrierBuffer();
    return look(at);
}

// This lane's part of the sum of ``count`` totals, which lie at ``at``, and those of tiles at ``tiles_at``.
// A total is that of ``each`` tiles, the first of them ``first``.
CARRY made(uint x_row, uint at, uint tiles_at, uint count, uint each, uint first) {
    CARRY sum = NO_CARRY;
    for (uint base = 0u; base < count; base += gl_SubgroupSize) {
        uint own = base + lane();
        CARRY x = NO_CARRY;
        bool wanted = own < count;
        if (wanted) {
            PUBLISHED p = look(at + own);
            if (is_there(p)) {
                x = carry_from(p);
                wanted = false;
            }
        }
        for (uint l = 0u; l < gl_SubgroupSize; ++l) {
            if (subgroupShuffle(wanted ? 1u : 0u, l) == 0u) continue;
            CARRY total = NO_CARRY;
            for (uint n = 0u; n < each; ++n) {
                uint tile = first + (base + l) * each + n;
                CARRY t;
                PUBLISHED p = subgroupShuffle(look(tiles_at + tile), 0u);
                if (!is_there(p)) {
                    t = carry_of(total_of_tile(x_row, tile));
                    p = subgroupShuffle(look_afterwards(tiles_at + tile), 0u);
                }
                if (is_there(p)) t = carry_from(p);
                if (lane() == n % gl_SubgroupSize) total = carried(total, t);
            }
            total = carry_of_all_lanes(total);
            if (lane() == l) x = total;
        }
        if (wanted) {
            PUBLISHED p = look_afterwards(at + own);
            if (is_there(p)) x = carry_from(p);
        }
        sum = carried(sum, x);
    }
    return sum;
}

// The same, if all have been published before long. Else ``late``.
CARRY waited(uint at, uint count, out bool late) {
    CARRY sum = NO_CARRY;
    late = false;
    for (uint base = 0u; base < count; base += DEEP * gl_SubgroupSize) {
        PUBLISHED p[DEEP];
        [[unroll]] for (uint d = 0u; d < DEEP; ++d) {
            uint own = base + d * gl_SubgroupSize + lane();
            p[d] = published_of(NO_CARRY);
            if (own < count) p[d] = look(at + own);
        }
        [[unroll]] for (uint d = 0u; d < DEEP; ++d) {
            uint own = base + d * gl_SubgroupSize + lane();
            for (uint turn = 1u; turn < TURNS && !is_there(p[d]); ++turn) p[d] = look(at + own);
            late = late || !is_there(p[d]);
            sum = carried(sum, carry_from(p[d]));
        }
    }
    return sum;
}

void main() {
    if (group_index() >= all_tiles) return;
    uint w = gl_SubgroupID;
    if (w == 0u && lane() == 0u) s_number = atomicAdd(zeroed[zeroed_offset], 1u);
    barrier();
    uint row = s_number / tiles, tile = s_number - row * tiles, block = tile / BLOCK, of_block = tile % BLOCK;
    uint rows = all_tiles / tiles, blocks = (tiles + BLOCK - 1u) / BLOCK;
    uint[2] from = walk_rows(0u, row);
    uint x_row = x_offset + from[0], y_row = y_offset + from[1];
    uint done_at = zeroed_offset + HEAD + row * blocks + block;
    uint totals_at = (zeroed_offset + HEAD + (rows * blocks + 3u) / 4u * 4u) / PUBLISHED_WORDS;
    uint blocks_at = totals_at + row * blocks, tiles_at = totals_at + rows * blocks + row * tiles;
    uint block_tiles_at = tiles_at + tile - of_block;

    uvec4 x[STRIPES];
    [[unroll]] for (uint s = 0u; s < STRIPES; ++s) x[s] = read(x_row, column_of(tile, w, s));
    NUMBER before[STRIPES], fours = NOTHING, sum = NOTHING;
    [[unroll]] for (uint s = 0u; s < STRIPES; ++s) {
        next_stripe(s, fours, sum);
        NUMBER up_to = of_lanes(of_vector(x[s]));
        before[s] = subgroupShuffle(up_to, max(lane(), 1u) - 1u);
        if (lane() == 0u) before[s] = NOTHING;
        before[s] = combine(fours, combine(sum, before[s]));
        sum = combine(sum, last_of(up_to));
    }
    if (lane() == 0u) s_sums[w] = combine(fours, sum);
    barrier();

    if (w == gl_NumSubgroups - 1u) {
        CARRY own = carry_of(of_subgroups(gl_NumSubgroups));
        if (lane() == 0u) {
            zeroed_totals[tiles_at + tile] = published_of(own);
            if (FENCES) memoryBarrierBuffer();  // before the tile is stored
        }
    }
    if (w < 2u) {  // the first subgroup looks for tiles, the second for blocks
        uint at = w == 0u ? block_tiles_at : blocks_at, count = w == 0u ? of_block : block;
        bool late;
        CARRY others = waited(at, count, late);
        uint any_late = late ? 1u : 0u;
        for (uint reach = 1u; reach < gl_SubgroupSize; reach *= 2u) any_late |= subgroupShuffleXor(any_late, reach);
        if (any_late != 0u)
            others = made(x_row, at, tiles_at, count, w == 0u ? 1u : BLOCK, w == 0u ? tile - of_block : 0u);
        if (w == 0u && of_block == BLOCK - 1u && block + 1u < blocks) {
            CARRY own = carry_of(of_subgroups(gl_NumSubgroups)), all = others;
            if (lane() == of_block % gl_SubgroupSize) all = carried(all, own);
            all = carry_of_all_lanes(all);
            if (lane() == 0u) {
                zeroed_totals[blocks_at + block] = published_of(all);
                if (FENCES) memoryBarrierBuffer();  // before the totals of tiles are cleared
            }
        }
        others = carry_of_all_lanes(others);
        if (lane() == 0u) s_carries[w] = others;
    }
    barrier();
    // What was read has been used, so no fence is needed here.
    uint done = 0u;
    if (w == 0u && lane() == 0u) done = atomicAdd(zeroed[done_at], 1u);

    CARRY carry = carried(carried(s_carries[1], s_carries[0]), carry_of(of_subgroups(w)));
    [[unroll]] for (uint s = 0u; s < STRIPES; ++s) {
        uint c = column_of(tile, w, s);
        NUMBER own = NOTHING;  // what the vector has up to an element
        uvec4 y = uvec4(0u);
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            NUMBER up_to = before[s];
            if (EXCLUSIVE && e > 0u) up_to = combine(before[s], own);
            if (e == 0u) own = element(x[s], 0u);
            else own = combine(own, element(x[s], e));
            if (!EXCLUSIVE) up_to = combine(before[s], own);
            set_element(y, BACKWARDS ? EACH - 1u - e : e, result(carry, up_to), TYPE);
        }
        if (c < columns) y_vectors[(y_row + (BACKWARDS ? columns - c - EACH : c)) / EACH] = y;
    }
    if (w > 0u) return;

    // The last to need them clears a block's totals of tiles, the last of all clears the rest.
    uint block_tiles = min(BLOCK, tiles - block * BLOCK);
    if (subgroupShuffle(done, 0u) + 1u != block_tiles) return;
    if (FENCES) memoryBarrierBuffer();
    for (uint n = lane(); n < block_tiles; n += gl_SubgroupSize) zeroed_totals[block_tiles_at + n] = PUBLISHED(0u);
    if (lane() == 0u) {
        zeroed[done_at] = 0u;
        done = atomicAdd(zeroed[zeroed_offset + 1u], 1u);
    }
    if (subgroupShuffle(done, 0u) + 1u != rows * blocks) return;
    if (FENCES) memoryBarrierBuffer();
    for (uint n = lane(); n < rows * blocks; n += gl_SubgroupSize) zeroed_totals[totals_at + n] = PUBLISHED(0u);
    if (lane() == 0u) {
        zeroed[zeroed_offset] = 0u;
        zeroed[zeroed_offset + 1u] = 0u;
    }
}
