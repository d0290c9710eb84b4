//@ op DML_OPERATOR_DYNAMIC_QUANTIZE_LINEAR
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/bits.glsl"
#include "include/grid.glsl"
#include "include/float16.glsl"
#include "include/quantization.glsl"

// The range of a tensor, then its scale and zero point (include/range.glsl).
layout(constant_id = 1) const uint IN_TYPE = 36u;
layout(constant_id = 2) const uint OUT_TYPE = 1u;
layout(constant_id = 3) const bool PACKED = false;  // the elements are contiguous

layout(binding = 0) readonly buffer Input { uint in_words[]; };
layout(binding = 0) readonly buffer InputVectors { uvec4 in_vectors[]; };
layout(binding = 1) coherent buffer Zeroed { uint zeroed[]; };
layout(binding = 2) writeonly buffer Scale { uint range_scale[]; };
layout(binding = 3) buffer Zero { uint range_zero[]; };

layout(push_constant) uniform Push {
    uint count;
    uint rank;
    uint sizes[8];
    uint in_strides[8];
    uint in_offset;
    uint zeroed_offset;
    uint scale_offset;
    uint zero_offset;
    uint groups;
};

const uint INVOCATIONS = 256u;  // as the workgroup size
shared int s_low[INVOCATIONS];
shared int s_high[INVOCATIONS];

#define SCALE_AT scale_offset
#define ZERO_AT zero_offset
#include "include/range.glsl"

const bool IS_HALF = BYTES_OF(IN_TYPE) == 2u;
const uint PER_VECTOR = IS_HALF ? 8u : 4u;

// The lowest and highest numbers, as bits. A FLOAT16 is the upper half of the word. The lower half has no
// effect on the order.
uint lowest = 0x80000000u;
int highest = 0;
bool skips_nan = false;

bool is_nan(uint x) {
    return IS_HALF ? (x & 0x7FFF0000u) > 0x7C000000u : (x & 0x7FFFFFFFu) > 0x7F800000u;
}

void take(uint x) {
    if (skips_nan) if (is_nan(x)) x = 0u;
    lowest = max(lowest, x);
    highest = max(highest, int(x));
}

void take_element(uint at) {
    take(IS_HALF ? in_words[at / 2u] << 16u - at % 2u * 16u : in_words[at]);
}

void take_vector(uvec4 vector) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        take(vector[i]);
        if (IS_HALF) take(vector[i] << 16u);
    }
}

int rank_of_bits(uint x) {
    return rank_of(IS_HALF ? half_to_float(x >> 16u) : uintBitsToFloat(x));
}

// Four vectors load at a time. The last vector may be read again, which does not change the range.
void take_packed() {
    uint step = groups * INVOCATIONS;
    uint i = invocation_index();
    uint head = min((0u - in_offset) % PER_VECTOR, count);
    uint vectors = (count - head) / PER_VECTOR;
    uint tail = count - head - vectors * PER_VECTOR;
    uint first = (in_offset + head) / PER_VECTOR;
    uint last = first + vectors - 1u;
    for (uint v = first + i; v < first + vectors; v += 4u * step) {
        uvec4 w = in_vectors[v];
        uvec4 x = in_vectors[min(v + step, last)];
        uvec4 y = in_vectors[min(v + 2u * step, last)];
        uvec4 z = in_vectors[min(v + 3u * step, last)];
        take_vector(w);
        take_vector(x);
        take_vector(y);
        take_vector(z);
    }
    if (i < head) take_element(in_offset + i);
    if (i < tail) take_element(in_offset + count - tail + i);
}

void take_strided() {
    for (uint e = invocation_index(); e < count; e += groups * INVOCATIONS) {
        uint rest = e;
        uint at = in_offset;
        for (uint d = rank - 1u; d > 0u; --d) {
            uint next = rest / sizes[d];
            at += (rest - next * sizes[d]) * in_strides[d];
            rest = next;
        }
        take_element(at + rest * in_strides[0]);
    }
}

void take_all() {
    if (PACKED) take_packed();
    else take_strided();
}

void main() {
    uint i = gl_LocalInvocationIndex;
    take_all();
    if (is_nan(lowest) || is_nan(uint(highest))) {  // the bits of NaN are beyond those of all numbers
        skips_nan = true;
        lowest = 0x80000000u;
        highest = 0;
        take_all();
    }
    s_low[i] = rank_of_bits(lowest);
    s_high[i] = rank_of_bits(uint(highest));
    for (uint step = INVOCATIONS / 2u; step > 0u; step /= 2u) {
        barrier();
        if (i < step) {
            s_low[i] = min(s_low[i], s_low[i + step]);
            s_high[i] = max(s_high[i], s_high[i + step]);
        }
    }
    if (i != 0u || group_index() >= groups) return;
    add_range(groups, s_low[0], s_high[0], OUT_TYPE);
}
