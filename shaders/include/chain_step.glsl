// A step of a chain of elementwise operators. The includer includes include/chain_operators.glsl, and
// defines ``known`` (three operands, then the result of each step), value_of(i), a number,
// ``values_at``, the step's first value, and CHAIN_TYPE, the type in which results are rounded.
// operators/chain.py writes a step as code, left << 8, right << 12, first value << 16.

// The element of a tensor, the result of a step, or a number.
#define SOURCE(step, shift) \
    ((step >> shift & 15u) == 15u ? value_of(step >> 16u & 15u) : known[min(step >> shift & 15u, 10u)])

// Where units are exact, storing the last result rounds it.
#define ROUNDS(next) (!HAS_EXACT_UNITS || (next & 255u) != 0u)

// Step ``k``, and the one after it (0: none).
#define STEP(k, step, next) \
    if ((step & 255u) != 0u) { \
        float x = SOURCE(step, 8u), y = SOURCE(step, 12u); \
        values_at = step >> 16u & 15u; \
        APPLY((step & 255u), x, y, result) \
        if (BYTES_OF(CHAIN_TYPE) == 2u && ROUNDS(next)) result = rounded_to_half(result); \
        known[3u + k] = result; \
    }
