// The elements of a row share a mean. A column is EACH of them, a vector of 16 bytes in all tensors if EACH is
// not 1.
// A workgroup takes one part of the columns of a row. The sums of a row's parts are contiguous. Each workgroup
// of the next step adds them up, in the same order. The includer has push fields rows, columns, parts and span
// (columns of a part).
#include "include/reduce.glsl"
layout(constant_id = 37) const uint EACH = 1u;
#include "include/each.glsl"

const uint TOGETHER = EACH == 8u ? 2u : 4u;  // columns that an invocation loads at once

// What was read last by the step before comes first, because a cache may still hold it.
#if defined(STEP_outputs)
const bool BACKWARDS = true;
#else
const bool BACKWARDS = false;
#endif

// This invocation takes columns first, first + step, ... of the workgroup's part.
struct Part {
    uint row;
    uint part;
    uint first;
    uint end;
};

bool find_part(out Part p) {
    uint group = group_index(), count = rows * parts;
    if (group >= count) return false;
    if (BACKWARDS) group = count - 1u - group;
    p.row = group / parts;
    p.part = group % parts;
    p.first = p.part * span + gl_LocalInvocationIndex;
    p.end = min(columns, p.part * span + span);
    return true;
}

const uint AT_ONCE = TOGETHER * gl_WorkGroupSize.x;

uint turns_of(Part p) {
    return p.first < p.end ? (p.end - p.first - 1u) / AT_ONCE + 1u : 0u;
}

uint base_of(Part p, uint turns, uint turn) {
    return p.first + (BACKWARDS ? turns - 1u - turn : turn) * AT_ONCE;
}

// Iterates over columns, TOGETHER at a time. Only COLUMN(n) below p.end are valid.
#define EACH_COLUMN(p) \
    for (uint turns = turns_of(p), turn = 0u, base = base_of(p, turns, turn); turn < turns; \
         ++turn, base = base_of(p, turns, turn))
#define COLUMN(n) (base + (n) * gl_WorkGroupSize.x)
