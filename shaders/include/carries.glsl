// Numbers that scans combine, and what they carry from tile to tile. TYPE and PRODUCT are constants.
#include "include/typed.glsl"
#include "include/integers64.glsl"
#include "include/float_pairs.glsl"

// A NUMBER is the result of one or several elements of a tile. A CARRY is the result of all tiles before.
#if defined(KIND_integer)
#define NUMBER uvec2
#define CARRY uvec2
#define WORDS uvec2
#define NOTHING uvec2(PRODUCT ? 1u : 0u, 0u)
#define NO_CARRY NOTHING
#define WORDS_OF(carry) carry
#define CARRY_FROM(words) words

NUMBER number(uvec2 bits) { return bits; }

NUMBER combine(NUMBER a, NUMBER b) {
    if (BYTES_OF(TYPE) < 8u) return uvec2(PRODUCT ? a.x * b.x : a.x + b.x, 0u);
    return PRODUCT ? multiply64(a, b) : add64(a, b);
}

CARRY carried(CARRY a, CARRY b) { return combine(a, b); }
CARRY carry_of(NUMBER x) { return x; }
uvec2 result(CARRY before, NUMBER x) { return combine(before, x); }
#else
#define WORDS_OF(carry) floatBitsToUint(carry)
#define CARRY_FROM(words) uintBitsToFloat(words)

PAIR carried_pair(PAIR a, PAIR b) {
    if (PRODUCT) return PAIR(a.x * b.x, 0.0);
    PAIR sum = pair_of_sum(a.x, b.x);
    // Beside an infinity, the lower part is NaN and is left out.
    return PAIR(sum.x, magnitude_bits(sum.x) < 0x7F800000u ? sum.y + (a.y + b.y) : 0.0);
}
#endif
#if defined(KIND_float)
#define NUMBER float
#define CARRY PAIR
#define WORDS uvec2
#define NOTHING (PRODUCT ? 1.0 : 0.0)
#define NO_CARRY PAIR(NOTHING, 0.0)

NUMBER number(uvec2 bits) { return number_of(bits, TYPE); }
NUMBER combine(NUMBER a, NUMBER b) { return PRODUCT ? a * b : a + b; }
CARRY carried(CARRY a, CARRY b) { return carried_pair(a, b); }
CARRY carry_of(NUMBER x) { return PAIR(x, 0.0); }

uvec2 result(CARRY before, NUMBER x) {
    return uvec2(bits_of(PRODUCT ? before.x * x : before.x + (before.y + x), TYPE), 0u);
}
#endif
#if defined(KIND_halves)
#define NUMBER vec2
#define CARRY vec4
#define WORDS uvec4
#define NOTHING vec2(PRODUCT ? 1.0 : 0.0)
#define NO_CARRY carry_of(NOTHING)

NUMBER combine(NUMBER a, NUMBER b) { return PRODUCT ? a * b : a + b; }
CARRY carried(CARRY a, CARRY b) { return vec4(carried_pair(a.xy, b.xy), carried_pair(a.zw, b.zw)); }
CARRY carry_of(NUMBER x) { return vec4(x.x, 0.0, x.y, 0.0); }

uint result(CARRY before, NUMBER x) {
    vec2 sum = PRODUCT ? before.xz * x : before.xz + (before.yw + x);
    return floats_to_halves(sum.x, sum.y);
}
#endif
