// Multiplier and shift (lowering/walk.py makes them) replace a division. They are exact for all 32-bit numbers
// and divisors of at least 2.
#ifndef INCLUDED_QUOTIENT
#define INCLUDED_QUOTIENT
uint walk_quotient(uint n, uint multiplier, uint shift) {
    uint high, low;
    umulExtended(n, multiplier, high, low);
    return (high + ((n - high) >> 1u)) >> shift;
}
#endif
