//@ op -
//@ variants ROWS: r1(rows=1) r2(rows=2) r4(rows=4) r8(rows=8) ; PRODUCTS: p1(parts=1) p2(parts=2) p3(parts=3)
//@ unchecked *
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require
// A few FLOAT16 rows times one to three FLOAT16 matrices, as a decoder does for each token. The rows may be
// normalized first, by their root mean square. GATED: the output is SiLU of the first product times the
// second. Else each product has an output of its own, and C is added.
//
// Reading the matrices takes the time. ACROSS neighbours read neighbouring vectors of eight columns in a row of
// B. So such a team has a pair of rows of K at a time, and the teams of a workgroup take turns at pairs, two of
// them at once and two ahead. GATED: half of the teams have the first matrix, half the second. The rows of A lie
// in shared memory, HELD pairs of K at a time. WORKERS workgroups take turns at tiles of columns.
const uint TILE_ROWS = ROWS_rows;
#define PARTS PRODUCTS_parts
layout(local_size_x = 256, local_size_x_id = 0) in;
const uint INVOCATIONS = gl_WorkGroupSize.x;
layout(constant_id = 1) const uint ACROSS = 4u;
layout(constant_id = 2) const uint HELD = 1024u;  // a multiple of the pairs that all teams have at once
layout(constant_id = 3) const bool NORMALIZES = false;
layout(constant_id = 4) const bool HAS_C = false;
layout(constant_id = 5) const bool C_ROWS = false;  // whether C has a row for each row, as the output has
layout(constant_id = 6) const bool GATED = false;
layout(push_constant) uniform Push {
    uint rows;
    uint K;
    uint tiles;
    uint workers;
    uint x_row;
    uint starts[2];  // the tiles at which the second and the third part begin
    uint b_row[PARTS];  // vectors
    uint y_row[PARTS];
    float epsilon;
    uint x_offset;
    uint gamma_offset;
    uint b0_offset;
    uint c0_offset;
    uint y0_offset;
#if PARTS > 1
    uint b1_offset;
    uint c1_offset;
    uint y1_offset;
#endif
#if PARTS > 2
    uint b2_offset;
    uint c2_offset;
    uint y2_offset;
#endif
};
#include "include/grid.glsl"
#include "include/typed.glsl"
layout(binding = 0) readonly buffer X { uint x_words[]; };
layout(binding = 1) readonly buffer Gamma { uint gamma_words[]; };
#define PART(n, first) \
    layout(binding = first) readonly buffer B##n { uvec4 b##n##_vectors[]; }; \
    layout(binding = first + 1) readonly buffer C##n { uint c##n##_words[]; }; \
    layout(binding = first + 2) writeonly buffer Y##n { uint y##n##_words[]; };
PART(0, 2)
#if PARTS > 1
PART(1, 5)
#endif
#if PARTS > 2
PART(2, 8)
#endif
#if PARTS == 1
#define OF_PART(part, use) { use(0) }
#elif PARTS == 2
#define OF_PART(part, use) { if ((part) == 0u) use(0) else use(1) }
#else
#define OF_PART(part, use) { if ((part) == 0u) use(0) else if ((part) == 1u) use(1) else use(2) }
#endif

const uint AT_ONCE = 2u;  // pairs of a team
const uint COUNT = 2u * AT_ONCE;
const uint SHARE = GATED ? INVOCATIONS / 2u : INVOCATIONS;  // invocations of a matrix
const uint TEAMS = SHARE / ACROSS;

shared uint s_rows[TILE_ROWS * HELD];
shared float s_sums[INVOCATIONS * 8u];  // of subgroups: columns of a row
shared float s_squares[INVOCATIONS / 4u];

// The vectors of pairs p and p + TEAMS of K.
void find(out uvec4 found[COUNT], uint part, uint vector, uint p) {
    [[unroll]] for (uint n = 0u; n < COUNT; ++n) {
        uint k = min(2u * (p + n / 2u * TEAMS) + n % 2u, K - 1u);
#define FIND(i) { found[n] = b##i##_vectors[b##i##_offset / 8u + k * b_row[i] + vector]; }
        OF_PART(part, FIND)
    }
}

// The inverse root of the mean square of a row.
float factor_of(uint from) {
    uint width = min(gl_SubgroupSize, INVOCATIONS);
    float sum = 0.0;
    for (uint p = gl_LocalInvocationIndex; p < K / 2u; p += INVOCATIONS) {
        vec2 x = halves_to_floats(x_words[from + p]);
        sum += dot(x, x);
    }
    [[unroll]] for (uint d = 1u; d < 128u; d *= 2u)
        if (d < width) sum += subgroupShuffleXor(sum, d);
    barrier();  // the last row's have been read
    if (gl_LocalInvocationIndex % width == 0u) s_squares[gl_LocalInvocationIndex / width] = sum;
    barrier();
    sum = 0.0;
    for (uint s = 0u; s < INVOCATIONS / width; ++s) sum += s_squares[s];
    return 1.0 / sqrt(sum / float(K) + epsilon);
}

// Copies the pairs from ``first`` on.
void hold(uint first, float factors[TILE_ROWS]) {
    uint count = min(HELD, K / 2u - first);
    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m)
        for (uint n = gl_LocalInvocationIndex; n < count; n += INVOCATIONS) {
            uint x = x_words[(x_offset + min(m, rows - 1u) * x_row) / 2u + first + n];
            if (NORMALIZES) {
                vec2 y = factors[m] * halves_to_floats(x)
                    * halves_to_floats(gamma_words[gamma_offset / 2u + first + n]);
                x = floats_to_halves(vec4(y, y)).x;
            }
            s_rows[m * HELD + n] = x;
        }
}

vec4 floats_of(uvec2 x) { return vec4(halves_to_floats(x.x), halves_to_floats(x.y)); }

// Stores two neighbouring columns of a row.
void store(uint part, uint m, uint column, vec2 sums) {
#define STORE(n) { \
        uint to = m * y_row[n] + column; \
        if (HAS_C) sums += halves_to_floats(c##n##_words[(c##n##_offset + (C_ROWS ? to : column)) / 2u]); \
        y##n##_words[(y##n##_offset + to) / 2u] = floats_to_halves(vec4(sums, sums)).x; \
    }
    OF_PART(part, STORE)
}

void main() {
    uint tile = group_index();
    if (tile >= workers) return;
    uint local = gl_LocalInvocationIndex % SHARE, team = local / ACROSS, pairs = K / 2u;
    bool whole = pairs <= HELD;
    float factors[TILE_ROWS];
    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m)
        factors[m] = NORMALIZES ? factor_of((x_offset + min(m, rows - 1u) * x_row) / 2u) : 1.0;
    if (whole) {
        hold(0u, factors);
        barrier();
    }
    for (; tile < tiles; tile += workers) {
        uint part = 0u, place = tile;
#if PARTS > 1
        if (!GATED && tile >= starts[0]) part = 1u;
#endif
#if PARTS > 2
        if (!GATED && tile >= starts[1]) part = 2u;
#endif
        if (part > 0u) place -= starts[part - 1u];
        uint own = GATED ? gl_LocalInvocationIndex / SHARE : part, vector = place * ACROSS + local % ACROSS;
        vec4 low[TILE_ROWS], high[TILE_ROWS];
        [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) low[m] = high[m] = vec4(0.0);
        uvec4 next[COUNT];
        find(next, own, vector, team);
        for (uint first = 0u; first < pairs; first += HELD) {
            if (!whole) {
                barrier();
                hold(first, factors);
                barrier();
            }
            uint last = min(pairs, first + HELD);
            for (uint p = first + team; p < last; p += AT_ONCE * TEAMS) {
                uvec4 now[COUNT] = next;
                find(next, own, vector, p + AT_ONCE * TEAMS);
                [[unroll]] for (uint j = 0u; j < AT_ONCE; ++j) {
                    if (p + j * TEAMS >= last) break;
                    vec4 y[4] = {floats_of(now[2u * j].xy), floats_of(now[2u * j].zw),
                                 floats_of(now[2u * j + 1u].xy), floats_of(now[2u * j + 1u].zw)};
                    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
                        vec2 x = halves_to_floats(s_rows[m * HELD + p - first + j * TEAMS]);
                        low[m] += x.x * y[0] + x.y * y[2];
                        high[m] += x.x * y[1] + x.y * y[3];
                    }
                }
            }
        }
        // Neighbours in a subgroup add up their sums, then invocations those of subgroups.
        uint width = min(gl_SubgroupSize, INVOCATIONS), subgroups = SHARE / width;
        [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
            [[unroll]] for (uint d = 1u; d < 128u; d *= 2u)
                if (d >= ACROSS && d < width) {
                    low[m] += subgroupShuffleXor(low[m], d);
                    high[m] += subgroupShuffleXor(high[m], d);
                }
            if (m >= rows) break;
            barrier();  // the last row's have been read
            uint at = gl_LocalInvocationIndex % width;
            if (at < ACROSS)
                [[unroll]] for (uint e = 0u; e < 4u; ++e) {
                    uint to = (gl_LocalInvocationIndex / width * ACROSS + at) * 8u + e;
                    s_sums[to] = low[m][e];
                    s_sums[to + 4u] = high[m][e];
                }
            barrier();
            uint column = 2u * gl_LocalInvocationIndex;
            if (column < 8u * ACROSS) {
                vec2 sums = vec2(0.0), others = vec2(0.0);
                for (uint s = 0u; s < subgroups; ++s) {
                    uint from = s * ACROSS * 8u + column;
                    sums += vec2(s_sums[from], s_sums[from + 1u]);
                    if (GATED) {
                        from += subgroups * ACROSS * 8u;
                        others += vec2(s_sums[from], s_sums[from + 1u]);
                    }
                }
                if (GATED) sums = sums / (1.0 + exp(-sums)) * others;
                store(GATED ? 0u : part, m, place * ACROSS * 8u + column, sums);
            }
        }
    }
}
