//@ op DML_OPERATOR_GEMM
//@ variants AXIS: k_contiguous n_contiguous; ROWS: r1 r2 r4 r8
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A few rows of A times B, which is read once, in vectors of 16 bytes. k_contiguous: K is contiguous in A
// and B, and 32 invocations split K of a column. n_contiguous: columns of B are contiguous, and 8 groups
// of 32 invocations split K.
#if defined(ROWS_r1)
const uint TILE_ROWS = 1u;
#elif defined(ROWS_r2)
const uint TILE_ROWS = 2u;
#elif defined(ROWS_r4)
const uint TILE_ROWS = 4u;
#else
const uint TILE_ROWS = 8u;
#endif
const uint INVOCATIONS = 256u;
layout(local_size_x = INVOCATIONS) in;
#if defined(AXIS_k_contiguous)
const uint TILE_COLUMNS = 8u;
#else
const uint TILE_COLUMNS = 256u;
#endif
#include "include/gemm.glsl"
const uint EACH = 16u / BYTES_OF(TYPE);  // elements of a vector
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

#if defined(AXIS_k_contiguous)
const uint LANES = 32u;
shared float s_sums[TILE_ROWS * INVOCATIONS];

void main() {
    Tile t;
    if (!find_tile(t)) return;
    uint lane = gl_LocalInvocationIndex % LANES;
    uint column = min(t.column + gl_LocalInvocationIndex / LANES, columns - 1u);
    uint from = (b_offset + t.at[1] + column * b_column) / EACH;
    uint a_from[TILE_ROWS];
    float sums[TILE_ROWS];
    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
        a_from[m] = (a_offset + t.at[0] + min(t.row + m, rows - 1u) * a_row) / EACH;
        sums[m] = 0.0;
    }
    uint end = t.end / EACH;
    for (uint v = t.begin / EACH + lane; v < end; v += LANES * AHEAD) {
        uvec4 found[AHEAD];
        [[unroll]] for (uint n = 0u; n < AHEAD; ++n)
            found[n] = b_vectors[from + min(v + n * LANES, end - 1u)];
        [[unroll]] for (uint n = 0u; n < AHEAD; ++n) {
            if (v + n * LANES >= end) break;
            vec4 low, high, a_low, a_high;
            spread(found[n], low, high);
            [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
                spread(a_vectors[a_from[m] + v + n * LANES], a_low, a_high);
                sums[m] += dot(low, a_low);
                if (EACH == 8u) sums[m] += dot(high, a_high);
            }
        }
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
const uint LANES = 32u;  // invocations of neighbouring columns
const uint GROUPS = INVOCATIONS / LANES;
const uint MAX_PART_K = 512u;  // as the lowering knows
// A float32 vector has four columns, so a workgroup takes two passes.
const uint PASSES = TILE_COLUMNS / (LANES * EACH);
shared float s_a[TILE_ROWS * MAX_PART_K];
shared vec4 s_sums[GROUPS * TILE_COLUMNS / 4u];

void main() {
    Tile t;
    if (!find_tile(t)) return;
    uint lane = gl_LocalInvocationIndex % LANES, group = gl_LocalInvocationIndex / LANES;
    uint count = t.end - t.begin;
    for (uint n = gl_LocalInvocationIndex; n < TILE_ROWS * count; n += INVOCATIONS) {
        uint m = n / count, k = n - m * count;
        s_a[m * MAX_PART_K + k] =
            a_float(a_offset + t.at[0] + min(t.row + m, rows - 1u) * a_row + (t.begin + k) * a_k);
    }
    barrier();
    vec4 low[TILE_ROWS][2], high[TILE_ROWS][2];
    [[unroll]] for (uint pass = 0u; pass < 2u; ++pass) {
        [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
            low[m][pass] = vec4(0.0);
            high[m][pass] = vec4(0.0);
        }
        if (pass >= PASSES) break;
        uint column = min(t.column + (pass * LANES + lane) * EACH, columns - EACH);
        uint from = b_offset + t.at[1] + t.begin * b_k + column;
        for (uint k = group; k < count; k += GROUPS * AHEAD) {
            uvec4 found[AHEAD];
            [[unroll]] for (uint n = 0u; n < AHEAD; ++n)
                found[n] = b_vectors[(from + min(k + n * GROUPS, count - 1u) * b_k) / EACH];
            [[unroll]] for (uint n = 0u; n < AHEAD; ++n) {
                if (k + n * GROUPS >= count) break;
                vec4 b_low, b_high;
                spread(found[n], b_low, b_high);
                [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
                    float x = s_a[m * MAX_PART_K + k + n * GROUPS];
                    low[m][pass] += x * b_low;
                    if (EACH == 8u) high[m][pass] += x * b_high;
                }
            }
        }
    }
    [[unroll]] for (uint m = 0u; m < TILE_ROWS; ++m) {
        barrier();
        [[unroll]] for (uint pass = 0u; pass < 2u; ++pass) {
            if (pass >= PASSES) break;
            uint at = (group * TILE_COLUMNS + (pass * LANES + lane) * EACH) / 4u;
            s_sums[at] = low[m][pass];
            if (EACH == 8u) s_sums[at + 1u] = high[m][pass];
        }
        barrier();
        uint n = gl_LocalInvocationIndex;
        if (n < TILE_COLUMNS / 4u) {
            vec4 four = s_sums[n];
            [[unroll]] for (uint d = 1u; d < GROUPS; ++d)
                four += s_sums[d * (TILE_COLUMNS / 4u) + n];
            finish_four(t, t.row + m, t.column + 4u * n, four);
        }
    }
    add_parts(t);
}
#endif
