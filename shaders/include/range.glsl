// Scale and zero point of a range, which includes 0 and ignores NaN. Workgroups add their ranges to
// ``zeroed``: the rank of the highest number, that of the lowest one negated, and the number of workgroups
// that have arrived. The last one to arrive finds the range of all, and leaves zeros. The includer includes
// include/bits.glsl, include/float16.glsl and include/quantization.glsl, and has push fields zeroed_offset,
// SCALE_AT and ZERO_AT, and buffers: coherent zeroed, range_scale and range_zero, all of words.
float number_of_rank(int x) {
    return uintBitsToFloat(x < 0 ? uint(-x) | 0x80000000u : uint(x));
}

void store_range(int low_rank, int high_rank, uint type) {
    float low = number_of_rank(low_rank);
    float high = number_of_rank(high_rank);
    precise float range = high - low;
    float scale = is_zero(range) ? 1.0 : divide(range, 255.0);
    int lowest = IS_SIGNED(type) ? -128 : 0;
    float from = float(lowest) - divide(low, scale);
    if (is_nan(from)) from = 1024.0;  // an infinite range, or a scale of 0: the highest zero point
    uint zero = quantized(whole_number(from), 0, type) & 0xFFu;
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
