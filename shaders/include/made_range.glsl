// The range of all FLOAT32 that a dispatch stores, for the quantization that follows. Each invocation takes
// what it stores, then all of a workgroup of 32 to 256 end the range. The includer has what
// include/range.glsl needs, its local size, constants RANGED and RANGE_TYPE, of the quantized numbers, and
// perhaps RANGE_SLOT(i): an lvalue uvec2 of shared memory for each invocation.
#include "include/float16.glsl"
#include "include/quantization.glsl"
#include "include/range.glsl"
uint range_lowest = 0x80000000u;  // the bits of the lowest number, ...
int range_highest = 0;            // ... and of the highest one
#ifndef RANGE_SLOT
shared uvec2 s_range[RANGED ? 256 : 2];
#define RANGE_SLOT(i) s_range[i]
#endif

void take_number(float x) {
    uint bits = is_nan(x) ? 0u : floatBitsToUint(x);
    range_lowest = max(range_lowest, bits);
    range_highest = max(range_highest, int(bits));
}

void end_range(uint groups) {
    uint i = gl_LocalInvocationIndex, size = gl_WorkGroupSize.x;
    RANGE_SLOT(i) = uvec2(-rank_of(range_lowest), rank_of(uint(range_highest)));
    barrier();
    if (i < 32u) {
        uvec2 most = RANGE_SLOT(i);
        for (uint j = i + 32u; j < size; j += 32u) most = max(most, RANGE_SLOT(j));
        RANGE_SLOT(i) = most;
    }
    barrier();
    if (i != 0u) return;
    uvec2 most = RANGE_SLOT(0);
    [[unroll]] for (uint j = 1u; j < 32u; ++j) most = max(most, RANGE_SLOT(j));
    add_range(groups, -int(most.x), int(most.y), RANGE_TYPE);
}
