//@ op -
//@ variants ROWS: r1(rows=1) r4(rows=4) r8(rows=8)
//@ unchecked *
#version 450
#define MAY_BE_BFLOAT16
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_arithmetic : require
// As attention_lines.comp, for one query of each head, which is turned by its position where it is read. The
// workgroup of the part of the keys that ends with the new one turns that, too, appends it and its value to the
// caches, and takes them from shared memory. The last workgroup of a key head combines the parts.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool INTERLEAVED = false;  // a pair are neighbours, else PAIRS apart
layout(constant_id = 3) const uint IDS = 0u;  // words of a position; 0 where positions follow the past
layout(constant_id = 4) const bool SINK = false;
layout(constant_id = 5) const uint HEAD_VECTORS = 16u;  // vectors of 16 bytes in a head
layout(constant_id = 6) const uint VALUE_VECTORS = 16u;
layout(constant_id = 7) const uint LANES = 8u;  // a power of two, up to 32
layout(constant_id = 8) const uint AT_ONCE = 2u;  // a power of two
layout(constant_id = 9) const uint PAIRS = 32u;  // of a head's first elements, which are turned
layout(constant_id = 10) const uint FAN_IN = 16u;  // records that are combined at a time, if there are many
const bool RELATIVE = false, CAUSAL = true;
const uint MASK = 0u;
#define ROTATES
#define OUTPUT_TYPE TYPE
#define MORE_PUSH \
    uint records_offset; uint arrived_offset; uint fresh_k_offset; uint fresh_v_offset; uint cos_offset; \
    uint sin_offset; uint ids_offset; uint sink_offset;
#include "include/attention_lines.glsl"
