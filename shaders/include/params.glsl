// Words that are known when the plan is made. The includer defines PARAMS_BINDING, the last binding. It
// has a push field params_offset.
#ifndef INCLUDED_PARAMS
#define INCLUDED_PARAMS
layout(binding = PARAMS_BINDING) readonly buffer Params { uint params[]; };

#if defined(SHARED_PARAMS)
// The first words are copied to shared memory once: call share_params() first.
shared uint s_params[SHARED_PARAMS];

void share_params() {
    uint i = gl_LocalInvocationIndex;
    if (i < SHARED_PARAMS) s_params[i] = params[min(params_offset + i, uint(params.length()) - 1u)];
    barrier();
}

uint param(uint i) {
    return i < SHARED_PARAMS ? s_params[i] : params[params_offset + i];
}
#else
uint param(uint i) {
    return params[params_offset + i];
}
#endif

float param_float(uint i) {
    return uintBitsToFloat(param(i));
}
#endif
