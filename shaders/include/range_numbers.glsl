// The quantization of a range, which includes 0: its scale and zero point. The includer includes
// include/bits.glsl, include/float16.glsl and include/quantization.glsl.
float number_of_rank(int x) {
    return uintBitsToFloat(x < 0 ? uint(-x) | 0x80000000u : uint(x));
}

void quantization_of(int low_rank, int high_rank, uint type, out float scale, out int zero) {
    float low = number_of_rank(low_rank);
    float high = number_of_rank(high_rank);
    precise float range = high - low;
    scale = is_zero(range) ? 1.0 : divide(range, 255.0);
    int lowest = IS_SIGNED(type) ? -128 : 0;
    float from = float(lowest) - divide(low, scale);
    if (is_nan(from)) from = 1024.0;  // an infinite range, or a scale of 0: the highest zero point
    zero = int(quantized(whole_number(from), 0, type));
}
