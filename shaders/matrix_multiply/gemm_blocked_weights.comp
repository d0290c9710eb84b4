//@ op DML_OPERATOR_GEMM
//@ variants ROWS: r1 r2 r4 r8 r16
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A few rows of A times a B of 4- or 8-bit elements with a scale and a zero point for each block of K.
// Reading B takes the time, so it is read once, in vectors of 16 bytes along K: LANES neighbouring
// invocations read neighbouring vectors, and each multiplies the vectors of four columns by the same part
// of A. That part lies in shared memory as float32, HELD vectors of K at a time.
#if defined(ROWS_r1)
const uint TILE_ROWS = 1u;
#elif defined(ROWS_r2)
const uint TILE_ROWS = 2u;
#elif defined(ROWS_r4)
const uint TILE_ROWS = 4u;
#elif defined(ROWS_r8)
const uint TILE_ROWS = 8u;
#else
const uint TILE_ROWS = 16u;
#endif
const uint INVOCATIONS = 128u;
layout(local_size_x = INVOCATIONS) in;
layout(constant_id = 5) const uint BITS = 4u;
layout(constant_id = 6) const bool SIGNED = false;
layout(constant_id = 7) const bool HAS_ZERO = false;
layout(constant_id = 8) const uint BLOCK = 32u;  // elements of K: 16, or whole vectors
layout(constant_id = 9) const bool A_VECTORS = false;
layout(constant_id = 10) const bool B_VECTORS = false;

const uint EACH = 128u / BITS;  // elements of a vector of B
const uint FOURS = EACH / 4u;  // a vector of four elements of A is a four
const uint ALL_FOURS = 1024u;  // in shared memory: 16 KB
const uint HELD = ALL_FOURS / (TILE_ROWS * FOURS);
const uint LANES = HELD < 32u ? HELD : 32u;
const uint COLUMNS = 4u;  // of an invocation
const uint TILE_COLUMNS = INVOCATIONS / LANES * COLUMNS;  // as the lowering knows
#define BLOCKED_B
#include "include/gemm.glsl"
INPUT_TENSOR(scale, 6, TYPE)
layout(binding = 7) readonly buffer Zero { uint zero_words[]; };

const bool TWO_SCALES = BLOCK < EACH;  // in a vector
const uint SCALES = TWO_SCALES ? 2u : 1u;
const uint PER_WORD = 32u / BITS;
const uint MIDDLE = 1u << (BITS - 1u);
const uint ALL_MIDDLES = BITS == 4u ? 0x88888888u : 0x80808080u;

// The fours of A that invocations read together are neighbours. Fours of one vector are an odd number of
// fours apart, so that those who store them together use different banks.
const uint PITCH = HELD + 1u;
shared vec4 s_a[ALL_FOURS + 128u];

// Four elements of A from element k on, where those from K on are 0.
vec4 four_of_a(uint from, uint k) {
    if (A_VECTORS) {
        if (k >= K) return vec4(0.0);
        if (BYTES_OF(TYPE) == 4u) return uintBitsToFloat(a_vectors[(from + k) / 4u]);
        uvec4 eight = a_vectors[(from + k) / 8u];
        uvec2 four = k % 8u == 0u ? eight.xy : eight.zw;
        return vec4(half_to_float(four.x & 0xFFFFu), half_to_float(four.x >> 16),
                    half_to_float(four.y & 0xFFFFu), half_to_float(four.y >> 16));
    }
    vec4 x = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        if (k + i < K) x[i] = a_float(from + (k + i) * a_k);
    return x;
}

// Vectors of four columns, and the words with their scales and zero points.
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

uint column_of(uint first, uint c) { return min(first + c, columns - 1u); }

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
            uint k = min(v * EACH + s * BLOCK, K - 1u);
            uint at = scale_at(column, k);
            f.scales[s][c] = scale_words[BYTES_OF(TYPE) == 4u ? at : at / 2u];
            f.zeros[s][c] = HAS_ZERO ? zero_words[zero_at(column, k) / PER_WORD] : 0u;
        }
    }
}

float scale_of(Found f, uint first, uint v, uint s, uint c) {
    uint k = v * EACH + s * BLOCK, word = s == 0u ? f.scales[0][c] : f.scales[1][c];
    if (TWO_SCALES && k >= K) return 0.0;
    if (BYTES_OF(TYPE) == 4u) return uintBitsToFloat(word);
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

// With few rows, a sum is scaled for each block. With more, each element is, and there is enough to do in
// a pass of a loop over words, whose code is compiled in less time.
#if defined(ROWS_r1) || defined(ROWS_r2)
const bool SCALES_SUMS = true;
#define LOOP [[unroll]]
#else
const bool SCALES_SUMS = false;
#define LOOP [[dont_unroll]]
#endif
const uint WORDS = TWO_SCALES ? 2u : 4u;  // of a scale

void main() {
    Tile t;
    if (!find_tile(t)) return;
    uint lane = gl_LocalInvocationIndex % LANES;
    uint column = t.column + gl_LocalInvocationIndex / LANES * COLUMNS;
    vec4 sums[TILE_ROWS];
    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) sums[m] = vec4(0.0);
    uint end = (t.end - 1u) / EACH + 1u;
    Found next;
    find(next, column, min(t.begin / EACH + lane, end - 1u));
    for (uint first = t.begin / EACH; first < end; first += HELD) {
        if (first > t.begin / EACH) barrier();
        [[unroll]] for (uint i = 0u; i < ALL_FOURS / INVOCATIONS; ++i) {
            uint n = gl_LocalInvocationIndex + i * INVOCATIONS;
            uint m = n / (HELD * FOURS), four = n % (HELD * FOURS);
            uint from = a_offset + t.at[0] + min(t.row + m, rows - 1u) * a_row;
            s_a[(m * FOURS + four % FOURS) * PITCH + four / FOURS] =
                four_of_a(from, first * EACH + four * 4u);
        }
        barrier();
        uint last = min(end, first + HELD);
        for (uint v = first + lane; v < last; v += LANES) {
            Found now = next;
            find(next, column, min(v + LANES, end - 1u));
            vec4 taken[COLUMNS], parts[TILE_ROWS];
            float by[COLUMNS];
            LOOP for (uint w = 0u; w < 4u; ++w) {
                if (w % WORDS == 0u) {
                    uint s = w / WORDS;
                    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
                        taken[c] = uintBitsToFloat(POWERS) + zero_of(now, column, v, s, c);
                        by[c] = scale_of(now, column, v, s, c);
                    }
                    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) parts[m] = vec4(0.0);
                }
                LOOP for (uint i = 0u; i < FOURS / 4u; ++i) {
                    vec4 x[TILE_ROWS];
                    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m)
                        x[m] = s_a[(m * FOURS + w * (FOURS / 4u) + i) * PITCH + v - first];
                    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
                        uint word = now.vectors[c].x ^ (SIGNED ? ALL_MIDDLES : 0u);
                        vec4 y = without_zero(word, i, taken[c]);
                        if (!SCALES_SUMS) y *= by[c];
                        [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m)
                            [[unroll]] for (uint e = 0u; e < 4u; ++e)
                                if (SCALES_SUMS) parts[m][c] += x[m][e] * y[e];
                                else sums[m][c] += x[m][e] * y[e];
                    }
                }
                [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                    now.vectors[c] = now.vectors[c].yzwx;
                if (SCALES_SUMS && w % WORDS == WORDS - 1u)
                    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m)
                        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c)
                            sums[m][c] += by[c] * parts[m][c];
            }
        }
    }
    // Lanes add up their sums, of up to four rows at a time.
    const uint TOGETHER = TILE_ROWS < 4u ? TILE_ROWS : 4u;
    [[unroll]] for (uint row = 0u; row < TILE_ROWS; row += TOGETHER) {
        barrier();
        [[unroll]] for (uint m = 0u; m < TOGETHER; ++m)
            s_a[m * INVOCATIONS + gl_LocalInvocationIndex] = sums[row + m];
        barrier();
        const uint quarter = LANES / 4u;
        if (lane < quarter)
            [[unroll]] for (uint m = 0u; m < TOGETHER; ++m) {
                uint at = m * INVOCATIONS + gl_LocalInvocationIndex;
                s_a[at] = (s_a[at] + s_a[at + quarter]) +
                          (s_a[at + 2u * quarter] + s_a[at + 3u * quarter]);
            }
        barrier();
        const uint groups = INVOCATIONS / LANES;
        uint m = gl_LocalInvocationIndex / groups, group = gl_LocalInvocationIndex % groups;
        if (m < TOGETHER) {
            vec4 four = vec4(0.0);
            [[unroll]] for (uint i = 0u; i < quarter; ++i)
                four += s_a[m * INVOCATIONS + group * LANES + i];
            finish_four(t, t.row + row + m, t.column + group * COLUMNS, four);
        }
    }
    add_parts(t);
}
