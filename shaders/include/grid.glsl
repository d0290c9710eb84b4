// Where this invocation stands. The host lays a line of workgroups out over x and y, because one
// dimension holds 65,535 at most, and may launch more groups than asked for: check the range.
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
