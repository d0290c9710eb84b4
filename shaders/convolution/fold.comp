//@ op DML_OPERATOR_FOLD DML_OPERATOR_UNFOLD
//@ variants TO: image image64 columns
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Copies blocks of an image {N, C, spatial..} to columns {N, C * window, blocks}, or sums columns to an
// image. An invocation computes EACH neighbours along the last dimension of the image or of the blocks.
// Sums of FLOAT64 need shaderFloat64.
// The walk gives places in y and in x without the spatial dimensions, and a coordinate along each of these.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint AXES = 1u;
layout(constant_id = 3) const uint EACH = 1u;
layout(constant_id = 4) const uint TAPS = 0u;  // the most that meet a pixel along the last axis, if few
layout(push_constant) uniform Push {
    uint count;
    uint axes_at;  // words of each axis
    uint before;   // columns: from the first padded pixel to the first one
    uint x_offset;
    uint y_offset;
    uint params_offset;
};
#define PARAMS_BINDING 2
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/each.glsl"
INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, TYPE)
OUTPUT_EACH(y, TYPE)
WALK(walk, 8)

#if defined(TO_columns)
// Words of an axis: padding, size, step from block to block, stride
uint axis_word(uint axis, uint i) { return param(axes_at + 4u * axis + i); }

void main() {
    uint index = invocation_index();
    if (index >= count) return;
    uint[8] at = walk(0u, index);
    uint from = x_offset + at[1] - before;
    bool inside = true;
    [[unroll]] for (uint a = 0u; a < AXES; ++a) {
        from += at[2u + a] * axis_word(a, 3u);
        if (a + 1u < AXES) inside = inside && at[2u + a] - axis_word(a, 0u) < axis_word(a, 1u);
    }
    const uint last = AXES - 1u;
    uint place = at[2u + last] - axis_word(last, 0u), step = axis_word(last, 2u);
    uvec2 values[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        values[e] = inside && place < axis_word(last, 1u) ? x_bits(from) : uvec2(0u);
        place += step;
        from += step * axis_word(last, 3u);
    }
    y_store_each(y_offset + at[0], values);
}
#else
// Words of an axis: padding, stride and its reciprocal, blocks, blocks from a tap to the next one, the step
// among the columns from tap to tap, and from block to block, where its phases begin. A phase is a place
// relative to the window's stride. It has the number of taps that meet it, and of the first one: the place
// among the columns, and the block.
uint axis_word(uint axis, uint i) { return param(axes_at + 9u * axis + i); }

struct Place {
    uint block;
    uint phase;
};

Place place_of(uint at, uint axis) {
    uint place = at + axis_word(axis, 0u), stride = axis_word(axis, 1u), block = place;
    if (stride > 1u) block = walk_quotient(place, axis_word(axis, 2u), axis_word(axis, 3u));
    return Place(block, place - block * stride);
}

// The taps of a pixel.
struct Taps {
    uint count;
    uint from;  // the place of the first one
};

Taps taps_of(Place place, uint axis) {
    uint phase = axis_word(axis, 8u) + 3u * place.phase;
    uint blocks = axis_word(axis, 4u), back = axis_word(axis, 5u);
    int block = int(place.block + param(phase + 2u));
    uint low = 0u, end = 0u;
    if (block >= 0) {
        uint over = uint(block) >= blocks ? uint(block) - blocks : 0u, steps = uint(block);
        if (back > 1u) {
            over /= back;
            steps /= back;
        }
        low = uint(block) >= blocks ? over + 1u : 0u;
        end = min(param(phase), steps + 1u);
    }
    Taps taps;
    taps.count = end > low ? end - low : 0u;
    taps.from = param(phase + 1u) + uint(block) * axis_word(axis, 7u) + low * axis_word(axis, 6u);
    return taps;
}

uvec2 plus(uvec2 a, uvec2 b) {
    uint carry;
    uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

// A sum of floats, or of integers.
uvec2 added(uvec2 sum, uint from) {
#if defined(TO_image64)
    precise double total = packDouble2x32(sum) + packDouble2x32(x_bits(from));
    return unpackDouble2x32(total);
#endif
    if (!IS_FLOAT(TYPE)) return plus(sum, x_bits(from));
    return uvec2(floatBitsToUint(uintBitsToFloat(sum.x) + x_float(from)), 0u);
}

void main() {
    uint index = invocation_index();
    if (index >= count) return;
    uint[8] at = walk(0u, index);
    const uint last = AXES - 1u;
    Taps outer[8];
    uint from = x_offset + at[1], passes = 1u;
    [[unroll]] for (uint a = 0u; a < last; ++a) {
        outer[a] = taps_of(place_of(at[2u + a], a), a);
        from += outer[a].from;
        passes *= outer[a].count;
    }
    Taps along[EACH];
    Place place = place_of(at[2u + last], last);
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        along[e] = taps_of(place, last);
        if (++place.phase == axis_word(last, 1u)) place = Place(place.block + 1u, 0u);
    }
    uint step = axis_word(last, 6u);
    uvec2 sums[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) sums[e] = uvec2(0u);
    uint taken[8];
    [[unroll]] for (uint a = 0u; a < last; ++a) taken[a] = 0u;
    uint n = 0u;
    // A driver on the CPU runs a loop's body once more than it has passes, unless its test comes last.
    if (passes != 0u) do {
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uint tap = from + along[e].from;
            if (TAPS != 0u) {
                [[unroll]] for (uint t = 0u; t < TAPS; ++t)
                    if (t < along[e].count) sums[e] = added(sums[e], tap + t * step);
            } else {
                for (uint t = 0u; t < along[e].count; ++t) sums[e] = added(sums[e], tap + t * step);
            }
        }
        bool next = true;  // whether the taps along the axes behind begin again
        [[unroll]] for (uint b = 0u; b < last; ++b) {
            uint a = last - 1u - b;
            if (!next) continue;
            from += axis_word(a, 6u);
            next = ++taken[a] == outer[a].count;
            if (!next) continue;
            from -= taken[a] * axis_word(a, 6u);
            taken[a] = 0u;
        }
    } while (++n < passes);
#if !defined(TO_image64)
    [[unroll]] for (uint e = 0u; e < EACH; ++e)
        if (IS_FLOAT(TYPE)) sums[e].x = bits_of(uintBitsToFloat(sums[e].x), TYPE);
#endif
    y_store_each(y_offset + at[0], sums);
}
#endif
