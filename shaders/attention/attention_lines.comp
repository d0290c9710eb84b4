//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
//@ variants ROWS: r1(rows=1) r4(rows=4) r8(rows=8)
//@ unchecked *
#version 450
#define MAY_BE_BFLOAT16
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_arithmetic : require
// Attention of few queries, bound by reading keys and values once. Rows are the queries of all query heads
// that share a key head. A workgroup takes all rows and one part of the keys. LANES neighbours of a
// subgroup are a line. Lines take turns at AT_ONCE keys: each invocation multiplies its vectors of the
// keys by those of the rows. The line adds up so that each invocation has some of the scores, whose powers
// it computes for all. Each invocation adds its columns of the values. While keys are multiplied, values
// load, and the other way round. Subgroups make the same turns and never part, and wait for others only at
// the end. attention_combine combines the parts.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool RELATIVE = false;
layout(constant_id = 3) const uint MASK = 0u;
layout(constant_id = 4) const bool CAUSAL = false;
layout(constant_id = 5) const uint HEAD_VECTORS = 16u;  // vectors of 16 bytes in a head
layout(constant_id = 6) const uint VALUE_VECTORS = 16u;
layout(constant_id = 7) const uint LANES = 8u;  // a power of two, up to 32
layout(constant_id = 8) const uint AT_ONCE = 2u;  // a power of two
#define OUTPUT_TYPE 36u
#include "include/attention_lines.glsl"
