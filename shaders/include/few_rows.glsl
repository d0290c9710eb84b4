// Products with few rows of A are bound by reading B, in vectors of 16 or words of 4 elements, many at a
// time. If the output has too few columns to keep the device busy, workgroups split K of a tile and add
// up their sums in memory; the last one to arrive finishes them. The includer also defines INVOCATIONS;
// ROW_TILES if there may be more rows than in a tile; SPLIT_VECTORS if workgroups split K (the vectors of
// 16 in a step); COUNTS_PARTS if sums may count their parts, by GL_EXT_shader_atomic_int64.
#define SPECIALIZED
#define SPLITS_K
#include "include/matrix_multiply_integer_to_float.glsl"
#include "include/bytes.glsl"
#include "include/lowered.glsl"
#include "include/dot_product.glsl"

layout(binding = 8) readonly buffer AVectors { uvec4 a_vectors[]; };
layout(binding = 9) readonly buffer BVectors { uvec4 b_vectors[]; };
layout(binding = 10) coherent buffer Zeroed { int zeroed[]; };
#ifdef COUNTS_PARTS
layout(binding = 10) coherent buffer ZeroedPairs { uint64_t zeroed_pairs[]; };
#endif

// Repacked elements are signed.
layout(constant_id = 9) const bool A_REPACKED = false;
layout(constant_id = 10) const bool B_REPACKED = false;
const uint A_MASK = A_SIGNED ? 0u : A_REPACKED ? 0u : 0x80808080u;
const uint B_MASK = B_SIGNED ? 0u : B_REPACKED ? 0u : 0x80808080u;

// The first vector of a row of A. Rows past the last one repeat it.
uint row_begin(uint batch, uint row) {
    return (a_offset + batch * a_strides[0] + min(row, rows - 1u) * a_strides[1]) / 16u;
}

// The same for a column of a K-contiguous B.
uint column_begin(uint batch, uint column) {
    return (b_offset + batch * b_strides[0] + min(column, columns - 1u) * b_strides[2]) / 16u;
}

// The first element of ``count`` columns of B. Columns past the last ones repeat them. All numbers are
// multiples of ``count``.
uint columns_begin(uint batch, uint column, uint count) {
    return b_offset + batch * b_strides[0] + min(column, columns - count);
}

// The tile and the part of K of this workgroup, in vectors of 16.
struct Part {
    uint batch;
    uint row;
    uint column;
    uint begin;
    uint end;
    uint sums;  // where parts of this tile are added up
};

const uint SUMS = TILE_ROWS * TILE_COLUMNS;
// An invocation finishes pairs of neighbouring sums.
const uint PAIRS = (SUMS / 2u - 1u) / INVOCATIONS + 1u;
#ifdef SPLIT_VECTORS
layout(constant_id = 16) const uint PART_VECTORS = SPLIT_VECTORS;  // a constant that the host reads
#endif

// False beyond the last tile. Divisions are slow and avoided if possible. The part of K is computed last:
// before the tile's place, it made 16 rows a tenth slower on an H200.
bool find_part(out Part p) {
    uint across = (columns - 1u) / TILE_COLUMNS + 1u;
    uint tile = group_index(), part = 0u;
#ifdef ROW_TILES
    uint down = (rows - 1u) / TILE_ROWS + 1u;
#else
    const uint down = 1u;
#endif
#ifdef SPLIT_VECTORS
    if (parts > 1u) {
        uint tiles = batches * across * down;
        part = tile / tiles;
        tile -= part * tiles;
    }
    p.sums = zeroed_offset + tile * (SUMS + 2u);
#endif
    p.row = 0u;
#ifdef ROW_TILES
    if (down > 1u) {  // tiles that read the same columns are neighbours
        p.row = tile % down * TILE_ROWS;
        tile /= down;
    }
#endif
    p.batch = batches > 1u ? tile / across : 0u;
    p.column = (tile - p.batch * across) * TILE_COLUMNS;
    p.begin = 0u;
    p.end = K / 16u;
#ifdef SPLIT_VECTORS
    if (parts > 1u) {
        uint each = ((p.end - 1u) / PART_VECTORS / parts + 1u) * PART_VECTORS;
        p.begin = part * each;
        p.end = min(p.end, p.begin + each);
    }
#endif
    return p.batch < batches && part < parts;
}

uint first_of_pair(uint pair) {
    return (gl_LocalInvocationIndex + pair * INVOCATIONS) * 2u;
}

uint row_of_pair(Part p, uint pair) { return p.row + first_of_pair(pair) / TILE_COLUMNS; }

uint column_of_pair(uint pair) { return first_of_pair(pair) % TILE_COLUMNS; }

#ifdef SPLIT_VECTORS
// The place where a sum of a pair is added up. Neighbouring invocations use neighbouring places.
uint place_of_sum(Part p, uint pair, uint n) {
    const uint step = min(INVOCATIONS, SUMS / 2u);
    return p.sums + (pair * 2u + n) * step + gl_LocalInvocationIndex;
}

#ifdef COUNTS_PARTS
// Whether a 64-bit word holds two sums of count_shift bits each, and above them the number of parts that
// have been added. The part that finds all others added has the whole sums and need not wait.
bool is_counted() { return parts > 1u && count_shift > 0u; }

uint place_of_pair(Part p, uint pair) {
    return p.sums / 2u + pair * min(INVOCATIONS, SUMS / 2u) + gl_LocalInvocationIndex;
}

uint64_t as_word(int sum) { return uint64_t(int64_t(sum)); }

// Removes the lower sum from a word and returns it.
int take_sum(inout uint64_t word) {
    uint above = 64u - count_shift;
    int sum = int(int64_t(word << above) >> above);
    word = (word - as_word(sum)) >> count_shift;
    return sum;
}

// Adds sums. ``whole``: the sums of all parts are complete; their words are zero again.
void add_counted(Part p, inout ivec2 sums[PAIRS], out bool whole[PAIRS]) {
    uint64_t words[PAIRS];
    [[unroll]] for (uint i = 0u; i < PAIRS; ++i) {
        words[i] = as_word(sums[i].x) + (as_word(sums[i].y) << count_shift);
        whole[i] = row_of_pair(p, i) < rows && first_of_pair(i) < SUMS;
        if (whole[i])
            words[i] += atomicAdd(zeroed_pairs[place_of_pair(p, i)],
                                  words[i] + (uint64_t(1u) << 2u * count_shift));
    }
    [[unroll]] for (uint i = 0u; i < PAIRS; ++i) {
        sums[i].x = take_sum(words[i]);
        sums[i].y = take_sum(words[i]);
        whole[i] = whole[i] && uint(words[i]) == parts - 1u;
        if (whole[i]) zeroed_pairs[place_of_pair(p, i)] = uint64_t(0u);
    }
}
#endif

shared bool s_is_last[4];  // one is used; the others align what follows to 16 bytes

// Adds this part's sums to those of other parts. Returns whether ``sums`` is complete now.
bool has_all_sums(Part p, inout ivec2 sums[PAIRS]) {
    if (parts == 1u) return true;
    [[unroll]] for (uint i = 0u; i < PAIRS; ++i)
        if (row_of_pair(p, i) < rows && first_of_pair(i) < SUMS) {
            atomicAdd(zeroed[place_of_sum(p, i, 0u)], sums[i].x);
            atomicAdd(zeroed[place_of_sum(p, i, 1u)], sums[i].y);
        }
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationIndex == 0u)
        s_is_last[0] = atomicAdd(zeroed[p.sums + SUMS], 1) == int(parts) - 1;
    barrier();
    if (!s_is_last[0]) return false;
    memoryBarrierBuffer();
    [[unroll]] for (uint i = 0u; i < PAIRS; ++i)
        if (row_of_pair(p, i) < rows && first_of_pair(i) < SUMS)
            sums[i] = ivec2(atomicExchange(zeroed[place_of_sum(p, i, 0u)], 0),
                            atomicExchange(zeroed[place_of_sum(p, i, 1u)], 0));
    if (gl_LocalInvocationIndex == 0u) zeroed[p.sums + SUMS] = 0;
    return true;
}
#endif

// The operands that finish a pair of sums, read at the beginning.
struct FinishPair {
    Finish here;
    Finish next;
};

void find_finish(Part p, out FinishPair finish[PAIRS]) {
    [[unroll]] for (uint i = 0u; i < PAIRS; ++i) {
        uint column = p.column + column_of_pair(i);
        finish[i].here = finish_at(p.batch, row_of_pair(p, i), column);
        finish[i].next = finish_at(p.batch, row_of_pair(p, i), column + 1u);
    }
}

void finish_sums(Part p, ivec2 sums[PAIRS], FinishPair finish[PAIRS]) {
    bool whole[PAIRS];
    [[unroll]] for (uint i = 0u; i < PAIRS; ++i) whole[i] = first_of_pair(i) < SUMS;
#ifdef COUNTS_PARTS
    if (is_counted())
        add_counted(p, sums, whole);
    else if (!has_all_sums(p, sums))
        return;
#elif defined(SPLIT_VECTORS)
    if (!has_all_sums(p, sums)) return;
#endif
    [[unroll]] for (uint i = 0u; i < PAIRS; ++i)
        if (whole[i])
            finish_pair(p.batch, row_of_pair(p, i), p.column + column_of_pair(i), widen(sums[i].x),
                        widen(sums[i].y), finish[i].here, finish[i].next);
}
