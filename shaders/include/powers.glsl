// Powers: exp(y ln x). What y enlarges of the logarithm's error has to be small, so it is a pair.

// ln x for a normal x > 0: ln(1 + f) = s + s^3 / 12 + ..., s = f / (1 + f / 2), from 0.7071 to 1.4142
PAIR log_pair(float x) {
    int field = floatBitsToInt(x) - 0x3F3504F3 & 0xFF800000;
    float k = float(field) * 1.1920928955078125e-7;
    float mantissa = intBitsToFloat(floatBitsToInt(x) - field);
    precise float f = mantissa - 1.0;
    PAIR divisor = pair_of_ordered_sum(1.0, 0.5 * f);
    float inverse = 1.0 / divisor.x;
    precise float s = f * inverse;
    float s_low = (rest_of(f, s, divisor.x) - s * divisor.y) * inverse;
    PAIR square = pair_of_product(s, s);
    square.y += 2.0 * s * s_low;
    float tail = 4.57412330e-4 * square.x + 2.23024166e-3;
    tail = tail * square.x + 1.25000477e-2;
    // Pairs from here on overlap: what is small beside the first number needs no more digits.
    PAIR series = pair_of_product(square.x, 8.3333335816860199e-2);
    series.y += square.y * 8.33333358e-2 - square.x * 2.48352687e-9;
    series.y += tail * square.x * square.x;
    PAIR cube = pair_of_product(series.x, s);
    cube.y += series.y * s + series.x * s_low;
    PAIR sum = pair_of_ordered_sum(s, cube.x);
    sum.y += cube.y + s_low;
    // The first part of ln 2 times k is exact.
    PAIR result = pair_of_ordered_sum(k * 0.693145751953125, sum.x);
    result.y += sum.y + k * 1.42860677e-6;
    return result;
}

// Zeros, infinities and NaN are as C has them.
float pow_of(float x, float y) {
    float base = magnitude(x);
    float result;
    if (SHORT) {
        result = exp2(short_log2(base) * y);
    } else {
        PAIR logarithm = log_pair(base);
        if (base < 1.17549435e-38) logarithm = PAIR(infinity(0x80000000u), 0.0);
        if (!(base < infinity(0u))) logarithm = PAIR(base, 0.0);
        PAIR power = pair_of_product(logarithm.x, y);
        result = exp_of(power.x, power.y + logarithm.y * y);
    }
    if (sign_bit(x) != 0u) {
        bool is_whole = truncated(y) == y;
        if (is_whole && truncated(0.5 * y) != 0.5 * y) result = negated(result);
        if (!is_whole && base > 0.0 && base < infinity(0u)) result = NOT_A_NUMBER;
    }
    bool is_one = x == 1.0 || abs(y) < 1.17549435e-38;
    if (base == 1.0 && is_infinite(y)) is_one = true;
    return is_one ? 1.0 : result;
}
