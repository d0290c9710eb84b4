//@ op DML_OPERATOR_GEMM
//@ variants ROWS: r1(rows=1) r2(rows=2) r4(rows=4) r8(rows=8)
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require
// A few rows of A times a B of 4- or 8-bit elements with a scale and a zero point for each block of K.
// Reading B takes the time, so it is read once, in vectors of 16 bytes along K, one step ahead: LANES
// neighbouring invocations read neighbouring vectors, and each multiplies the vectors of COLUMNS columns by
// the same part of A. That part lies in shared memory, HELD vectors of K at a time.
const uint TILE_ROWS = ROWS_rows;
layout(local_size_x = 256, local_size_x_id = 0) in;
const uint INVOCATIONS = gl_WorkGroupSize.x;
layout(constant_id = 5) const uint BITS = 4u;
layout(constant_id = 6) const bool SIGNED = false;
layout(constant_id = 7) const bool HAS_ZERO = false;
layout(constant_id = 8) const uint BLOCK = 32u;  // elements of K: 16, or whole vectors
layout(constant_id = 9) const bool A_VECTORS = false;
layout(constant_id = 10) const bool B_VECTORS = false;
layout(constant_id = 11) const uint LANES = 8u;
layout(constant_id = 12) const uint HELD = 8u;  // a multiple of LANES
// Whether halves become floats when they are stored, not when they are read.
layout(constant_id = 13) const bool HOLDS_FLOATS = false;

const uint EACH = 128u / BITS;  // elements of a vector of B
const uint COLUMNS = 4u;  // of an invocation
const uint TILE_COLUMNS = INVOCATIONS / LANES * COLUMNS;
#define BLOCKED_B
#include "include/gemm.glsl"
INPUT_TENSOR(scale, 6, TYPE)
layout(binding = 7) readonly buffer Zero { uint zero_words[]; };

const bool TWO_SCALES = BLOCK < EACH;  // in a vector
const uint SCALES = TWO_SCALES ? 2u : 1u;
const uint WORDS = 4u / SCALES;  // of a scale
const uint PER_WORD = 32u / BITS;
const uint MIDDLE = 1u << (BITS - 1u);
const uint ALL_MIDDLES = BITS == 4u ? 0x88888888u : 0x80808080u;

// A in shared memory has its own type, or floats, in pieces of 16 bytes. Pieces that invocations read together
// are neighbours. Those of one vector are a little apart, so that those who store them use different banks.
const bool HALVES = TYPE % 16u == 2u;
const uint PIECE = HALVES ? (HOLDS_FLOATS ? 4u : 8u) : 4u;  // elements
const uint PIECES = EACH / PIECE;  // of a vector of B
const uint PITCH = HELD + PIECE / 4u;
const uint READ = HALVES ? 8u : 4u;  // elements of a vector of A
const uint READS = EACH / READ;
const uint COPIES = (TILE_ROWS * READS * HELD - 1u) / INVOCATIONS + 1u;
const uint A_SIZE = TILE_ROWS * PIECES * PITCH;
// Then it holds the sums of each subgroup, which has four invocations or more.
const uint SUM_SIZE = INVOCATIONS / 4u * TILE_ROWS;
shared uvec4 s_memory[A_SIZE > SUM_SIZE ? A_SIZE : SUM_SIZE];

// A vector of A from element k on, where elements from K on are 0.
uvec4 vector_of_a(uint from, uint k) {
    if (A_VECTORS) return k < K ? a_vectors[(from + k) / READ] : uvec4(0u);
    uvec4 x = uvec4(0u);
    [[unroll]] for (uint i = 0u; i < READ; ++i)
        if (k + i < K) set_element(x, i, a_bits(from + (k + i) * a_k), TYPE);
    return x;
}

uvec4 floats_of(uvec2 halves) {
    return floatBitsToUint(vec4(halves_to_floats(halves.x), halves_to_floats(halves.y)));
}

// Copies the vectors from ``first`` on. All are asked for before the first is stored.
void hold_a(Tile t, uint first) {
    uvec4 found[COPIES];
    [[unroll]] for (uint i = 0u; i < COPIES; ++i) {
        uint n = gl_LocalInvocationIndex + i * INVOCATIONS, m = n / (HELD * READS);
        uint from = a_offset + t.at[0] + min(t.row + m, rows - 1u) * a_row;
        found[i] = vector_of_a(from, first * EACH + n % (HELD * READS) * READ);
    }
    [[unroll]] for (uint i = 0u; i < COPIES; ++i) {
        uint n = gl_LocalInvocationIndex + i * INVOCATIONS, m = n / (HELD * READS);
        uint at = (m * PIECES + n % READS * (READ / PIECE)) * PITCH + n % (HELD * READS) / READS;
        if (n < TILE_ROWS * READS * HELD) {
            if (READ == PIECE) {
                s_memory[at] = found[i];
            } else {
                s_memory[at] = floats_of(found[i].xy);
                s_memory[at + PITCH] = floats_of(found[i].zw);
            }
        }
    }
}

// Four elements of row m of A: part i of word w of a vector.
vec4 four_of_a(uint m, uint w, uint i, uint v) {
    uint four = w * (EACH / 16u) + i;
    if (PIECE == 4u) return uintBitsToFloat(s_memory[(m * PIECES + four) * PITCH + v]);
    uvec4 piece = s_memory[(m * PIECES + four / 2u) * PITCH + v];
    uvec2 two = four % 2u == 0u ? piece.xy : piece.zw;
    return vec4(halves_to_floats(two.x), halves_to_floats(two.y));
}

// Vectors of the columns, and the words with their scales and zero points.
struct Found {
    uvec4 vectors[COLUMNS];
    uint scales[2][COLUMNS];  // the first SCALES are used
    uint zeros[2][COLUMNS];
};

uint scale_at(uint column, uint k) { return scale_offset + column * scale_column + k / BLOCK * scale_block; }

// Offsets count bytes.
uint zero_at(uint column, uint k) {
    return zero_offset * (8u / BITS) + column * zero_column + k / BLOCK * zero_block;
}

uint g_columns;  // of the groups before

uint column_of(uint first, uint c) { return g_columns + min(first + c, columns - 1u); }

void find(out Found f, uint first, uint v) {
    uint last = (K - 1u) / PER_WORD;  // word of a column
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
        uint column = column_of(first, c), from = b_offset / 4u + column * (b_column / PER_WORD);
        if (B_VECTORS) {
            f.vectors[c] = b_vectors[from / 4u + v];
        } else {
            [[unroll]] for (uint i = 0u; i < 4u; ++i)
                f.vectors[c][i] = b_words[from + min(v * 4u + i, last)];
        }
        [[unroll]] for (uint s = 0u; s < SCALES; ++s) {
            uint k = min(v * EACH + s * BLOCK, K - 1u), at = scale_at(column, k);
            f.scales[s][c] = scale_words[HALVES ? at / 2u : at];
            f.zeros[s][c] = HAS_ZERO ? zero_words[zero_at(column, k) / PER_WORD] : 0u;
        }
    }
}

float scale_of(Found f, uint first, uint v, uint s, uint c) {
    uint k = v * EACH + s * BLOCK, word = s == 0u ? f.scales[0][c] : f.scales[1][c];
    if (TWO_SCALES && k >= K) return 0.0;
    if (!HALVES) return uintBitsToFloat(word);
    return half_to_float(scale_at(column_of(first, c), k) % 2u == 0u ? word & 0xFFFFu : word >> 16);
}

// As if all elements were unsigned.
float zero_of(Found f, uint first, uint v, uint s, uint c) {
    if (!HAS_ZERO) return float(MIDDLE);
    uint at = zero_at(column_of(first, c), min(v * EACH + s * BLOCK, K - 1u));
    uint word = s == 0u ? f.zeros[0][c] : f.zeros[1][c];
    uint zero = bitfieldExtract(word, int(at % PER_WORD * BITS), int(BITS));
    return float(SIGNED ? zero ^ MIDDLE : zero);
}

// 2^23, 2^19, 2^15 and 2^11. In their bits, the lowest, second, third and fourth 4 bits (8 bits: the lowest
// and the third) of a word count ones. So a mask makes a float of an element, and a difference takes the
// zero point off, both exactly.
const uvec4 POWERS = BITS == 4u ? uvec4(0x4B000000u, 0x49000000u, 0x47000000u, 0x45000000u)
                                : uvec4(0x4B000000u, 0x47000000u, 0x4B000000u, 0x47000000u);

vec4 without_zero(uint word, uint i, vec4 taken) {
    uvec4 bits;
    if (BITS == 4u) {
        bits = uvec4(word >> (16u * i)) & uvec4(0xFu, 0xF0u, 0xF00u, 0xF000u);
    } else {
        bits = uvec4(word, word, word >> 16, word >> 16) & uvec4(0xFFu, 0xFF00u, 0xFFu, 0xFF00u);
    }
    precise vec4 difference = uintBitsToFloat(bits | POWERS) - taken;
    return difference;
}

// With few rows, a sum is scaled for each block. With more, each element is.
#if defined(ROWS_r1) || defined(ROWS_r2)
const bool SCALES_SUMS = true;
#else
const bool SCALES_SUMS = false;
#endif

void main() {
    Tile t;
    if (!find_tile(t)) return;
    g_columns = GROUPED ? t.at[1] : 0u;
    uint lane = gl_LocalInvocationIndex % LANES;
    uint column = t.column + gl_LocalInvocationIndex / LANES * COLUMNS;
    float sums[TILE_ROWS * COLUMNS];
    [[unroll]] for (uint n = 0u; n < TILE_ROWS * COLUMNS; ++n) sums[n] = 0.0;
    uint begin = t.begin / EACH, end = (t.end - 1u) / EACH + 1u;
    Found next;
    find(next, column, min(begin + lane, end - 1u));
    for (uint first = begin; first < end; first += HELD) {
        if (first > begin) barrier();
        hold_a(t, first);
        barrier();
        uint last = min(end, first + HELD);
        for (uint v = first + lane; v < last; v += LANES) {
            Found now = next;
            find(next, column, min(v + LANES, end - 1u));
            vec4 taken[COLUMNS];
            float by[COLUMNS], parts[TILE_ROWS * COLUMNS];
            [[unroll]] for (uint w = 0u; w < 4u; ++w) {
                if (w % WORDS == 0u) {
                    uint s = w / WORDS;
                    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
                        taken[c] = uintBitsToFloat(POWERS) + zero_of(now, column, v, s, c);
                        by[c] = scale_of(now, column, v, s, c);
                    }
                    [[unroll]] for (uint n = 0u; n < TILE_ROWS * COLUMNS; ++n) parts[n] = 0.0;
                }
                [[unroll]] for (uint i = 0u; i < EACH / 16u; ++i) {
                    vec4 y[COLUMNS];
                    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
                        uint word = now.vectors[c][w] ^ (SIGNED ? ALL_MIDDLES : 0u);
                        y[c] = without_zero(word, i, taken[c]);
                        if (!SCALES_SUMS) y[c] *= by[c];
                    }
                    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
                        vec4 x = four_of_a(m, w, i, v - first);
                        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                            [[unroll]] for (uint e = 0u; e < 4u; ++e)
                                if (SCALES_SUMS) parts[m * COLUMNS + c] += x[e] * y[c][e];
                                else sums[m * COLUMNS + c] += x[e] * y[c][e];
                    }
                }
                if (SCALES_SUMS && w % WORDS == WORDS - 1u)
                    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m)
                        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                            sums[m * COLUMNS + c] += by[c] * parts[m * COLUMNS + c];
            }
        }
    }
    // Neighbours in a subgroup add up their sums, then an invocation those of all of LANES. This loop is small,
    // so it is unrolled. Else the sums would be in memory, all the time.
    uint width = min(LANES, gl_SubgroupSize), along = LANES / width, own = gl_LocalInvocationIndex / width;
    barrier();
    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
        vec4 four;
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) four[c] = sums[m * COLUMNS + c];
        [[unroll]] for (uint d = 1u; d < 128u; d *= 2u)
            if (d < width) four += subgroupShuffleXor(four, d);
        if (gl_LocalInvocationIndex % width == 0u) s_memory[own * TILE_ROWS + m] = floatBitsToUint(four);
    }
    barrier();
    const uint FOURS = TILE_COLUMNS / 4u;
    for (uint n = gl_LocalInvocationIndex; n < TILE_ROWS * FOURS; n += INVOCATIONS) {
        uint m = n / FOURS, group = n % FOURS;
        vec4 four = vec4(0.0);
        for (uint s = 0u; s < along; ++s)
            four += uintBitsToFloat(s_memory[(group * along + s) * TILE_ROWS + m]);
        finish_four(t, t.row + m, t.column + group * COLUMNS, four);
    }
    add_parts(t);
}
