// 8-bit elements as signed numbers. Unsigned elements and their zero points are lowered by 128. Zero
// points are applied at the end, with the sums along K of A's rows and B's columns (lines):
//   sum (x - p)(y - q) = sum xy - q sum x - p sum y + K p q
// The host uses these shaders only if the sums on the right fit 32 bits.
#define ROW_SUMS (HAS_B_ZERO || !B_SIGNED)
#define COLUMN_SUMS (HAS_A_ZERO || !A_SIGNED)
#define HAS_CORRECTION (ROW_SUMS || COLUMN_SUMS)

uint lowered(bool of_a, uint word) {
    return (of_a ? A_SIGNED : B_SIGNED) ? word : word ^ 0x80808080u;
}

// A zero point is read in two steps: first the word that holds it, early, then its value. Positions past
// the last line are clamped.
uint zero_place(bool of_a, uint line) {
    return of_a ? a_zero_offset + min(line, rows - 1u) * a_zero_stride
                : b_zero_offset + min(line, columns - 1u) * b_zero_stride;
}

uint zero_word(bool of_a, uint line) {
    uint at = zero_place(of_a, line) / 4u;
    if (of_a) return HAS_A_ZERO ? a_zero[at] : 0u;
    return HAS_B_ZERO ? b_zero[at] : 0u;
}

int zero_point(bool of_a, uint line, uint word) {
    bool exists = of_a ? HAS_A_ZERO : HAS_B_ZERO;
    return signed_byte(lowered(of_a, exists ? word >> (zero_place(of_a, line) % 4u * 8u) : 0u));
}

int lowered_zero_point(bool of_a, uint line) {
    return zero_point(of_a, line, zero_word(of_a, line));
}
