//@ op DML_OPERATOR_UPSAMPLE_2D DML_OPERATOR_RESAMPLE DML_OPERATOR_RESAMPLE1 DML_OPERATOR_RESAMPLE2 DML_OPERATOR_RESAMPLE3
//@ variants MODE: nearest linear
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation computes EACH neighbouring elements of the output. AXES dimensions are resampled, and the
// neighbours may lie along the last one. Along other dimensions the input has the same coordinate.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint AXES = 2u;  // up to 4
layout(constant_id = 3) const uint EACH = 1u;
layout(constant_id = 4) const bool ALONG_AXIS = true;  // neighbours lie along the last axis
layout(constant_id = 5) const bool TABLES = false;  // the params hold the nearest elements
layout(constant_id = 6) const uint SPAN = 0u;  // elements that EACH may need along the last axis
layout(constant_id = 7) const bool VECTORS = false;  // EACH elements of input are a vector
layout(constant_id = 34) const bool IEEE_UNITS = false;
#define HAS_IEEE_UNITS IEEE_UNITS
layout(push_constant) uniform Push {
    uint count;
    uint in_sizes[4];
    uint x_strides[4];
#if defined(MODE_nearest)
    // The nearest element of output o: the quotient of steps * o + firsts, minus what lies above the shift's
    // 5 bits. With TABLES, steps are where the tables begin.
    uint steps[4];
    uint firsts[4];
    uint multipliers[4];
    uint shifts[4];
#else
    // Output o lies at (steps * o + firsts) / divisors.
    float steps[4];
    float firsts[4];
    float divisors[4];
    uint sample_bits[4];  // of an antialiased axis: 2^bits samples
#endif
    uint x_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/float_pairs.glsl"

INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, TYPE)
#include "include/each.glsl"
OUTPUT_EACH(y, TYPE)
// y, x (without the axes), the axes' coordinates
WALK(walk, 6)

const uint BYTES = BYTES_OF(TYPE);

uint clamped(int i, uint axis) { return uint(clamp(i, 0, int(in_sizes[axis]) - 1)); }

#if defined(MODE_nearest)
uint nearest(uint o, uint axis) {
    if (TABLES) return param(steps[axis] + o) * x_strides[axis];
    uint whole = walk_quotient(steps[axis] * o + firsts[axis], multipliers[axis], shifts[axis] & 31u);
    return clamped(int(whole) - int(shifts[axis] >> 5u), axis) * x_strides[axis];
}
#define VALUE uvec2
#else
#define VALUE float
// The input's coordinate for a coordinate of the output, clamped to one element outside.
float place_of(float o, uint axis) {
    precise float place = o * steps[axis];
    place = place + firsts[axis];
    return clamp(divide(place, divisors[axis]), -1.0, float(in_sizes[axis]));
}

struct Taps {
    int first;
    float second;  // the weight of the second
};
Taps taps_of(float o, uint axis) {
    float place = place_of(o, axis);
    float whole = floored(place);
    return Taps(int(whole), place - whole);
}
// Avoids 0 times infinity, which occurs at edges.
float blend(float a, float b, float second) {
    return second == 0.0 ? a : second == 1.0 ? b : a * (1.0 - second) + b * second;
}
#endif

VALUE values[EACH];

// Contiguous elements of the input, for EACH elements of the output.
void load_each(uint from, out VALUE result[EACH]) {
    if (VECTORS && x_offset % EACH == 0u) {
        uvec4 vector = x_vectors[from / EACH];
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uint byte = e * BYTES;
            uvec2 bits = extended(vector[byte / 4u & 3u], byte, TYPE);
#if defined(MODE_nearest)
            result[e] = bits;
#else
            result[e] = number_of(bits, TYPE);
#endif
        }
        return;
    }
    [[unroll]] for (uint e = 0u; e < EACH; ++e)
#if defined(MODE_nearest)
        result[e] = x_bits(from + e);
#else
        result[e] = x_float(from + e);
#endif
}

void main() {
    uint item = invocation_index();
    if (item >= count) return;
    uint[6] at = walk(0u, item);
    uint base = x_offset + at[1];
    const uint LAST = AXES == 0u ? 0u : AXES - 1u;
#if defined(MODE_nearest)
    const uint outer = ALONG_AXIS && AXES != 0u ? LAST : AXES;
    [[unroll]] for (uint a = 0u; a < outer; ++a) base += nearest(at[2u + a], a);
    if (ALONG_AXIS && AXES != 0u) {
        [[unroll]] for (uint e = 0u; e < EACH; ++e)
            values[e] = x_bits(base + nearest(at[2u + LAST] + e, LAST));
    } else {
        load_each(base, values);
    }
#else
    [[unroll]] for (uint e = 0u; e < EACH; ++e) values[e] = 0.0;
    uint all_bits = 0u;
    [[unroll]] for (uint a = 0u; a < AXES; ++a) all_bits += sample_bits[a];
    const uint outer = ALONG_AXIS ? LAST : AXES;
    for (uint s = 0u; s < 1u << all_bits; ++s) {
        uint rest = s;
        float shift[4];
        [[unroll]] for (uint a = 0u; a < AXES; ++a) {
            uint n = 1u << sample_bits[a];
            // (j + 1/2) / n - 1/2, exact
            shift[a] = (float(rest & n - 1u) + 0.5) / float(n) - 0.5;
            rest >>= sample_bits[a];
        }
        Taps taps[4];
        [[unroll]] for (uint a = 0u; a < outer; ++a)
            taps[a] = taps_of(float(at[2u + a]) + shift[a], a);
        Taps along[EACH];
        if (ALONG_AXIS && AXES != 0u) {
            [[unroll]] for (uint e = 0u; e < EACH; ++e)
                along[e] = taps_of(float(at[2u + LAST] + e) + shift[LAST], LAST);
        }
        // The bits of ``corner`` select a neighbour along each outer axis. Its weight is a product.
        [[unroll]] for (uint corner = 0u; corner < 1u << outer; ++corner) {
            uint from = base;
            float weight = 1.0;
            [[unroll]] for (uint a = 0u; a < outer; ++a) {
                bool second = (corner >> a & 1u) != 0u;
                from += clamped(taps[a].first + int(second), a) * x_strides[a];
                weight *= second ? taps[a].second : 1.0 - taps[a].second;
            }
            if (!ALONG_AXIS || AXES == 0u) {
                float row[EACH];
                load_each(from, row);
                [[unroll]] for (uint e = 0u; e < EACH; ++e)
                    values[e] += weight == 0.0 ? 0.0 : weight * row[e];
            } else if (SPAN != 0u) {
                float row[SPAN == 0u ? 1u : SPAN];
                [[unroll]] for (uint i = 0u; i < SPAN; ++i)
                    row[i] = x_float(from + clamped(along[0].first + int(i), LAST) * x_strides[LAST]);
                [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                    uint first = uint(along[e].first - along[0].first);
                    float a = row[0], b = row[SPAN > 1u ? 1u : 0u];
                    [[unroll]] for (uint i = 1u; i + 1u < SPAN; ++i) {
                        a = first == i ? row[i] : a;
                        b = first == i ? row[i + 1u] : b;
                    }
                    float blended = blend(a, b, along[e].second);
                    values[e] += weight == 0.0 ? 0.0 : weight * blended;
                }
            } else {
                [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                    float a = x_float(from + clamped(along[e].first, LAST) * x_strides[LAST]);
                    float b = x_float(from + clamped(along[e].first + 1, LAST) * x_strides[LAST]);
                    float blended = blend(a, b, along[e].second);
                    values[e] += weight == 0.0 ? 0.0 : weight * blended;
                }
            }
        }
    }
    float part = 1.0 / float(1u << all_bits);  // a power of two
    [[unroll]] for (uint e = 0u; e < EACH; ++e) values[e] *= part;
#endif

    uvec2 made[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e)
#if defined(MODE_nearest)
        made[e] = values[e];
#else
        made[e] = uvec2(bits_of(values[e], TYPE), 0u);
#endif
    y_store_each(y_offset + at[0], made);
}
