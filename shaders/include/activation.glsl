// float activate(float x). Its attributes are in the params buffer from activation_at on, a push field of
// the includer, which includes include/params.glsl.
#ifndef ATTRIBUTES_AT
#define ATTRIBUTES_AT activation_at
#endif
#include "include/units.glsl"
const bool SHORT = false;
#include "include/float16.glsl"
#include "include/exponentials.glsl"
#include "include/sigmoids.glsl"
#include "include/short_functions.glsl"

float parameter(uint i) {
    return param_float(ATTRIBUTES_AT + i);
}

#include "include/chain_operators.glsl"
#include "include/activation_by_code.glsl"
