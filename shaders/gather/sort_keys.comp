//@ op DML_OPERATOR_SCATTER_REDUCE DML_OPERATOR_SCATTER_ND_REDUCE
//@ variants STEP: count offsets move
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A stable sort of keys, with their numbers, by one digit. Sorts by all digits from the lowest on order the
// keys. STEP count: a workgroup counts the digits of a block of keys. STEP offsets: a workgroup makes the
// places of each block's digits of the counts. STEP move: keys go to their places. Nothing is atomic, so the
// order is the same each time. A block that is ALONE counts by itself.
const uint DIGITS = 16u;
layout(constant_id = 1) const uint EACH = 16u;      // neighbouring keys of an invocation
layout(constant_id = 2) const bool FIRST = false;   // a key's number is its place
layout(constant_id = 3) const bool ALONE = false;
layout(push_constant) uniform Push {
    uint count;  // of keys
    uint blocks;
    uint shift;  // of the digit
    uint keys_offset;
    uint numbers_offset;
    uint counts_offset;
    uint sorted_keys_offset;
    uint sorted_numbers_offset;
};
#include "include/grid.glsl"
#include "include/scan.glsl"

layout(binding = 0) readonly buffer Keys { uint keys[]; };
layout(binding = 1) readonly buffer Numbers { uint numbers[]; };
layout(binding = 2) buffer Counts { uint counts[]; };  // by digit, then by block
layout(binding = 3) writeonly buffer SortedKeys { uint sorted_keys[]; };
layout(binding = 4) writeonly buffer SortedNumbers { uint sorted_numbers[]; };

WORKGROUP_SCAN(scan)

#if defined(STEP_offsets)
void main() {
    uint size = DIGITS * blocks, each = (size + gl_WorkGroupSize.x - 1u) / gl_WorkGroupSize.x;
    uint begin = min(counts_offset + gl_LocalInvocationIndex * each, counts_offset + size);
    uint end = min(begin + each, counts_offset + size), own = 0u, total;
    for (uint i = begin; i < end; ++i) own += counts[i];
    uint before = scan(own, total);
    for (uint i = begin; i < end; ++i) {
        uint number = counts[i];
        counts[i] = before;
        before += number;
    }
}
#else
const uint CELLS = DIGITS * gl_WorkGroupSize.x;
shared uint s_cells[CELLS];  // by digit, then by invocation
shared uint s_begins[DIGITS];

uint digit_of(uint key) { return key >> shift & (DIGITS - 1u); }

void main() {
    uint lane = gl_LocalInvocationIndex, lanes = gl_WorkGroupSize.x, block = group_index();
    if (block >= blocks) return;
    uint begin = min((block * lanes + lane) * EACH, count), end = min(begin + EACH, count);
    [[unroll]] for (uint d = 0u; d < DIGITS; ++d) s_cells[d * lanes + lane] = 0u;
    for (uint i = begin; i < end; ++i) ++s_cells[digit_of(keys[keys_offset + i]) * lanes + lane];
    barrier();
    // Each invocation sums DIGITS cells, which are all of one digit.
    uint own = 0u, total;
    [[unroll]] for (uint c = 0u; c < DIGITS; ++c) own += s_cells[lane * DIGITS + c];
    uint before = scan(own, total);
    [[unroll]] for (uint c = 0u; c < DIGITS; ++c) {
        uint cell = lane * DIGITS + c, number = s_cells[cell];
        s_cells[cell] = before;
        before += number;
    }
    barrier();
#if defined(STEP_count)
    if (lane < DIGITS) {
        uint next = lane + 1u < DIGITS ? s_cells[(lane + 1u) * lanes] : total;
        counts[counts_offset + lane * blocks + block] = next - s_cells[lane * lanes];
    }
#else
    if (lane < DIGITS)
        s_begins[lane] = ALONE ? 0u : counts[counts_offset + lane * blocks + block] - s_cells[lane * lanes];
    barrier();
    for (uint i = begin; i < end; ++i) {
        uint key = keys[keys_offset + i], digit = digit_of(key);
        uint to = s_begins[digit] + s_cells[digit * lanes + lane]++;
        sorted_keys[sorted_keys_offset + to] = key;
        sorted_numbers[sorted_numbers_offset + to] = FIRST ? i : numbers[numbers_offset + i];
    }
#endif
}
#endif
