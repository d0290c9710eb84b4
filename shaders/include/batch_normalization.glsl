// A workgroup takes one part of the columns of one row, which is what shares a mean. What the parts of a
// row sum up lies side by side; each workgroup of the next step adds it up, in the same order. The
// includer has push fields rows, columns, parts and span (columns of a part).
#include "include/reduce.glsl"

const uint TOGETHER = 4u;  // elements that an invocation has on their way

// The columns of this workgroup's part that this invocation takes are first, first + step, ...
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

// Over columns, TOGETHER at a time: COLUMN(n), of which those below p.end count.
#define EACH_COLUMN(p) \
    for (uint base = p.first; base < p.end; base += TOGETHER * gl_WorkGroupSize.x)
#define COLUMN(n) (base + (n) * gl_WorkGroupSize.x)

vec2 plus(vec2 a, vec2 b) { return a + b; }
WORKGROUP_REDUCE(total, vec2, plus, subgroupAdd)
