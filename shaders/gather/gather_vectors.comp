//@ op DML_OPERATOR_GATHER DML_OPERATOR_GATHER_ELEMENTS DML_OPERATOR_GATHER_ND DML_OPERATOR_GATHER_ND1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation writes one vector of the output. Each of its elements, of at most 4 bytes, has an index. The
// indices are contiguous and begin with a vector.
#define PARAMS_BINDING 3
layout(constant_id = 1) const uint TYPE = 4u;
layout(constant_id = 2) const uint INDEX_TYPE = 4u;
layout(push_constant) uniform Push {
    uint count;   // vectors
    uint size;    // of the axis
    uint stride;  // along it
    uint step;    // in the input, from one element of the vector to the next
    uint x_offset;
    uint indices_offset;
    uint y_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/indices.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(indices, 1, INDEX_TYPE)
OUTPUT_TENSOR(y, 2, TYPE)
WALK(walk, 3)

const uint EACH = 16u / BYTES_OF(TYPE);
const uint INDICES = 16u / BYTES_OF(INDEX_TYPE);  // in a vector

void main() {
    uint i = invocation_index();
    if (i >= count) return;
    uint[3] at = walk(0u, i);
    uint index = (indices_offset + at[1]) / INDICES;
    uvec4 given[EACH / INDICES];
    [[unroll]] for (uint v = 0u; v < EACH / INDICES; ++v) given[v] = indices_vectors[index + v];
    uint x[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        uvec4 v = given[e / INDICES];
        uint k = e % INDICES;
        uvec2 bits = INDICES == 4u ? uvec2(v[k], 0u) : k == 0u ? v.xy : v.zw;
        x[e] = x_bits(x_offset + at[2] + e * step + index_along(bits, size).at * stride).x;
    }
    uvec4 vector;
    const uint per_word = EACH / 4u;
    [[unroll]] for (uint w = 0u; w < 4u; ++w) {
        vector[w] = x[per_word * w];
        [[unroll]] for (uint e = 1u; e < per_word; ++e)
            vector[w] |= x[per_word * w + e] << 8u * BYTES_OF(TYPE) * e;
    }
    y_vectors[(y_offset + at[0]) / EACH] = vector;
}
