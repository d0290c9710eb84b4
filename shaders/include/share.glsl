// The invocations that have a row together, a power of two: the constant MOST_SHARE for all long rows. The word
// share_bits says it for others, so that their lengths compile nothing.
#define SHARE (MOST_SHARE > 0u ? MOST_SHARE : 1u << share_bits)
#define SHARE_BITS (MOST_SHARE > 0u ? findLSB(MOST_SHARE) : share_bits)
