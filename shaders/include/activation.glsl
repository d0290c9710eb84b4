// float activate(float x), with its attributes in the params buffer. The includer includes
// include/params.glsl and has a push field activation_at, where the attributes begin.
#include "include/units.glsl"
const bool SHORT = false;
#include "include/float16.glsl"
#include "include/exponentials.glsl"
#include "include/sigmoids.glsl"
#include "include/short_functions.glsl"

float parameter(uint i) {
    return param_float(activation_at + i);
}

#include "include/activation_parts.glsl"
#include "include/activation_by_code.glsl"
