//@ op -
#version 450
#extension GL_GOOGLE_include_directive : require
#include "include/grid.glsl"

// Writes the number of a submit where the host reads it. It proves that the device came this far.
layout(binding = 0) writeonly buffer Ticket { uint ticket[]; };
layout(push_constant) uniform Push { uint number; };

void main() {
    if (invocation_index() == 0u) ticket[0] = number;
}
