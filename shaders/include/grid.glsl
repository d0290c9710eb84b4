// The number of this workgroup and of this invocation. The host spreads workgroups over x and y, because
// a dimension has at most 65,535. There may be more workgroups than needed, so shaders check the range.
#ifndef INCLUDED_GRID
#define INCLUDED_GRID
layout(local_size_x_id = 0) in;

uint group_index() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}

uint invocation_index() {
    return group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
}
#endif
