// Shared code of the pooling shaders. The includer defines one of OP_average, OP_lp, OP_max and
// OP_quantized. A TOTAL accumulates the elements of a window:
//   nothing(), take(total, bits, index), merged(a, b), result(total, count, channel).
// Dimensions are depth, height and width. Missing ones have size 1.
#define PARAMS_BINDING LAST_BINDING
#if defined(OP_quantized)
#define LAST_BINDING 6
#else
#define LAST_BINDING 3
#endif
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint OUT_TYPE = 36u;
layout(constant_id = 3) const bool INDICES = false;
layout(constant_id = 4) const bool WIDE_INDICES = false;  // 8 bytes each
layout(constant_id = 5) const bool INCLUDE_PADDING = false;
layout(constant_id = 6) const bool DILATED = false;
layout(constant_id = 7) const int WINDOW_D = 1;  // of a window that is unrolled
layout(constant_id = 8) const int WINDOW_H = 1;
layout(constant_id = 9) const int WINDOW_W = 1;
layout(constant_id = 10) const int STEP_W = 1;
layout(constant_id = 11) const uint POWER = 2u;
layout(constant_id = 12) const bool HAS_X_ZERO = false;
layout(constant_id = 13) const bool HAS_Y_ZERO = false;
layout(constant_id = 15) const bool VALUES = true;  // else only indices are stored
layout(constant_id = 34) const bool IEEE_UNITS = false;
#define HAS_IEEE_UNITS IEEE_UNITS

layout(push_constant) uniform Push {
    uint count;
    int in_sizes[3];
    int padded_ends[3];  // the size with the end padding
    int steps[3];
    int dilations[3];
    int paddings[3];
    uint x_strides[3];
    int windows[3];
    uint x_offset;
    uint y_offset;
    uint indices_offset;
    uint x_scale_offset;
    uint x_zero_offset;
    uint y_scale_offset;
    uint y_zero_offset;
    uint lane_bits;  // of pooling_wide.comp
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"

INPUT_TENSOR(x, 0, TYPE)
OUTPUT_TENSOR(y, 1, OUT_TYPE)

// y, x, (index or channel), depth, height, width, indices
WALK(walk, 7)
const uint WALK_WORDS = 10u;  // words of a dimension

const bool IS_WIDE = BYTES_OF(TYPE) == 8u;

#if defined(OP_average)
#define TOTAL float
TOTAL nothing() { return 0.0; }
void take(inout TOTAL total, uvec2 bits, uint index) { total += number_of(bits, TYPE); }
TOTAL merged(TOTAL a, TOTAL b) { return a + b; }
uvec2 result(TOTAL total, uint n, uint channel) {
    return uvec2(bits_of(n == 0u ? 0.0 : total / float(n), OUT_TYPE), 0u);
}

#elif defined(OP_lp)
#include "include/exponentials.glsl"
#define TOTAL float
float power_of(float x) {
    float result = 1.0;
    for (uint n = POWER; n != 0u; n >>= 1u) {
        if ((n & 1u) != 0u) result *= x;
        x *= x;
    }
    return result;
}
TOTAL nothing() { return 0.0; }
void take(inout TOTAL total, uvec2 bits, uint index) {
    float x = magnitude(number_of(bits, TYPE));
    total += POWER == 1u ? x : POWER == 2u ? x * x : power_of(x);
}
TOTAL merged(TOTAL a, TOTAL b) { return a + b; }
uvec2 result(TOTAL total, uint n, uint channel) {
    float root = total;
    if (POWER == 2u) root = sqrt_of(total);
    else if (POWER > 2u && total > 0.0 && total < infinity(0u))
        root = exp_of(log_of(total) / float(POWER));
    return uvec2(bits_of(root, OUT_TYPE), 0u);
}

#elif defined(OP_max)
layout(binding = 2) buffer Indices { uint index_words[]; };
const uint NONE = 0xFFFFFFFFu;
struct Largest {
    uvec2 key;  // higher half first; NaN is the largest, and -0 equals 0
    uvec2 bits;
    uint index;
};
#define TOTAL Largest
// If only the value of a float counts, its key is the float itself.
const bool AS_FLOATS = IS_FLOAT(TYPE) && HAS_EXACT_UNITS && !INDICES;
uvec2 order_of(uvec2 bits) {
    if (IS_WIDE) return uvec2(IS_SIGNED(TYPE) ? bits.y ^ 0x80000000u : bits.y, bits.x);
    if (!IS_FLOAT(TYPE)) return uvec2(IS_SIGNED(TYPE) ? bits.x ^ 0x80000000u : bits.x, 0u);
    uint b = BYTES_OF(TYPE) == 2u ? bits.x << 16u : bits.x;
    if ((b & 0x7FFFFFFFu) > (BYTES_OF(TYPE) == 2u ? 0x7C000000u : 0x7F800000u)) return uvec2(0xFFFFFFFFu, 0u);
    if (b == 0x80000000u) b = 0u;
    return uvec2((b & 0x80000000u) != 0u ? ~b : b | 0x80000000u, 0u);
}
uvec2 lowest() {
    if (IS_FLOAT(TYPE)) return uvec2(BYTES_OF(TYPE) == 2u ? 0xFC00u : 0xFF800000u, 0u);
    if (!IS_SIGNED(TYPE)) return uvec2(0u);
    return IS_WIDE ? uvec2(0u, 0x80000000u) : uvec2(0xFFFFFFFFu << 8u * BYTES_OF(TYPE) - 1u, 0u);
}
TOTAL nothing() {
    return Largest(AS_FLOATS ? uvec2(0xFF800000u, 0u) : order_of(lowest()), lowest(), NONE);
}
bool above_float(float a, float b) { return a > b || is_nan(a); }
bool above(uvec2 a, uvec2 b) { return a.x > b.x || IS_WIDE && a.x == b.x && a.y > b.y; }
void take(inout TOTAL total, uvec2 bits, uint index) {
    if (AS_FLOATS) {
        float x = number_of(bits, TYPE);
        if (above_float(x, uintBitsToFloat(total.key.x))) total.key.x = floatBitsToUint(x);
        return;
    }
    uvec2 key = order_of(bits);
    if (above(key, total.key) || INDICES && total.index == NONE) total = Largest(key, bits, index);
}
TOTAL merged(TOTAL a, TOTAL b) {
    if (AS_FLOATS) {
        if (above_float(uintBitsToFloat(b.key.x), uintBitsToFloat(a.key.x))) return b;
        return a;
    }
    bool second = above(b.key, a.key) || a.key == b.key && b.index < a.index;
    return second ? b : a;
}
uvec2 result(TOTAL total, uint n, uint channel) {
    if (AS_FLOATS) return uvec2(bits_of(uintBitsToFloat(total.key.x), TYPE), 0u);
    return total.bits;
}
void store_index(uint at, uint index) {
    if (WIDE_INDICES) {
        index_words[2u * at] = index;
        index_words[2u * at + 1u] = index == NONE ? NONE : 0u;
    } else {
        index_words[at] = index;
    }
}

#else
#include "include/quantization.glsl"
layout(constant_id = 14) const uint ZERO_TYPE = 0u;
layout(binding = 2) readonly buffer XScale { uint x_scale[]; };
layout(binding = 3) readonly buffer XZero { uint x_zero[]; };
layout(binding = 4) readonly buffer YScale { uint y_scale[]; };
layout(binding = 5) readonly buffer YZero { uint y_zero[]; };
#define BYTE(words, at, type) int(extended(words[(at) / 4u], (at), type).x)
#define TOTAL int
TOTAL nothing() { return 0; }
void take(inout TOTAL total, uvec2 bits, uint index) { total += int(bits.x); }
TOTAL merged(TOTAL a, TOTAL b) { return a + b; }
// ``taken`` elements are summed, ``n`` count. The strides of the four quantization tensors come last.
uvec2 quantized_result(TOTAL total, uint taken, uint n, uint channel, uint strides) {
    uint at = x_zero_offset + channel * param(strides + 1u);
    if (HAS_X_ZERO) total -= int(taken) * BYTE(x_zero, at, TYPE);
    float scale = uintBitsToFloat(x_scale[x_scale_offset + channel * param(strides)]);
    float out_scale = uintBitsToFloat(y_scale[y_scale_offset + channel * param(strides + 2u)]);
    at = y_zero_offset + channel * param(strides + 3u);
    int zero = HAS_Y_ZERO ? BYTE(y_zero, at, OUT_TYPE) : 0;
    precise float scaled = to_float(total, true) * scale;
    float mean = n == 0u ? 0.0 : divide(scaled, float(n));
    return uvec2(quantized(whole_number(divide(mean, out_scale)), zero, OUT_TYPE), 0u);
}
#endif

// The window's elements in [0, end) along a dimension: from first_tap to before the end.
int first_tap(int start, int d) {
    if (start >= 0) return 0;
    return DILATED ? (dilations[d] - 1 - start) / dilations[d] : -start;
}
int last_tap(int start, int end, int window, int d) {
    if (start >= end) return 0;
    return min(window, (DILATED ? (end - 1 - start) / dilations[d] : end - 1 - start) + 1);
}
uint taps(int start, int window, int d) {
    return uint(max(last_tap(start, in_sizes[d], window, d) - first_tap(start, d), 0));
}
uint divisor(int start, int window, int d) {
    if (!INCLUDE_PADDING) return taps(start, window, d);
    return uint(last_tap(start, padded_ends[d], window, d));
}
int tap_step(int d) { return DILATED ? dilations[d] : 1; }
