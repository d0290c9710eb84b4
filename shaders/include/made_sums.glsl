// Sums along K (of A's rows or B's columns: lines) that the first workgroups of the dispatch compute
// while the others multiply. A tile needs them only at its end, when they are usually ready. Vulkan
// does not guarantee this, and waiting could take forever: if they are not ready, the tile computes
// them itself.
#define MAKES_ROWS (ROW_SUMS && !A_SUMMED)
#define MAKES_COLUMNS (COLUMN_SUMS && !B_SUMMED)
const uint LINES_EACH = TILE_ROWS;  // lines that one workgroup sums
const uint TOGETHER = 8u;      // vectors of two lines that each lane reads at a time
// A word counts the workgroups that have arrived: those that sum in the lower bits, others from this
// bit on.
layout(constant_id = 15) const uint TILES_BIT = 12u;  // a constant that the host reads
shared uint s_come[4];  // one is used; the others align matrices to 16 bytes

bool repeats(bool of_a) { return (of_a ? a_strides[0] : b_strides[0]) == 0u; }

uint lines_of(bool of_a) { return (of_a ? rows : columns) * (repeats(of_a) ? 1u : batches); }

uint groups_of(bool of_a) {
    return (of_a ? MAKES_ROWS : MAKES_COLUMNS) ? (lines_of(of_a) - 1u) / LINES_EACH + 1u : 0u;
}

uint summing_groups() { return groups_of(true) + groups_of(false); }

// The position of the sums of A or B. Those of columns follow those of rows.
uint made_offset(bool of_a) {
    if (of_a) return row_sums_offset;
    return MAKES_ROWS ? row_sums_offset + lines_of(true) : column_sums_offset;
}

uvec4 line_vector(bool of_a, uint at) {
    return of_a ? as_signed(A_SIGNED || A_REPACKED, a_vectors[at])
                : as_signed(B_SIGNED || B_REPACKED, b_vectors[at]);
}

// Repacked lines are padded with zeros.
uint line_vectors() { return (K - 1u) / 16u + 1u; }

uint line_begin(bool of_a, uint batch, uint line) {
    return (of_a ? a_offset + batch * a_strides[0] + line * a_strides[1]
                 : b_offset + batch * b_strides[0] + line * b_strides[2]) / 16u;
}

// Counts this workgroup and returns the counts before. The last workgroup resets the memory to zero.
uint come(uint bit) {
    uint tiles = batches * ((rows - 1u) / TILE_ROWS + 1u) * ((columns - 1u) / TILE_COLUMNS + 1u);
    uint before = atomicAdd(zeroed[zeroed_offset], 1u << bit);
    if (before + (1u << bit) == summing_groups() + (tiles << TILES_BIT))
        zeroed[zeroed_offset] = 0u;
    return before;
}

void make_sums(bool of_a, uint group) {
    uint all_lines = lines_of(of_a), lines = of_a ? rows : columns, vectors = line_vectors();
    for (uint i = gl_LocalInvocationIndex; i < LINES_EACH; i += INVOCATIONS) s_sum[i] = 0;
    barrier();
    for (uint l = gl_SubgroupID * 2u; l < LINES_EACH; l += SUBGROUPS * 2u) {
        uint from[2];
        int sum[2];
        [[unroll]] for (uint n = 0u; n < 2u; ++n) {
            uint line = min(group * LINES_EACH + l + n, all_lines - 1u);
            uint batch = batches == 1u ? 0u : line / lines;
            from[n] = line_begin(of_a, batch, line - batch * lines);
            sum[n] = 0;
        }
        for (uint v = gl_SubgroupInvocationID; v < vectors; v += 32u * TOGETHER) {
            uvec4 x[2][TOGETHER];
            [[unroll]] for (uint n = 0u; n < 2u; ++n)
                [[unroll]] for (uint i = 0u; i < TOGETHER; ++i)
                    x[n][i] = line_vector(of_a, from[n] + min(v + i * 32u, vectors - 1u));
            [[unroll]] for (uint n = 0u; n < 2u; ++n)
                [[unroll]] for (uint i = 0u; i < TOGETHER; ++i)
                    sum[n] += dot_product(x[n][i], uvec4(v + i * 32u < vectors ? ONES : 0u));
        }
        [[unroll]] for (uint n = 0u; n < 2u; ++n) atomicAdd(s_sum[l + n], sum[n]);
    }
    barrier();
    for (uint i = gl_LocalInvocationIndex; i < LINES_EACH; i += INVOCATIONS) {
        uint line = group * LINES_EACH + i;
        if (line < all_lines) made_sums[made_offset(of_a) + line] = s_sum[i];
    }
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationIndex == 0u) {
        memoryBarrierBuffer();  // reads of others' sums come after that of this word
        come(0u);
    }
}

int made_sum(bool of_a, uint batch, uint line, bool are_made) {
    if (are_made)
        return made_sums[made_offset(of_a) + line +
                         (repeats(of_a) ? 0u : batch * (of_a ? rows : columns))];
    uint from = line_begin(of_a, batch, line);
    int sum = 0;
    for (uint v = 0u; v < line_vectors(); ++v)
        sum += dot_product(line_vector(of_a, from + v), uvec4(ONES));
    return sum;
}

// Adds the sums of this tile's lines.
void add_made_sums(uint batch, uint row, uint column) {
    if (gl_LocalInvocationIndex == 0u) {
        s_come[0] = come(TILES_BIT);
        memoryBarrierBuffer();
    }
    barrier();
    memoryBarrierBuffer();
    bool are_made = s_come[0] % (1u << TILES_BIT) == summing_groups();
    uint i = gl_LocalInvocationIndex;
    if (MAKES_ROWS) s_sum[i] += made_sum(true, batch, min(row + i, rows - 1u), are_made);
    if (MAKES_COLUMNS)
        s_sum[TILE_ROWS + i] += made_sum(false, batch, min(column + i, columns - 1u), are_made);
}
