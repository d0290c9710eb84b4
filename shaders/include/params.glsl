// The words that a plan knows beforehand. The includer defines PARAMS_BINDING, the last binding, and
// has a push field params_offset.
#ifndef INCLUDED_PARAMS
#define INCLUDED_PARAMS
layout(binding = PARAMS_BINDING) readonly buffer Params { uint params[]; };

uint param(uint i) {
    return params[params_offset + i];
}

float param_float(uint i) {
    return uintBitsToFloat(param(i));
}
#endif
