// Shared code of the GEMM shaders: the interface, the place of a workgroup's tile, and the epilogue.
// A is rows x K, B is K x columns; strides express a transpose. The includer defines TILE_ROWS,
// TILE_COLUMNS and INVOCATIONS; BLOCKED_B if B has scales and zero points, which are bound before params.
#include "include/tailed.glsl"
#ifdef BLOCKED_B
#define PARAMS_BINDING 8
#else
#define PARAMS_BINDING AFTER_TAIL(6)
#endif
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool HAS_C = false;
// Split-K: several workgroups compute a tile. The last one adds up all sums in the order of K, so the
// result does not depend on which one is last.
layout(constant_id = 4) const bool SPLIT = false;
layout(constant_id = 47) const bool ADDED_APART = false;  // another dispatch adds up, and finishes the sums
layout(constant_id = 46) const bool C_ROWS = true;  // whether rows of C differ
// Whether each batch has the B of a group. In the place of C are the groups' numbers, then how many batches have
// rows. From group to group, B's elements (a blocked B's columns) are c_column apart.
layout(constant_id = 45) const bool GROUPED = false;

layout(push_constant) uniform Push {
    uint batches;
    uint rows;
    uint K;
    uint columns;
    uint a_row;
    uint a_k;
    uint b_k;
    uint b_column;
    uint c_row;
    uint c_column;
    uint y_row;
    uint y_column;
    float alpha;
    float beta;
    uint part_k;
    uint parts;
    uint activation_at;
    uint alike;  // what sizes and strides allow, bits of Alike in float_dispatch.py
#ifndef BLOCKED_B
    uint batch_steps[4];  // of A, B, C and the output from batch to batch, with ONE_STEP
#else
    uint scale_block;  // strides of scales, and of zero points, from block to block and between columns
    uint scale_column;
    uint zero_block;
    uint zero_column;
    uint scale_offset;
    uint zero_offset;
#endif
    uint a_offset;
    uint b_offset;
    uint c_offset;
    uint y_offset;
    uint partial_offset;
    uint arrived_offset;
    TAIL_FIELD
    uint params_offset;
};
// Whether four columns of the output are one aligned vector, and those of the tail's tensor; four columns of
// C; four columns of a part's sums; four elements of A, and of B, that are contiguous; and whether all
// batches are one step apart. A kernel of matrix units has it as a constant, so that it holds one way.
#ifdef ALIKE_IS_CONSTANT
layout(constant_id = 3) const uint ALIKE = 0u;
#else
#define ALIKE alike
#endif
#define Y_VECTORS ((ALIKE & 1u) != 0u)
#define C_VECTORS ((ALIKE & 2u) != 0u)
#define SUM_VECTORS ((ALIKE & 4u) != 0u)
#define HAS_A_VECTORS ((ALIKE & 8u) != 0u)
#define HAS_B_VECTORS ((ALIKE & 16u) != 0u)
#define ONE_STEP ((ALIKE & 32u) != 0u)
#include "include/grid.glsl"
#define WALK_RANKED
#include "include/walk.glsl"
#include "include/typed.glsl"
#define TAIL_BINDING 6
#define TAIL_TYPE TYPE
#include "include/tail.glsl"

// Elements of 16 bits.
#ifdef BFLOAT16
#include "include/bfloat16.glsl"
#define NUMBER_OF_HALF bfloat16_to_float
#define HALF uint16_t
#define HALF_OF(pair, i) uint16_t(pair >> 16u * (i))
#define HALVES_OF(x) uvec2(float_to_bfloat16(x[0]) | float_to_bfloat16(x[1]) << 16, \
                           float_to_bfloat16(x[2]) | float_to_bfloat16(x[3]) << 16)
#else
#define NUMBER_OF_HALF half_to_float
#define HALF float16_t
#define HALF_OF(pair, i) unpackFloat2x16(pair)[i]
#define HALVES_OF(x) floats_to_halves(x)
#endif

INPUT_TENSOR(a, 0, TYPE)
INPUT_TENSOR(b, 1, TYPE)
INPUT_TENSOR(c, 2, TYPE)
layout(binding = 2) readonly buffer CPairs { uvec2 c_pairs[]; };
OUTPUT_TENSOR(y, 3, TYPE)
layout(binding = 3) writeonly buffer YPairs { uvec2 y_pairs[]; };
#ifdef HALF_STORES  // the device stores 16 bits at a time
layout(binding = 3) writeonly buffer YHalves { HALF y_halves[]; };
layout(binding = 3) writeonly buffer YPairWords { uint y_pair_words[]; };
#endif
layout(binding = 4) coherent buffer Partial { float partial[]; };
layout(binding = 4) coherent buffer PartialVectors { vec4 partial_vectors[]; };
#define ARRIVED_BINDING 5
#include "include/arrived.glsl"
WALK(walk, 4)

struct Tile {
    uint index;  // among the tiles of all batches
    uint part;
    uint batch;
    uint row;
    uint column;
    uint at[4];  // the batch's first element in A, B, C and the output
    uint begin;  // where the part of K begins
    uint end;
};

// The batch's first element in A, B, C and the output. Reading the walk's words takes long.
uint[4] batch_at(uint batch) {
#ifndef BLOCKED_B
    if (ONE_STEP)
        return uint[4](batch * batch_steps[0], batch * batch_steps[1], batch * batch_steps[2],
                       batch * batch_steps[3]);
#endif
    return batches > 1u ? walk(0u, batch) : uint[4](0u, 0u, 0u, 0u);
}

// Takes a batch to the B of its group; false where the batch has no rows.
bool find_group(inout Tile t) {
    if (!GROUPED) return true;
    if (t.batch >= c_words[c_offset + batches]) return false;
    t.at[1] = c_words[c_offset + t.batch] * c_column;
    return true;
}

// The tile of this workgroup; false beyond the last tile. Tiles are numbered by columns within bands of
// rows, so that workgroups that run together read the same rows and columns.
bool find_tile(out Tile t) {
    const uint band = 1024u / TILE_ROWS;
    uint down = (rows - 1u) / TILE_ROWS + 1u;
    uint across = (columns - 1u) / TILE_COLUMNS + 1u;
    uint count = down * across * batches;
    t.index = group_index();
    t.part = t.batch = 0u;
    // Divisions, and words from memory, only where they are needed: the first load waits for them.
    if (SPLIT) {
        t.part = t.index / count;
        t.index -= t.part * count;
    } else if (t.index >= count) {
        return false;
    }
    uint tile = t.index;
    if (batches > 1u) {
        t.batch = t.index / (down * across);
        tile -= t.batch * (down * across);
    }
    uint first = down > band ? tile / (band * across) * band : 0u;
    uint height = min(band, down - first);
    tile -= first * across;
    uint along = tile / height;
    t.row = (first + tile - along * height) * TILE_ROWS;
    t.column = along * TILE_COLUMNS;
    t.at = batch_at(t.batch);
    t.begin = t.part * part_k;
    t.end = min(t.begin + part_k, K);
    return t.part < parts && find_group(t);
}

// Four elements of C, which are a vector.
vec4 c_numbers(uint from) {
    if (BYTES_OF(TYPE) == 4u) return uintBitsToFloat(c_vectors[from / 4u]);
    uvec2 pair = c_pairs[from / 4u];
    return vec4(NUMBER_OF_HALF(pair.x & 0xFFFFu), NUMBER_OF_HALF(pair.x >> 16),
                NUMBER_OF_HALF(pair.y & 0xFFFFu), NUMBER_OF_HALF(pair.y >> 16));
}

#ifdef BFLOAT16
float c_number(uint at) {
    return BYTES_OF(TYPE) == 2u ? bfloat16_to_float(c_bits(at).x) : c_float(at);
}
#else
#define c_number c_float
#endif

// What is added to four columns' sums: C, and the tail's tensor where the columns are an aligned vector.
struct Beside {
    vec4 c;
    vec4 others;
};

// Asked for before many sums are finished, none of which then waits for another. Beyond an edge it is of
// other rows or columns.
Beside beside_four(Tile t, uint row, uint column) {
    Beside found = Beside(vec4(0.0), vec4(0.0));
    row = min(row, rows - 1u);
    column = column < columns ? column : t.column;
    uint last = min(columns - column, 4u) - 1u;
    uint from = c_offset + t.at[2] + (C_ROWS ? row * c_row : 0u) + column * c_column;
    if (HAS_C && C_VECTORS)
        found.c = c_numbers(from);
    else if (HAS_C)
        [[unroll]] for (uint i = 0u; i < 4u; ++i) found.c[i] = c_number(from + min(i, last) * c_column);
    if (Y_VECTORS && last == 3u) found.others = tail_four(t.at[3] + row * y_row + column * y_column);
    return found;
}

#ifndef EACH_COLUMN  // where little code counts, a loop
#define EACH_COLUMN [[unroll]]
#endif

// Finishes and stores the sums of four columns, except beyond the edge.
void store_four(Tile t, uint row, uint column, vec4 sums, Beside found) {
    uint count = min(columns - column, 4u);
    uint to = y_offset + t.at[3] + row * y_row + column * y_column;
    vec4 x;
    bool whole = Y_VECTORS && count == 4u;
    EACH_COLUMN for (uint i = 0u; i < 4u; ++i) {
        precise float value = alpha * sums[i];
        if (HAS_C) value = value + beta * found.c[i];
        uint place = to - y_offset + min(i, count - 1u) * y_column;
        x[i] = finish_beside(value, whole ? found.others[i] : tail_one(place));
    }
    if (whole && BYTES_OF(TYPE) == 4u) {
        y_vectors[to / 4u] = floatBitsToUint(x);
        return;
    }
    uvec2 halves = HALVES_OF(x);
    if (whole) {
        y_pairs[to / 4u] = halves;
        return;
    }
#ifdef HALF_STORES
    if (BYTES_OF(TYPE) == 2u) {
        if (y_column == 1u && count == 4u) {  // the largest stores, wherever they begin
            if (to % 4u == 0u) {
                y_pairs[to / 4u] = halves;
            } else if (to % 2u == 0u) {
                y_pair_words[to / 2u] = halves.x;
                y_pair_words[to / 2u + 1u] = halves.y;
            } else {
                y_halves[to] = HALF_OF(halves.x, 0);
                y_pair_words[to / 2u + 1u] = halves.x >> 16u | halves.y << 16u;
                y_halves[to + 3u] = HALF_OF(halves.y, 1);
            }
            return;
        }
        EACH_COLUMN for (uint i = 0u; i < 4u; ++i)
            if (i < count) y_halves[to + i * y_column] = HALF_OF(halves[i / 2u], i % 2u);
        return;
    }
#endif
    EACH_COLUMN for (uint i = 0u; i < 4u; ++i)
        if (i < count) y_store_float(to + i * y_column, x[i]);
}

uint partial_at(Tile t, uint part, uint row, uint column) {
    return partial_offset + ((part * batches + t.batch) * rows + row) * columns + column;
}

// Finishes the sums of four columns of a row, or stores them for split-K. Sums beyond edges are dropped.
void finish_four(Tile t, uint row, uint column, vec4 sums, Beside found) {
    if (row >= rows || column >= columns) return;
    if (!SPLIT) {
        store_four(t, row, column, sums, found);
        return;
    }
    uint to = partial_at(t, t.part, row, column);
    if (SUM_VECTORS) {
        partial_vectors[to / 4u] = sums;
        return;
    }
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        if (column + i < columns) partial[to + i] = sums[i];
}

void finish_four(Tile t, uint row, uint column, vec4 sums) {
    if (SPLIT)
        finish_four(t, row, column, sums, Beside(vec4(0.0), vec4(0.0)));
    else if (row < rows && column < columns)
        store_four(t, row, column, sums, beside_four(t, row, column));
}

#ifndef FOURS_TO_ADD  // vectors of a tile that an invocation adds up at a time
#define FOURS_TO_ADD 1u
#endif

// After finish_four: the last workgroup of a tile adds up the parts.
void add_parts(Tile t) {
    if (!SPLIT || ADDED_APART || !arrives_last(t.index, parts)) return;
    const uint EACH = FOURS_TO_ADD, AT_ONCE = EACH > 1u ? 4u : 8u, FOURS = TILE_COLUMNS / 4u;
    for (uint n = gl_LocalInvocationIndex; n < TILE_ROWS * FOURS; n += EACH * INVOCATIONS) {
        uint row[EACH], column[EACH];
        vec4 sums[EACH];
        bool inside = false;
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            row[e] = t.row + (n + e * INVOCATIONS) / FOURS;
            column[e] = t.column + (n + e * INVOCATIONS) % FOURS * 4u;
            sums[e] = vec4(0.0);
            inside = inside || row[e] < rows && column[e] < columns;
        }
        if (!inside) continue;
        Beside beside[EACH];
        [[unroll]] for (uint e = 0u; e < EACH; ++e)
            beside[e] = beside_four(t, row[e], column[e]);
        for (uint part = 0u; part < parts; part += AT_ONCE) {
            vec4 more[AT_ONCE][EACH];
            [[unroll]] for (uint p = 0u; p < AT_ONCE; ++p)
                [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                    uint first = column[e] < columns ? column[e] : t.column;
                    uint from = partial_at(t, min(part + p, parts - 1u), min(row[e], rows - 1u), first);
                    if (SUM_VECTORS) {
                        more[p][e] = partial_vectors[from / 4u];
                        continue;
                    }
                    [[unroll]] for (uint i = 0u; i < 4u; ++i)
                        more[p][e][i] = partial[from + min(i, columns - 1u - first)];
                }
            [[unroll]] for (uint p = 0u; p < AT_ONCE; ++p)
                [[unroll]] for (uint e = 0u; e < EACH; ++e)
                    if (part + p < parts) sums[e] += more[p][e];
        }
        [[unroll]] for (uint e = 0u; e < EACH; ++e)
            if (n + e * INVOCATIONS < TILE_ROWS * FOURS && row[e] < rows && column[e] < columns)
                store_four(t, row[e], column[e], sums[e], beside[e]);
    }
}
