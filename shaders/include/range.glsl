// Scale and zero point of a range, which ignores NaN. Workgroups add their ranges to
// ``zeroed``: the rank of the highest number, that of the lowest one negated, and the number of workgroups
// that have arrived. The last one to arrive finds the range of all, and leaves zeros. The includer includes
// include/bits.glsl, include/float16.glsl and include/quantization.glsl, and has push fields zeroed_offset,
// SCALE_AT and ZERO_AT, and buffers: coherent zeroed, range_scale and range_zero, all of words.
#include "include/range_numbers.glsl"

void store_range(int low_rank, int high_rank, uint type) {
    float scale;
    int zero_point;
    quantization_of(low_rank, high_rank, type, scale, zero_point);
    uint zero = uint(zero_point) & 0xFFu;
    range_scale[SCALE_AT] = floatBitsToUint(scale);
    uint shift = ZERO_AT % 4u * 8u;
    atomicAnd(range_zero[ZERO_AT / 4u], ~(0xFFu << shift));
    atomicOr(range_zero[ZERO_AT / 4u], zero << shift);
}

// One invocation of each of ``groups`` workgroups calls this.
void add_range(uint groups, int low, int high, uint type) {
    if (groups > 1u) {
        atomicMax(zeroed[zeroed_offset], uint(high));
        atomicMax(zeroed[zeroed_offset + 1u], uint(-low));
        memoryBarrierBuffer();
        if (atomicAdd(zeroed[zeroed_offset + 2u], 1u) != groups - 1u) return;
        memoryBarrierBuffer();
        high = int(atomicExchange(zeroed[zeroed_offset], 0u));
        low = -int(atomicExchange(zeroed[zeroed_offset + 1u], 0u));
        zeroed[zeroed_offset + 2u] = 0u;
    }
    store_range(low, high, type);
}
