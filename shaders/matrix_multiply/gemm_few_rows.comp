//@ op DML_OPERATOR_GEMM
//@ variants AXIS: k_contiguous n_contiguous k_bfloat16 n_bfloat16; ROWS: r1(rows=1) r2(rows=2) r4(rows=4) r8(rows=8)
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A few rows of A times B, which is read once, in vectors of 16 bytes. k_contiguous: K is contiguous in A
// and B, and 32 invocations split K of a column. n_contiguous: columns of B are contiguous; neighbouring
// invocations read a row of a tile, and groups of them split K. bfloat16: B has the upper halves of FLOAT32
// numbers, as A has whole.
const uint TILE_ROWS = ROWS_rows;
const uint INVOCATIONS = 256u;
layout(local_size_x = INVOCATIONS) in;
#if defined(AXIS_k_contiguous) || defined(AXIS_k_bfloat16)
#define ALONG_K
#endif
#if defined(AXIS_k_bfloat16) || defined(AXIS_n_bfloat16)
#define BFLOAT16_B
#endif
#ifdef ALONG_K
const uint TILE_COLUMNS = 8u;
#else
const uint TILE_COLUMNS = 128u;
#endif
#include "include/gemm.glsl"
#ifdef BFLOAT16_B
const uint EACH = 8u;
#else
const uint EACH = 16u / BYTES_OF(TYPE);  // elements of a vector of B
#endif
const uint AHEAD = 4u;  // vectors read at once

// The elements of a vector as up to eight floats. The first EACH are used.
void spread(uvec4 x, out vec4 low, out vec4 high) {
    if (BYTES_OF(TYPE) == 4u) {
        low = uintBitsToFloat(x);
        high = vec4(0.0);
    } else if (HAS_EXACT_UNITS) {
        low = vec4(unpackHalf2x16(x.x), unpackHalf2x16(x.y));
        high = vec4(unpackHalf2x16(x.z), unpackHalf2x16(x.w));
    } else {
        uvec4 even = x & 0xFFFFu, odd = x >> 16;
        low = vec4(half_to_float(even.x), half_to_float(odd.x), half_to_float(even.y),
                   half_to_float(odd.y));
        high = vec4(half_to_float(even.z), half_to_float(odd.z), half_to_float(even.w),
                    half_to_float(odd.w));
    }
}

// The elements of a vector of B.
void spread_b(uvec4 x, out vec4 low, out vec4 high) {
#ifdef BFLOAT16_B
    uvec4 even = x << 16, odd = x & 0xFFFF0000u;
    low = uintBitsToFloat(uvec4(even.x, odd.x, even.y, odd.y));
    high = uintBitsToFloat(uvec4(even.z, odd.z, even.w, odd.w));
#else
    spread(x, low, high);
#endif
}

#ifdef ALONG_K
const uint LANES = 32u;
#ifdef BFLOAT16_B
const uint A_EACH = 4u;  // two vectors of A for each of B
#else
const uint A_EACH = EACH;
#endif
shared float s_sums[TILE_ROWS * INVOCATIONS];

void main() {
    Tile t;
    if (!find_tile(t)) return;
    uint lane = gl_LocalInvocationIndex % LANES;
    uint column = min(t.column + gl_LocalInvocationIndex / LANES, columns - 1u);
    uint from = (b_offset + t.at[1] + column * b_column) / EACH;
    uint at = from + t.begin / EACH + lane, end = from + t.end / EACH;  // vectors of B
    uint a_from[TILE_ROWS];  // what is added for those of A
    float sums[TILE_ROWS];
    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
        a_from[m] = (a_offset + t.at[0] + min(t.row + m, rows - 1u) * a_row) / A_EACH - EACH / A_EACH * from;
        sums[m] = 0.0;
    }
    uvec4 found[AHEAD];
#define MULTIPLY(n) \
    { \
        vec4 low, high, a_low, a_high; \
        spread_b(found[n], low, high); \
        [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) { \
            A_NUMBERS(a_from[m], at + n * LANES) \
            sums[m] += dot(low, a_low); \
            if (EACH == 8u) sums[m] += dot(high, a_high); \
        } \
    }
#ifdef BFLOAT16_B
#define A_NUMBERS(first, v) \
    a_low = uintBitsToFloat(a_vectors[first + 2u * (v)]); \
    a_high = uintBitsToFloat(a_vectors[first + 2u * (v) + 1u]);
#else
#define A_NUMBERS(first, v) spread(a_vectors[first + v], a_low, a_high);
#endif
    const uint LAST = (AHEAD - 1u) * LANES;  // of the vectors read at once
    uint whole = max(end, LAST) - LAST;
    for (; at < whole; at += AHEAD * LANES) {
        [[unroll]] for (uint n = 0u; n < AHEAD; ++n) found[n] = b_vectors[at + n * LANES];
        [[unroll]] for (uint n = 0u; n < AHEAD; ++n) MULTIPLY(n)
    }
    if (at < end) {
        [[unroll]] for (uint n = 0u; n < AHEAD - 1u; ++n)
            found[n] = b_vectors[min(at + n * LANES, end - 1u)];
        [[unroll]] for (uint n = 0u; n < AHEAD - 1u; ++n)
            if (at + n * LANES < end) MULTIPLY(n)
    }
    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m)
        s_sums[m * INVOCATIONS + gl_LocalInvocationIndex] = sums[m];
    [[unroll]] for (uint step = LANES / 2u; step > 0u; step /= 2u) {
        barrier();
        if (lane < step)
            [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
                uint at = m * INVOCATIONS + gl_LocalInvocationIndex;
                s_sums[at] += s_sums[at + step];
            }
    }
    barrier();
    uint n = gl_LocalInvocationIndex;
    if (n < TILE_ROWS * TILE_COLUMNS / 4u) {
        uint row = n / (TILE_COLUMNS / 4u), first = n % (TILE_COLUMNS / 4u) * 4u;
        vec4 four;
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            four[i] = s_sums[row * INVOCATIONS + (first + i) * LANES];
        finish_four(t, t.row + row, t.column + first, four);
    }
    add_parts(t);
}
#else
const uint LANES = TILE_COLUMNS / EACH;  // invocations of neighbouring columns
const uint GROUPS = INVOCATIONS / LANES;
const uint HELD = TILE_ROWS < 4u ? 2048u : 4096u / TILE_ROWS;
const uint SUMMED = TILE_ROWS < 2u ? 1u : 2u;  // rows whose sums are added up at a time
const uint A_SIZE = TILE_ROWS * HELD / 4u, SUM_SIZE = SUMMED * INVOCATIONS * 2u;  // of float16
// HELD elements of each row of A, then sums.
shared vec4 s_memory[A_SIZE > SUM_SIZE ? A_SIZE : SUM_SIZE];

// Sums have constant indices everywhere, because arrays whose loops a compiler does not unroll land in
// memory: 8 rows took four times as long.
#if defined(ROWS_r1)
#define EACH_ROW(DO) DO(0)
#elif defined(ROWS_r2)
#define EACH_ROW(DO) DO(0) DO(1)
#elif defined(ROWS_r4)
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#else
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#endif
#define EACH_AHEAD(DO) DO(0) DO(1) DO(2) DO(3)

// Adds up the sums of all groups.
void finish_rows(Tile t, uint row) {
    barrier();
    const uint FOURS = TILE_COLUMNS / 4u;
    for (uint n = gl_LocalInvocationIndex; n < SUMMED * FOURS; n += INVOCATIONS) {
        uint m = n / FOURS, four = n % FOURS;
        vec4 sum = s_memory[m * GROUPS * FOURS + four];
        [[unroll]] for (uint d = 1u; d < GROUPS; ++d) sum += s_memory[(m * GROUPS + d) * FOURS + four];
        finish_four(t, row + m, t.column + 4u * four, sum);
    }
}

void main() {
    Tile t;
    if (!find_tile(t)) return;
    uint lane = gl_LocalInvocationIndex % LANES, group = gl_LocalInvocationIndex / LANES;
    uint column = min(t.column + lane * EACH, columns - EACH);
    vec4 low[TILE_ROWS], high[TILE_ROWS];
#define CLEAR(m) \
    low[m] = vec4(0.0); \
    high[m] = vec4(0.0);
    EACH_ROW(CLEAR)
    for (uint begin = t.begin; begin < t.end; begin += HELD) {
        uint count = min(t.end - begin, HELD), from = b_offset + t.at[1] + begin * b_k + column;
        uint k = group;
        uvec4 next[AHEAD], found[AHEAD];
#define READ(n) next[n] = b_vectors[(from + min(first + n * GROUPS, count - 1u) * b_k) / EACH];
#define MULTIPLY_ROW(m) \
    { \
        float x = s_memory[(place + m) / 4u][(place + m) % 4u]; \
        low[m] += x * b_low; \
        if (EACH == 8u) high[m] += x * b_high; \
    }
#define MULTIPLY(n) \
    if (k + n * GROUPS < count) { \
        vec4 b_low, b_high; \
        spread_b(found[n], b_low, b_high); \
        uint place = (k + n * GROUPS) * TILE_ROWS; \
        EACH_ROW(MULTIPLY_ROW) \
    }
        // The first vectors are on their way while A is stored.
        uint first = k;
        EACH_AHEAD(READ)
        if (begin > t.begin) barrier();
        for (uint n = gl_LocalInvocationIndex; n < TILE_ROWS * count; n += INVOCATIONS) {
            uint m = n / count, place = (n - m * count) * TILE_ROWS + m;
            s_memory[place / 4u][place % 4u] =
                a_float(a_offset + t.at[0] + min(t.row + m, rows - 1u) * a_row +
                        (begin + n - m * count) * a_k);
        }
        barrier();
        for (; k + GROUPS * AHEAD < count; k = first) {
            found = next;
            first = k + GROUPS * AHEAD;
            EACH_AHEAD(READ)
            EACH_AHEAD(MULTIPLY)
        }
        found = next;
        EACH_AHEAD(MULTIPLY)
    }
#define SHARE_ROW(m) \
    { \
        if (m % SUMMED == 0u) barrier(); \
        uint at = ((m % SUMMED * GROUPS + group) * TILE_COLUMNS + lane * EACH) / 4u; \
        s_memory[at] = low[m]; \
        if (EACH == 8u) s_memory[at + 1u] = high[m]; \
        if (m % SUMMED == SUMMED - 1u) finish_rows(t, t.row + m + 1u - SUMMED); \
    }
    EACH_ROW(SHARE_ROW)
    add_parts(t);
}
#endif
