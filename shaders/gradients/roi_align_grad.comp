//@ op DML_OPERATOR_ROI_ALIGN_GRAD
//@ variants STEP: weights winners sums slopes regions
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// ``weights`` computes the weight with which each output of a region reads each row (or column) of the
// image. The weights of both axes are multiplied. ``winners`` finds the sample of each maximum. ``sums``
// adds up the gradient of each element of the image, over regions in order. ``slopes`` computes the part
// of each output in the gradient of its region, and ``regions`` adds these up.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool MAXIMUM = false;
layout(constant_id = 3) const bool LINEAR = true;
layout(constant_id = 4) const bool CORNERS = false;
layout(constant_id = 6) const uint EACH = 1u;
layout(constant_id = 34) const bool IEEE_UNITS = false;
#define HAS_IEEE_UNITS IEEE_UNITS
layout(push_constant) uniform Push {
    uint count;
    uint regions;
    uint in_sizes[4];
    uint roi_strides[2];
    uint batch_stride;
    uint outputs[2];
    float scales[2];
    float in_offset;
    float out_offset;
    uint samples[2];
    uint axis;  // of step weights: 0 is height
    uint strides_at;
    uint x_offset;
    uint dy_offset;
    uint roi_offset;
    uint batch_offset;
    uint table_offset;
    uint winners_offset;
    uint made_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/regions.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(dy, 1, TYPE)
INPUT_TENSOR(roi, 2, TYPE)
INPUT_TENSOR(batch, 3, 4u)
INPUT_TENSOR(table, 4, 36u)
INPUT_TENSOR(winners, 5, 4u)
OUTPUT_TENSOR(made, 6, TYPE)

// The strides of x, then of dy.
uint x_stride(uint d) { return param(strides_at + d); }
uint dy_stride(uint d) { return param(strides_at + 4u + d); }

Axis region_axis(uint region, uint a) {
    uint from = roi_offset + region * roi_strides[0] + (1u - a) * roi_strides[1];
    return axis_of(roi_float(from), roi_float(from + 2u * roi_strides[1]), outputs[a], scales[a]);
}

uint image_of(uint region) {
    return min(batch_words[batch_offset + region * batch_stride], in_sizes[0] - 1u);
}

// A sample along an axis: the elements on both sides, and its distance from the first one.
struct Place {
    bool inside;
    uint low;
    uint high;  // equals low if the sample is at an element
    float beyond;
};

Place place_of(Axis axis, uint s, uint a) {
    Place place;
    float v = coordinate(axis, s);
    uint size = in_sizes[2u + a];
    place.inside = is_inside(v, size);
    v = clamp(place.inside ? v : 0.0, 0.0, float(size - 1u));
    place.low = uint(v);
    place.beyond = v - float(place.low);
    place.high = place.beyond == 0.0 ? place.low : place.low + 1u;
    return place;
}

// The weight with which a sample reads element i.
float weight(Place place, uint i) {
    if (!place.inside) return 0.0;
    if (!LINEAR) return i == (place.beyond < 0.5 ? place.low : place.high) ? 1.0 : 0.0;
    return i == place.low ? 1.0 - place.beyond : i == place.high ? place.beyond : 0.0;
}

// Weights of rows by region and output, then weights of columns. Then, by region and element, the outputs
// that read it: the first one in the lower half, the one after the last in the upper half.
uint weight_at(uint a, uint region, uint o, uint i) {
    uint first = a == 0u ? 0u : regions * outputs[0] * in_sizes[2];
    return first + (region * outputs[a] + o) * in_sizes[2u + a] + i;
}

uint span_at(uint a, uint region, uint i) {
    uint first = regions * (outputs[0] * in_sizes[2] + outputs[1] * in_sizes[3]
                            + (a == 0u ? 0u : in_sizes[2]));
    return first + region * in_sizes[2u + a] + i;
}

// Region, channel, row and column of an output.
uvec4 output_of(uint item) {
    uint across = item % outputs[1], rest = item / outputs[1];
    uint down = rest % outputs[0];
    rest /= outputs[0];
    return uvec4(rest / in_sizes[1], rest % in_sizes[1], down, across);
}

float x_sample(uint plane, Place v, Place u) {
    uint upper = plane + v.low * x_stride(2u), lower = plane + v.high * x_stride(2u);
    uint left = u.low * x_stride(3u), right = u.high * x_stride(3u);
    if (!LINEAR)
        return x_float((v.beyond < 0.5 ? upper : lower) + (u.beyond < 0.5 ? left : right));
    float above = x_float(upper + left), below = x_float(lower + left);
    if (u.beyond != 0.0) {
        above = above * (1.0 - u.beyond) + x_float(upper + right) * u.beyond;
        below = below * (1.0 - u.beyond) + x_float(lower + right) * u.beyond;
    }
    return v.beyond == 0.0 ? above : above * (1.0 - v.beyond) + below * v.beyond;
}

#if defined(STEP_weights)
void main() {
    uint item = invocation_index();
    if (item >= count) return;
    uint size = in_sizes[2u + axis], region = item / size, i = item % size;
    Axis samples_of = region_axis(region, axis);
    uint first = 0u, end = 0u;
    for (uint o = 0u; o < outputs[axis]; ++o) {
        float sum = 0.0;
        for (uint s = 0u; s < samples_of.count; ++s)
            sum += weight(place_of(samples_of, o * samples_of.count + s, axis), i);
        if (sum != 0.0) {
            if (end == 0u) first = o;
            end = o + 1u;
        }
        made_words[made_offset + weight_at(axis, region, o, i)] =
            floatBitsToUint(sum / float(samples_of.count));
    }
    made_words[made_offset + span_at(axis, region, i)] = first | end << 16u;
}
#elif defined(STEP_winners)
// Stores the number of the largest sample of an output, or NONE if it lies outside.
void main() {
    uint item = invocation_index();
    if (item >= count) return;
    uvec4 at = output_of(item);
    Axis down = region_axis(at.x, 0u), across = region_axis(at.x, 1u);
    uint plane = x_offset + image_of(at.x) * x_stride(0u) + at.y * x_stride(1u);
    uint winner = 0xFFFFFFFFu;
    float best = 0.0;
    for (uint i = 0u; i < down.count; ++i) {
        Place v = place_of(down, at.z * down.count + i, 0u);
        for (uint j = 0u; j < across.count; ++j) {
            Place u = place_of(across, at.w * across.count + j, 1u);
            bool inside = v.inside && u.inside;
            float value = inside ? x_sample(plane, v, u) : 0.0;
            if (i + j == 0u || !is_nan(best) && (is_nan(value) || less(best, value))) {
                winner = inside ? i * across.count + j : 0xFFFFFFFFu;
                best = value;
            }
        }
    }
    made_words[made_offset + item] = winner;
}
#elif defined(STEP_sums)
// An invocation computes EACH neighbours of a row.
#include "include/each.glsl"
OUTPUT_EACH(made, TYPE)
// the result, image, channel, row, column
WALK(walk, 5)

uint rows_of(uint r, uint[5] at) { return table_words[table_offset + span_at(0u, r, at[3])]; }

// The first region from ``r`` on that reads this row.
uint next_region(uint r, uint[5] at) {
    while (r < regions && (image_of(r) != at[1] || rows_of(r, at) == 0u)) ++r;
    return r;
}

// A driver on the CPU runs a loop's body once more than the loop has passes, unless its test comes last.
void add_region(inout float sums[EACH], uint r, uint[5] at) {
    uint rows = rows_of(r, at), columns[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e)
        columns[e] = table_words[table_offset + span_at(1u, r, at[4] + e)];
    uint gradients = dy_offset + r * dy_stride(0u) + at[2] * dy_stride(1u);
    uint by_columns = table_offset + weight_at(1u, r, 0u, at[4]);
    Axis down, across;
    if (MAXIMUM) {
        down = region_axis(r, 0u);
        across = region_axis(r, 1u);
    }
    uint i = rows & 0xFFFFu;
    do {
        float by_row = table_float(table_offset + weight_at(0u, r, i, at[3]));
        uint row = gradients + i * dy_stride(2u);
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            if (columns[e] == 0u || by_row == 0.0) continue;
            uint j = columns[e] & 0xFFFFu;
            do {
                float by = by_row * table_float(by_columns + j * in_sizes[3] + e);
                if (MAXIMUM) {
                    uint o = ((r * in_sizes[1] + at[2]) * outputs[0] + i) * outputs[1] + j;
                    uint winner = winners_words[winners_offset + o];
                    uint v = i * down.count + winner / across.count;
                    uint u = j * across.count + winner % across.count;
                    by = weight(place_of(down, v, 0u), at[3])
                         * weight(place_of(across, u, 1u), at[4] + e);
                    if (winner == 0xFFFFFFFFu) by = 0.0;
                }
                if (by != 0.0) sums[e] += by * dy_float(row + j * dy_stride(3u));
            } while (++j < columns[e] >> 16u);
        }
    } while (++i < rows >> 16u);
}

void main() {
    uint item = invocation_index();
    if (item >= count) return;
    uint[5] at = walk(0u, item);
    float sums[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) sums[e] = 0.0;
    uint r = next_region(0u, at);
    if (r < regions) do {
        add_region(sums, r, at);
        r = next_region(r + 1u, at);
    } while (r < regions);
    uvec2 bits[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) bits[e] = uvec2(bits_of(sums[e], TYPE), 0u);
    made_store_each(made_offset + at[0], bits);
}
#elif defined(STEP_slopes)
// The relative position of a sample in its region: the weight of the second corner.
float part_of(Axis axis, uint s, uint outputs_along) {
    if (axis.is_point) return 0.5;
    uint all_samples = outputs_along * axis.count;
    return (float(s) - out_offset) / float(CORNERS ? all_samples - 1u : all_samples);
}

void main() {
    uint item = invocation_index();
    if (item >= count) return;
    uvec4 at = output_of(item);
    Axis down = region_axis(at.x, 0u), across = region_axis(at.x, 1u);
    uint plane = x_offset + image_of(at.x) * x_stride(0u) + at.y * x_stride(1u);
    uint first = 0u, end = down.count * across.count;
    if (MAXIMUM) {
        first = winners_words[winners_offset + item];
        end = first == 0xFFFFFFFFu ? 0u : first + 1u;
    }
    vec4 sums = vec4(0.0);
    for (uint s = first; s < end; ++s) {
        uint down_at = at.z * down.count + s / across.count;
        uint across_at = at.w * across.count + s % across.count;
        Place v = place_of(down, down_at, 0u), u = place_of(across, across_at, 1u);
        if (!v.inside || !u.inside) continue;
        uint upper = plane + v.low * x_stride(2u), lower = plane + v.high * x_stride(2u);
        uint left = u.low * x_stride(3u), right = u.high * x_stride(3u);
        float a = x_float(upper + left), b = x_float(upper + right);
        float c = x_float(lower + left), d = x_float(lower + right);
        float by_u = (b - a) * (1.0 - v.beyond) + (d - c) * v.beyond;
        float by_v = (c - a) * (1.0 - u.beyond) + (d - b) * u.beyond;
        float part_u = part_of(across, across_at, outputs[1]);
        float part_v = part_of(down, down_at, outputs[0]);
        sums += vec4(by_u * (1.0 - part_u), by_v * (1.0 - part_v), by_u * part_u, by_v * part_v);
    }
    float share = dy_float(dy_offset + at.x * dy_stride(0u) + at.y * dy_stride(1u)
                           + at.z * dy_stride(2u) + at.w * dy_stride(3u));
    if (!MAXIMUM) share /= float(down.count * across.count);
    sums *= share * vec4(scales[1], scales[0], scales[1], scales[0]);
    [[unroll]] for (uint k = 0u; k < 4u; ++k)
        made_words[made_offset + 4u * item + k] = floatBitsToUint(sums[k]);
}
#else
// the result, region, corner
WALK(walk, 3)

void main() {
    uint item = invocation_index();
    if (item >= count) return;
    uint[3] at = walk(0u, item);
    uint each = in_sizes[1] * outputs[0] * outputs[1];
    float sum = 0.0;
    for (uint i = 0u; i < each; ++i)
        sum += table_float(table_offset + 4u * (at[1] * each + i) + at[2]);
    made_store_float(made_offset + at[0], sum);
}
#endif
