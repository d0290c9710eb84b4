// bool arrives_last(uint at, uint count): whether this workgroup is the last one of ``count`` that share a
// result. A word of memory, which is zero before and after, counts them. What all of them have written to
// coherent buffers is visible to the last one, and no workgroup waits for another. Who adds up in a fixed
// order has the same bits whichever is last. All invocations call it. The includer defines ARRIVED_BINDING
// and has a push field arrived_offset.
layout(binding = ARRIVED_BINDING) coherent buffer Arrived { uint arrived[]; };
// Four copies, all of which are read: compilers put what follows behind it, and vectors want 16 bytes.
shared uvec4 s_arrived;

bool arrives_last(uint at, uint count) {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationIndex == 0u) s_arrived = uvec4(atomicAdd(arrived[arrived_offset + at], 1u));
    barrier();
    if (s_arrived != uvec4(count - 1u)) return false;
    memoryBarrierBuffer();
    if (gl_LocalInvocationIndex == 0u) arrived[arrived_offset + at] = 0u;
    return true;
}
