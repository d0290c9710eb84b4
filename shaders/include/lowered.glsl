// 8-bit elements as signed numbers: unsigned ones are lowered by 128, and so are their zero points.
// Zero points come in at the end, through the sums of the lines:
//   sum (x - p)(y - q) = sum xy - q sum x - p sum y + depth p q
// The host uses these shaders only where the sums on the right fit 32 bits.
#define ROW_SUMS (HAS_B_ZERO || !B_SIGNED)
#define COLUMN_SUMS (HAS_A_ZERO || !A_SIGNED)
#define HAS_CORRECTION (ROW_SUMS || COLUMN_SUMS)

uint lowered(bool of_a, uint word) {
    return (of_a ? A_SIGNED : B_SIGNED) ? word : word ^ 0x80808080u;
}

// A line beyond the edge has the last one's: its products go nowhere.
int lowered_zero_point(bool of_a, uint line) {
    line = min(line, (of_a ? rows : columns) - 1u);
    uint zero = 0u;
    if (of_a && HAS_A_ZERO) {
        uint at = a_zero_offset + line * a_zero_stride;
        zero = a_zero[at / 4u] >> (at % 4u * 8u);
    } else if (!of_a && HAS_B_ZERO) {
        uint at = b_zero_offset + line * b_zero_stride;
        zero = b_zero[at / 4u] >> (at % 4u * 8u);
    }
    return signed_byte(lowered(of_a, zero));
}
