// The range of all FLOAT32 that a dispatch stores, for the quantization that follows. Each invocation takes
// what it stores, then all of a workgroup of 32 to 256 end the range. The includer has what
// include/range.glsl needs, and constants RANGED and RANGE_TYPE, of the quantized numbers.
#include "include/float16.glsl"
#include "include/quantization.glsl"
#include "include/range.glsl"
uint range_lowest = 0x80000000u;  // the bits of the lowest number, ...
int range_highest = 0;            // ... and of the highest one
shared uvec2 s_range[RANGED ? 256 : 1];

void take_number(float x) {
    uint bits = is_nan(x) ? 0u : floatBitsToUint(x);
    range_lowest = max(range_lowest, bits);
    range_highest = max(range_highest, int(bits));
}

void end_range(uint groups) {
    uint i = gl_LocalInvocationIndex, size = gl_WorkGroupSize.x;
    s_range[i] = uvec2(-rank_of(range_lowest), rank_of(uint(range_highest)));
    barrier();
    if (i < 32u) {
        uvec2 most = s_range[i];
        for (uint j = i + 32u; j < size; j += 32u) most = max(most, s_range[j]);
        s_range[i] = most;
    }
    barrier();
    if (i != 0u) return;
    uvec2 most = s_range[0];
    [[unroll]] for (uint j = 1u; j < 32u; ++j) most = max(most, s_range[j]);
    add_range(groups, -int(most.x), int(most.y), RANGE_TYPE);
}
