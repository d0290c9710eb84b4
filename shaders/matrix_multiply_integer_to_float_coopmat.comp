//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT
//@ variants TILE: t128 t128d t64 t32 t32d t16
//@ glslang >= 14
//@ target vulkan1.1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require

// A workgroup of four subgroups of 32 makes a tile of the output, SUBGROUPS_DOWN x SUBGROUPS_ACROSS
// parts of it at a time; the SUBGROUPS_DEEP subgroups that share a part take turns along the depth.
// Shared memory is kept so small that a multiprocessor holds two workgroups: one multiplies while
// the other waits. Deeper tiles are for outputs that give it one only.
#if defined(TILE_t128)
const uint TILE_ROWS = 128u, TILE_COLUMNS = 128u, TILE_DEPTH = 64u;
const uint SUBGROUPS_DOWN = 2u, SUBGROUPS_ACROSS = 2u, SUBGROUPS_DEEP = 1u;
#elif defined(TILE_t128d)
const uint TILE_ROWS = 128u, TILE_COLUMNS = 128u, TILE_DEPTH = 128u;
const uint SUBGROUPS_DOWN = 2u, SUBGROUPS_ACROSS = 2u, SUBGROUPS_DEEP = 1u;
#elif defined(TILE_t64)
const uint TILE_ROWS = 64u, TILE_COLUMNS = 64u, TILE_DEPTH = 128u;
const uint SUBGROUPS_DOWN = 2u, SUBGROUPS_ACROSS = 2u, SUBGROUPS_DEEP = 1u;
#elif defined(TILE_t32)
const uint TILE_ROWS = 32u, TILE_COLUMNS = 32u, TILE_DEPTH = 128u;
const uint SUBGROUPS_DOWN = 1u, SUBGROUPS_ACROSS = 1u, SUBGROUPS_DEEP = 4u;
#elif defined(TILE_t32d)
const uint TILE_ROWS = 32u, TILE_COLUMNS = 32u, TILE_DEPTH = 256u;
const uint SUBGROUPS_DOWN = 1u, SUBGROUPS_ACROSS = 1u, SUBGROUPS_DEEP = 4u;
#else
const uint TILE_ROWS = 16u, TILE_COLUMNS = 32u, TILE_DEPTH = 256u;
const uint SUBGROUPS_DOWN = 1u, SUBGROUPS_ACROSS = 1u, SUBGROUPS_DEEP = 4u;
#endif
const uint INVOCATIONS = 128u;
layout(local_size_x = INVOCATIONS) in;
#define SPECIALIZED
#define GIVEN_SUMS
#include "include/matrix_multiply_integer_to_float.glsl"
#include "include/bytes.glsl"
#include "include/lowered.glsl"
#include "include/dot_product.glsl"

// Lines of A and B: the depth contiguous and a multiple of TILE_DEPTH, whole vectors of 16 elements.
layout(binding = 9) readonly buffer AVectors { uvec4 a_vectors[]; };
layout(binding = 10) readonly buffer BVectors { uvec4 b_vectors[]; };
layout(binding = 11) readonly buffer RowSums { int row_sums[]; };
layout(binding = 12) readonly buffer ColumnSums { int column_sums[]; };
layout(binding = 13) writeonly buffer OutputVectors { uvec4 out_vectors[]; };

// Whether the lines are signed numbers already, and whether their sums are given.
layout(constant_id = 9) const bool A_PREPARED = false;
layout(constant_id = 10) const bool B_PREPARED = false;
layout(constant_id = 11) const bool A_SUMMED = false;
layout(constant_id = 12) const bool B_SUMMED = false;
#define ADDS_ROWS (ROW_SUMS && !A_SUMMED)
#define ADDS_COLUMNS (COLUMN_SUMS && !B_SUMMED)

const uint FRAGMENT = 16u;
const uint FRAGMENT_DEPTH = 32u;
const uint PART_ROWS = TILE_ROWS / SUBGROUPS_DOWN;
const uint PART_COLUMNS = TILE_COLUMNS / SUBGROUPS_ACROSS;
const int DOWN = int(PART_ROWS / FRAGMENT);
const int ACROSS = int(PART_COLUMNS / FRAGMENT);

#define Product coopmat<int, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseAccumulator>
#define RowFragment coopmat<int8_t, gl_ScopeSubgroup, FRAGMENT, FRAGMENT_DEPTH, gl_MatrixUseA>
#define ColumnFragment coopmat<int8_t, gl_ScopeSubgroup, FRAGMENT_DEPTH, FRAGMENT, gl_MatrixUseB>

// One slice of the depth: rows of A, then columns of B, each with one vector after it, so that
// eight lines meet all banks. After the last slice the products pass through here.
const uint LINE_VECTORS = TILE_DEPTH / 16u;
const uint PITCH = LINE_VECTORS + 1u;
const uint SLICE = (TILE_ROWS + TILE_COLUMNS) * PITCH;
const uint STRIP_ROWS = SUBGROUPS_DOWN * FRAGMENT;
const uint ROW_VECTORS = TILE_COLUMNS / 4u;
const uint STRIPS = SUBGROUPS_DEEP * STRIP_ROWS * ROW_VECTORS;
shared uvec4 s_slice[SLICE > STRIPS ? SLICE : STRIPS];
// Of the rows, then of the columns.
const uint LINES = TILE_ROWS + TILE_COLUMNS;
shared int s_zero[LINES];
shared int s_sum[LINES];
shared float s_scale[TILE_ROWS];

const int ROW_LOADS = int(TILE_ROWS * LINE_VECTORS / INVOCATIONS);
const int COLUMN_LOADS = int(TILE_COLUMNS * LINE_VECTORS / INVOCATIONS);

// The line that an invocation's ``load``-th vector belongs to. Eight invocations store together:
// where a line has four vectors only, they take lines whose banks complete one another.
uint line_of(int load) {
    uint vector = gl_LocalInvocationIndex + uint(load) * INVOCATIONS;
    if (LINE_VECTORS == 4u) return vector / 4u % 2u * 4u + vector / 8u % 4u + vector / 32u * 8u;
    return vector / LINE_VECTORS;
}

uvec4 as_signed(bool already, uvec4 x) {
    return already ? x : x ^ 0x80808080u;
}

// A given sum comes in parts along the depth.
int given_sum(bool of_a, uint batch, uint line) {
    uint count = of_a ? rows : columns;
    bool repeats = (of_a ? a_strides[0] : b_strides[0]) == 0u;
    uint step = count * (repeats ? 1u : batches);
    uint at = (of_a ? row_sums_offset : column_sums_offset) + (repeats ? 0u : batch * count) + line;
    int sum = 0;
    for (uint i = 0u; i < sum_count; ++i)
        sum += of_a ? row_sums[at + i * step] : column_sums[at + i * step];
    return sum;
}

// Zero points, and the sums so far.
void begin_lines(uint batch, uint row, uint column) {
    for (uint i = gl_LocalInvocationIndex; i < LINES; i += INVOCATIONS) {
        bool of_a = i < TILE_ROWS;
        uint line = of_a ? row + i : column + i - TILE_ROWS;
        bool exists = line < (of_a ? rows : columns);
        s_zero[i] = HAS_CORRECTION ? lowered_zero_point(of_a, line) : 0;
        s_sum[i] = exists && (of_a ? ROW_SUMS && A_SUMMED : COLUMN_SUMS && B_SUMMED)
            ? given_sum(of_a, batch, line) : 0;
        if (of_a)
            s_scale[i] = exists ? LOAD_FLOAT(a_scale, a_scale_offset + line * a_scale_stride) : 0.0;
    }
}

// What the four columns of an invocation have in common in all rows.
struct Columns {
    uint first;
    uint count;
    vec4 scale;
    vec4 shift;
};

Columns columns_at(uint batch, uint first) {
    Columns c;
    c.first = first;
    c.count = first < columns ? min(columns - first, 4u) : 0u;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint column = min(first + i, columns - 1u);
        c.scale[i] = LOAD_FLOAT(b_scale, b_scale_offset + column * b_scale_stride);
        c.shift[i] = HAS_BIAS && bias_strides[1] == 0u
            ? LOAD_FLOAT(bias, bias_offset + batch * bias_strides[0] + column * bias_strides[2])
            : 0.0;
    }
    return c;
}

void finish_row(uint batch, uint row, uint column, uint tile_row, uint tile_column, Columns c,
                ivec4 products) {
    row += tile_row;
    if (row >= rows || c.count == 0u) return;
    if (HAS_CORRECTION) {
        int zero = s_zero[tile_row];
        int rest = s_sum[tile_row] - int(depth) * zero;
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            uint line = TILE_ROWS + tile_column + i;
            if (ROW_SUMS) products[i] -= s_zero[line] * rest;
            if (COLUMN_SUMS) products[i] -= zero * s_sum[line];
        }
    }
    float scale = s_scale[tile_row];
    if (CONTINUES || UNFINISHED) {
        [[unroll]] for (uint i = 0u; i < 4u; i += 2u)
            finish_pair(batch, row, c.first + i, widen(products[i]), widen(products[i + 1u]));
        return;
    }
    uvec4 words;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        precise float x = float(products[i]);
        x = x * scale;
        x = x * c.scale[i];
        if (HAS_BIAS) {
            float shift = c.shift[i];
            if (bias_strides[1] != 0u && i < c.count)
                shift = LOAD_FLOAT(bias, bias_offset + batch * bias_strides[0] +
                                             row * bias_strides[1] +
                                             (c.first + i) * bias_strides[2]);
            x = x + shift;
        }
        words[i] = HALF ? float_to_half(x) : floatBitsToUint(x);
    }
    uint to = out_offset + batch * out_strides[0] + row * out_strides[1] + c.first * out_strides[2];
    if (c.count == 4u && out_strides[2] == 1u && to % 4u == 0u) {
        if (HALF) {
            out_words[to / 2u] = words.x | (words.y << 16);
            out_words[to / 2u + 1u] = words.z | (words.w << 16);
        } else {
            out_vectors[to / 4u] = words;
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint at = to + i * out_strides[2];
        if (i >= c.count) break;
        if (HALF) STORE_HALF(out_words, at, words[i])
        else out_words[at] = words[i];
    }
}

void main() {
    uint batch, row, column;
    if (!find_tile(batch, row, column)) return;
    uint deep = gl_SubgroupID % SUBGROUPS_DEEP;
    uint part_row = gl_SubgroupID / SUBGROUPS_DEEP / SUBGROUPS_ACROSS;
    uint part_column = gl_SubgroupID / SUBGROUPS_DEEP % SUBGROUPS_ACROSS;

    begin_lines(batch, row, column);
    // Lines beyond the edges repeat the last: their products go nowhere.
    uint my_vector = gl_LocalInvocationIndex % LINE_VECTORS;
    uint a_from[ROW_LOADS], b_from[COLUMN_LOADS];
    [[unroll]] for (int i = 0; i < ROW_LOADS; ++i)
        a_from[i] = (a_offset + batch * a_strides[0] +
                     min(row + line_of(i), rows - 1u) * a_strides[1]) / 16u + my_vector;
    [[unroll]] for (int i = 0; i < COLUMN_LOADS; ++i)
        b_from[i] = (b_offset + batch * b_strides[0] +
                     min(column + line_of(i), columns - 1u) * b_strides[2]) / 16u + my_vector;
    uvec4 a_next[ROW_LOADS], b_next[COLUMN_LOADS];
#define LOAD(slice) \
    [[unroll]] for (int i = 0; i < ROW_LOADS; ++i) \
        a_next[i] = a_vectors[a_from[i] + (slice) * LINE_VECTORS]; \
    [[unroll]] for (int i = 0; i < COLUMN_LOADS; ++i) \
        b_next[i] = b_vectors[b_from[i] + (slice) * LINE_VECTORS];

    Product products[DOWN][ACROSS];
    [[unroll]] for (int i = 0; i < DOWN; ++i)
        [[unroll]] for (int j = 0; j < ACROSS; ++j) products[i][j] = Product(0);
    int a_sum[ROW_LOADS], b_sum[COLUMN_LOADS];
    [[unroll]] for (int i = 0; i < ROW_LOADS; ++i) a_sum[i] = 0;
    [[unroll]] for (int i = 0; i < COLUMN_LOADS; ++i) b_sum[i] = 0;
    uint slices = (depth - 1u) / TILE_DEPTH + 1u;
    LOAD(0u)
    for (uint slice = 0u; slice < slices; ++slice) {
        barrier();
        [[unroll]] for (int i = 0; i < ROW_LOADS; ++i) {
            uvec4 x = as_signed(A_SIGNED || A_PREPARED, a_next[i]);
            s_slice[line_of(i) * PITCH + my_vector] = x;
            if (ADDS_ROWS) a_sum[i] += dot_product(x, uvec4(ONES));
        }
        [[unroll]] for (int i = 0; i < COLUMN_LOADS; ++i) {
            uvec4 x = as_signed(B_SIGNED || B_PREPARED, b_next[i]);
            s_slice[(TILE_ROWS + line_of(i)) * PITCH + my_vector] = x;
            if (ADDS_COLUMNS) b_sum[i] += dot_product(x, uvec4(ONES));
        }
        barrier();
        // The next slice is on its way while this one is multiplied. Without a condition (the last
        // is read once more): with one, the compiler waits for the loads at the end of its block.
        LOAD(min(slice + 1u, slices - 1u))
        [[unroll]] for (uint k = 0u; k < TILE_DEPTH / FRAGMENT_DEPTH / SUBGROUPS_DEEP; ++k) {
            uint at = (k * SUBGROUPS_DEEP + deep) * FRAGMENT_DEPTH / 16u;
            ColumnFragment y[ACROSS];
            RowFragment x;
            [[unroll]] for (int j = 0; j < ACROSS; ++j)
                coopMatLoad(y[j], s_slice,
                            (TILE_ROWS + part_column * PART_COLUMNS + uint(j) * FRAGMENT) * PITCH +
                                at,
                            PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (int i = 0; i < DOWN; ++i) {
                coopMatLoad(x, s_slice, (part_row * PART_ROWS + uint(i) * FRAGMENT) * PITCH + at,
                            PITCH, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int j = 0; j < ACROSS; ++j)
                    products[i][j] = coopMatMulAdd(x, y[j], products[i][j]);
            }
        }
    }

    if (ADDS_ROWS)
        [[unroll]] for (int i = 0; i < ROW_LOADS; ++i) atomicAdd(s_sum[line_of(i)], a_sum[i]);
    if (ADDS_COLUMNS)
        [[unroll]] for (int i = 0; i < COLUMN_LOADS; ++i)
            atomicAdd(s_sum[TILE_ROWS + line_of(i)], b_sum[i]);
    uint my_column = gl_LocalInvocationIndex % ROW_VECTORS * 4u;
    Columns c = columns_at(batch, column + my_column);
    // Strips of 16 rows of each part go through shared memory; there invocations take four columns
    // of a row each, and add up what the subgroups that share a part have.
    [[unroll]] for (int i = 0; i < DOWN; ++i) {
        barrier();
        [[unroll]] for (int j = 0; j < ACROSS; ++j)
            coopMatStore(products[i][j], s_slice,
                         (deep * STRIP_ROWS + part_row * FRAGMENT) * ROW_VECTORS +
                             (part_column * PART_COLUMNS + uint(j) * FRAGMENT) / 4u,
                         ROW_VECTORS, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        [[dont_unroll]] for (uint r = 0u; r < STRIP_ROWS; r += INVOCATIONS / ROW_VECTORS) {
            uint strip_row = r + gl_LocalInvocationIndex / ROW_VECTORS;
            ivec4 sum = ivec4(0);
            [[unroll]] for (uint d = 0u; d < SUBGROUPS_DEEP; ++d)
                sum += ivec4(s_slice[(d * STRIP_ROWS + strip_row) * ROW_VECTORS + my_column / 4u]);
            uint tile_row = strip_row / FRAGMENT * PART_ROWS + uint(i) * FRAGMENT +
                            strip_row % FRAGMENT;
            finish_row(batch, row, column, tile_row, my_column, c, sum);
        }
    }
}
