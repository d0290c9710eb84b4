// The samples of a region of interest. The includer has push fields outputs (height and width of a
// region's output), scales, in_offset, out_offset and samples (least, most). CORNERS is
// AlignRegionsToCorners.
#include "include/float_pairs.glsl"

// Samples along an axis. Sample s lies at first + s * step.
struct Axis {
    uint count;  // samples of one output
    float begin;
    float step;
    bool is_point;  // AlignRegionsToCorners with one sample, at the centre
};

Axis axis_of(float low, float high, uint outputs, float scale) {
    precise float begin = low * scale;
    precise float size = high * scale - begin;
    float wanted = ceiled(divide(size, float(outputs)));
    Axis axis;
    axis.count = uint(clamp(is_nan(wanted) ? 0.0 : wanted, float(samples[0]), float(samples[1])));
    axis.begin = begin;
    uint all_samples = outputs * axis.count;
    axis.is_point = CORNERS && all_samples == 1u;
    axis.step = divide(size, float(CORNERS && all_samples > 1u ? all_samples - 1u : all_samples));
    return axis;
}

float coordinate(Axis axis, uint s) {
    if (axis.is_point) return axis.begin + 0.5 * axis.step - in_offset;
    precise float place = (float(s) - out_offset) * axis.step + axis.begin;
    place = place - in_offset;
    return place;
}

bool is_inside(float place, uint size) { return place >= -1.0 && place <= float(size); }
