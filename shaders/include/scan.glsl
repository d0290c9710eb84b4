// WORKGROUP_SCAN(name) defines
//   uint name(uint x, out uint total): the sum of x over earlier invocations; ``total`` over all.
// All invocations of the workgroup must call it.
#define WORKGROUP_SCAN(name) \
    shared uint s_##name[gl_WorkGroupSize.x]; \
    uint name(uint x, out uint total) { \
        uint i = gl_LocalInvocationIndex, sum = x; \
        barrier(); /* an earlier call's values have been read */ \
        s_##name[i] = sum; \
        for (uint reach = 1u; reach < gl_WorkGroupSize.x; reach *= 2u) { \
            barrier(); \
            uint before = i < reach ? 0u : s_##name[i - reach]; \
            barrier(); \
            sum += before; \
            s_##name[i] = sum; \
        } \
        barrier(); \
        total = s_##name[gl_WorkGroupSize.x - 1u]; \
        return sum - x; \
    }
