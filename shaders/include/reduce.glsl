// Reductions over a workgroup, for any subgroup size. The order of the operands is fixed, so equal inputs
// give equal bits on one device.
//
// WORKGROUP_REDUCE(name, T, combine, subgroup) defines
//   T name(T x): the x of all invocations, combined by ``combine``. Every invocation gets it.
// All invocations of the workgroup must call it. ``subgroup`` is the equivalent subgroup operation
// (subgroupAdd ...), used if SUBGROUPS is defined; the includer then enables
// GL_KHR_shader_subgroup_arithmetic.
#if defined(SUBGROUPS)
#define WORKGROUP_REDUCE(name, T, combine, subgroup) \
    shared T s_##name[gl_WorkGroupSize.x]; \
    T name(T x) { \
        x = subgroup(x); \
        barrier(); /* an earlier call's values have been read */ \
        if (subgroupElect()) s_##name[gl_SubgroupID] = x; \
        barrier(); \
        x = s_##name[0]; \
        for (uint i = 1u; i < gl_NumSubgroups; ++i) x = combine(x, s_##name[i]); \
        return x; \
    }
#else
#define WORKGROUP_REDUCE(name, T, combine, subgroup) \
    shared T s_##name[gl_WorkGroupSize.x]; \
    T name(T x) { \
        uint i = gl_LocalInvocationIndex; \
        barrier(); /* an earlier call's values have been read */ \
        s_##name[i] = x; \
        for (uint count = gl_WorkGroupSize.x; count > 1u;) { \
            barrier(); \
            uint kept = (count + 1u) / 2u; \
            if (i + kept < count) s_##name[i] = combine(s_##name[i], s_##name[i + kept]); \
            count = kept; \
        } \
        barrier(); \
        return s_##name[0]; \
    }
#endif
