// The elements of a row share a mean. A column is EACH of them, a vector of 16 bytes in all tensors if EACH is
// not 1.
// A workgroup takes one part of the columns of a row. The sums of a row's parts are contiguous. Each workgroup
// of the next step adds them up, in the same order. The includer has push fields rows, columns, parts and span
// (columns of a part).
#include "include/reduce.glsl"
layout(constant_id = 37) const uint EACH = 1u;
#include "include/each.glsl"

const uint TOGETHER = EACH == 1u ? 4u : 2u;  // columns that an invocation loads at once

// This invocation takes columns first, first + step, ... of the workgroup's part.
struct Part {
    uint row;
    uint part;
    uint first;
    uint end;
};

bool find_part(out Part p) {
    p.row = group_index() / parts;
    p.part = group_index() % parts;
    p.first = p.part * span + gl_LocalInvocationIndex;
    p.end = min(columns, p.part * span + span);
    return p.row < rows;
}

// Iterates over columns, TOGETHER at a time. Only COLUMN(n) below p.end are valid.
#define EACH_COLUMN(p) \
    for (uint base = p.first; base < p.end; base += TOGETHER * gl_WorkGroupSize.x)
#define COLUMN(n) (base + (n) * gl_WorkGroupSize.x)
