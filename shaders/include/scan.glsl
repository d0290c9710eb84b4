// WORKGROUP_SCAN(name) defines
//   uint name(uint x, out uint total): the sum of the x of the invocations before this one, and of all.
// All invocations of the workgroup must call it.
#define WORKGROUP_SCAN(name) \
    shared uint s_##name[gl_WorkGroupSize.x]; \
    uint name(uint x, out uint total) { \
        uint i = gl_LocalInvocationIndex, sum = x; \
        barrier(); /* of an earlier call, everything was read */ \
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
