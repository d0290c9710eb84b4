// sin, asin and related functions in float32, to an ulp or two. The rules are those of exponentials.glsl,
// which also has near_root.

// Three words of the binary digits of 2 / pi, from a digit below 160 on. The first 32 digits are zeros.
// The digits are not an array, because CPUs are slow to index one.
uvec3 two_over_pi_from(uint digit) {
    uvec4 x = uvec4(0u, 0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u);
    uvec4 y = uvec4(0xF534DDC0u, 0xDB629599u, 0x3C439041u, 0xFE5163ABu);
    if ((digit & 128u) != 0u) x = y;
    if ((digit & 64u) != 0u) {
        x = uvec4(x.zw, y.xy);
        y.xy = y.zw;
    }
    if ((digit & 32u) != 0u) x = uvec4(x.yzw, y.x);
    uint shift = digit & 31u;
    return x.xyz << shift | x.yzw >> 1u >> 31u - shift;  // in two steps: a shift by 32 is undefined
}

// reduce_angle for large and infinite angles, with integers.
float reduce_large_angle(float size, out uint quadrant) {
    uint significand = (floatBitsToUint(size) & 0x7FFFFFu) | 0x800000u;
    // Earlier digits contribute only multiples of 4 quadrants.
    uvec3 digits = two_over_pi_from((floatBitsToUint(size) >> 23) - 120u);
    uint high, low, middle_high, middle, carry;
    umulExtended(significand, digits.z, high, low);
    umulExtended(significand, digits.y, middle_high, middle);
    middle = uaddCarry(middle, high, carry);
    uint top = significand * digits.x + middle_high + carry;
    quadrant = top + 0x20000000u >> 30;
    float turn = float(int(top << 2 | middle >> 30)) * 2.3283064365386963e-10;
    turn += float(int(middle & 0x3FFFFFFFu)) * 2.168404344971009e-19;
    return turn * 1.57079637;
}

// |x| = quadrant * pi / 2 + result, |result| <= pi / 4. Only the last two bits of the quadrant are valid.
float reduce_angle(float x, out uint quadrant) {
    float size = magnitude(x);
    float shifted = scaled_sum(size, 0.636619747, 12582912.0);  // rounded to a whole number
    precise float k = shifted - 12582912.0;
    quadrant = floatBitsToUint(shifted);
    precise float r;
    if (HAS_EXACT_UNITS) {
        r = fma(k, -1.57079625, size);
        r = fma(k, -7.54979013e-8, r);
        r = fma(k, 1.71512451e-15, r);
    } else {
        // These products are exact: the constant has few digits.
        r = size - k * 1.5703125;
        r = r - k * 4.8351287841796875e-4;
        r = r - k * 3.1385570764541626e-7;
        r = r - k * 6.0708771343342960e-11;
        r = r - k * 6.2233719696699890e-14;
    }
    if (magnitude_bits(size) > 0x46480000u) {  // 12800
        r = reduce_large_angle(size, quadrant);
        if (magnitude_bits(size) >= 0x7F800000u) r = NOT_A_NUMBER;
    }
    return r;
}

// The sine of |x| + turns * pi / 2.
float sine_of_quadrant(float x, uint turns) {
    uint quadrant;
    float r = reduce_angle(x, quadrant);
    float square = r * r;
    float sine = 8.33210628e-3 - 1.95078814e-4 * square;
    sine = sine * square - 0.166666538;
    sine = sine * square * r + r;
    float cosine = 2.44321054e-5 * square - 1.38873083e-3;
    cosine = cosine * square + 4.16666456e-2;
    cosine = (cosine * square - 0.5) * square + 1.0;
    quadrant += turns;
    float result = (quadrant & 1u) != 0u ? cosine : sine;
    return uintBitsToFloat(floatBitsToUint(result) ^ quadrant << 30 & 0x80000000u);
}

float sin_of(float x) {
    return uintBitsToFloat(floatBitsToUint(sine_of_quadrant(x, 0u)) ^ sign_bit(x));
}

float cos_of(float x) {
    return sine_of_quadrant(x, 1u);
}

float tan_of(float x) {
    uint quadrant;
    float r = reduce_angle(x, quadrant);
    float square = r * r;
    float tail = 9.42454301e-3 * square + 3.05543817e-3;
    tail = tail * square + 2.44691577e-2;
    tail = tail * square + 5.34007438e-2;
    tail = tail * square + 0.133389205;
    tail = tail * square + 0.333331525;
    float result = tail * square * r + r;
    if ((quadrant & 1u) != 0u) result = -1.0 / result;
    return uintBitsToFloat(floatBitsToUint(result) ^ sign_bit(x));
}

// asin x = t + result for 0 <= x <= 0.5; else asin x = pi / 2 - 2 (t + result)
float asin_parts(float size, out float t) {
    float square = size < 0.5 ? size * size : 0.5 - 0.5 * size;
    t = size < 0.5 ? size : near_root(square);
    float tail = 4.21583988e-2 * square + 2.41847411e-2;
    tail = tail * square + 4.54691537e-2;
    tail = tail * square + 7.49530941e-2;
    tail = tail * square + 0.166667521;
    return tail * square * t;
}

// pi / 2 - x
float complement(float x) {
    return 1.57079637 - (x + 4.37113901e-8);
}

float asin_of(float x) {
    float size = magnitude(x), t;
    float part = asin_parts(size, t);
    float result = t + part;
    if (size >= 0.5) result = complement(2.0 * result);
    if (size > 1.0) result = NOT_A_NUMBER;
    return with_sign(result, sign_bit(x));
}

float acos_of(float x) {
    float size = magnitude(x), t;
    float part = asin_parts(size, t);
    float result = t + part;
    bool negative = sign_bit(x) != 0u;
    if (size >= 0.5) result = negative ? 3.14159274 - (2.0 * result + 8.74227801e-8) : 2.0 * result;
    else result = complement(negative ? -result : result);
    return size > 1.0 ? NOT_A_NUMBER : result;
}

// The angle of (x, y), both >= 0.
float angle_of(float y, float x) {
    bool steep = magnitude_bits(y) > magnitude_bits(x);
    float t = steep ? x / y : y / x;
    float square = t * t;
    float tail = 2.91972095e-3 * square - 1.63641311e-2;
    tail = tail * square + 4.32058573e-2;
    tail = tail * square - 7.55172372e-2;
    tail = tail * square + 0.106657855;
    tail = tail * square - 0.142110035;
    tail = tail * square + 0.199937671;
    tail = tail * square - 0.333331525;
    float result = tail * square * t + t;
    return steep ? complement(result) : result;
}

float atan_of(float x) {
    return with_sign(angle_of(magnitude(x), 1.0), sign_bit(x));
}

// As C's atan2, signs of zeros and infinities included.
float atan_of(float y, float x) {
    // Scaled away from both ends of the range. An infinity becomes the largest number.
    float larger = uintBitsToFloat(max(magnitude_bits(x), magnitude_bits(y)));
    float factor = larger > 1.0e18 ? 2.3283064365386963e-10 : 4294967296.0;
    float a = magnitude(y) * factor, b = magnitude(x) * factor;
    if (is_infinite(larger)) {
        a = is_infinite(y) ? 1.0 : 0.0;
        b = is_infinite(x) ? 1.0 : 0.0;
    }
    float result = larger == 0.0 ? 0.0 : angle_of(a, b);
    if (sign_bit(x) != 0u) result = 3.14159274 - (result + 8.74227801e-8);
    if (is_nan(larger)) result = NOT_A_NUMBER;
    return with_sign(result, sign_bit(y));
}
