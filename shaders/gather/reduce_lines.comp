//@ op DML_OPERATOR_SCATTER_REDUCE
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// For a driver on the CPU. The output holds the input. An invocation reduces the updates of one line along the
// axis, in order. No other one writes to this line.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint INDEX_TYPE = 4u;
layout(constant_id = 3) const uint FUNCTION = 0u;
layout(push_constant) uniform Push {
    uint lines;
    uint size;  // of the axis
    uint updates;  // of a line
    uint steps[3];  // along the axis: of updates, indices and output
    uint updates_offset;
    uint indices_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/combined.glsl"
#include "include/indices.glsl"

INPUT_TENSOR(updates, 0, TYPE)
INPUT_TENSOR(indices, 1, INDEX_TYPE)
OUTPUT_TENSOR(y, 2, TYPE)
HELD(y, TYPE)
WALK(walk, 3)

void main() {
    uint line = invocation_index();
    if (line >= lines) return;
    uint[3] at = walk(0u, line);
    uint update = updates_offset + at[0], number = indices_offset + at[1], first = y_offset + at[2];
    uint i = 0u;
    do {
        Index index = index_along(indices_bits(number), size);
        if (index.inside) {
            uint to = first + index.at * steps[2];
            y_store_bits(to, bits_of_value(combine(value_of(y_held(to)), value_of(updates_bits(update)))));
        }
        update += steps[0];
        number += steps[1];
    } while (++i < updates);
}
