// Strided tensors, walked with words from the params buffer (lowering/walk.py writes them):
//   rank, then for each dimension from the last to the first:
//   size, multiplier, shift, and the stride of each operand.
// Multiplier and shift replace the division by the size. They are exact for all 32-bit numbers and
// divisors of at least 2. A dimension has size 1 only if it is the only one, without division.
#include "include/params.glsl"
#include "include/quotient.glsl"

#define WALK_STEP(count, rank, at) { \
        /* The first dimension needs no division. */ \
        uint next = d + 1u == rank ? 0u : walk_quotient(index, param((at) + 1u), param((at) + 2u)); \
        uint coordinate = index - next * param((at)); \
        [[unroll]] for (uint o = 0u; o < count; ++o) where[o] += coordinate * param((at) + 3u + o); \
        index = next; \
    }

// WALK(name, count) defines a walk of ``count`` operands:
//   uint name[count](uint at, uint index): where element ``index`` lies in each operand, relative to
//   the operand's first element. ``at`` is where the walk's words begin.
// WALK_OF_RANK(name, count, known) is the same. ``known`` is a constant: the rank, or 0 where the words say
// it. Where it is known, all words have known places, and a driver on the CPU reads each once for all lanes.
#define WALK_OF_RANK(name, count, known) \
    uint[count] name(uint at, uint index) { \
        uint where[count]; \
        [[unroll]] for (uint o = 0u; o < count; ++o) where[o] = 0u; \
        if (known != 0u) { \
            [[unroll]] for (uint d = 0u; d < known; ++d) WALK_STEP(count, known, at + 1u + d * (3u + count)) \
            return where; \
        } \
        uint rank = param(at); \
        at += 1u; \
        for (uint d = 0u; d < rank; ++d) { \
            WALK_STEP(count, rank, at) \
            at += 3u + count; \
        } \
        return where; \
    }

// With WALK_RANKED defined, the host tells the rank of a shader's only walk, whose words come first.
#if defined(WALK_RANKED)
layout(constant_id = 35) const uint WALK_RANK = 0u;
#define WALK(name, count) WALK_OF_RANK(name, count, WALK_RANK)
#else
#define WALK(name, count) WALK_OF_RANK(name, count, 0u)
#endif
