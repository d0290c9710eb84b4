//@ op DML_OPERATOR_MAX_UNPOOLING
//@ variants STEP: clear mark gather
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Each element of the output takes its last source. Its slot holds the number of that source + 1, or 0.
// So the result does not depend on the order of invocations.
#define PARAMS_BINDING 4
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint INDEX_TYPE = 4u;
layout(push_constant) uniform Push {
    uint count;
    uint limit;  // elements of the output
    uint x_walk;  // where the walk's words begin
    uint x_offset;
    uint indices_offset;
    uint sources_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(indices, 1, INDEX_TYPE)
layout(binding = 2) buffer Sources { uint sources[]; };
OUTPUT_TENSOR(y, 3, TYPE)
WALK(walk, 1)

void main() {
    uint i = invocation_index();
    if (i >= count) return;
#if defined(STEP_clear)
    sources[sources_offset + i] = 0u;
#elif defined(STEP_mark)
    uvec2 index = indices_bits(indices_offset + walk(0u, i)[0]);
    if (index.y == 0u && index.x < limit) atomicMax(sources[sources_offset + index.x], i + 1u);
#else
    uint source = sources[sources_offset + i];
    uvec2 bits = uvec2(0u);
    if (source != 0u) bits = x_bits(x_offset + walk(x_walk, source - 1u)[0]);
    y_store_bits(y_offset + walk(0u, i)[0], bits);
#endif
}
