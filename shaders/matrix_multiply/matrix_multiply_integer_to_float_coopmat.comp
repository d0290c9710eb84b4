//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT DML_OPERATOR_MATRIX_MULTIPLY_INTEGER DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY
//@ variants TILE:
//@     t128(rows=128, columns=128, k=64, down=2, across=2, along=1, slices=1, aside=0, once=0, place=0, unsigned=0,
//@         m=16, n=16, depth=32, lanes=32)
//@     t128s(rows=128, columns=128, k=64, down=2, across=2, along=1, slices=2, aside=1, once=2, place=0, unsigned=0,
//@         m=16, n=16, depth=32, lanes=32)
//@     t128w(rows=128, columns=128, k=64, down=2, across=2, along=1, slices=2, aside=0, once=2, place=0, unsigned=0,
//@         m=16, n=16, depth=32, lanes=32)
//@     t128u(rows=128, columns=128, k=64, down=2, across=2, along=1, slices=2, aside=0, once=2, place=0, unsigned=1,
//@         m=16, n=16, depth=32, lanes=32)
//@     t128d(rows=128, columns=128, k=128, down=2, across=2, along=2, slices=1, aside=0, once=1, place=0, unsigned=0,
//@         m=16, n=16, depth=32, lanes=32)
//@     t96x128(rows=96, columns=128, k=128, down=2, across=2, along=2, slices=1, aside=0, once=2, place=1, unsigned=0,
//@         m=16, n=16, depth=32, lanes=32)
//@     t64x96(rows=64, columns=96, k=256, down=2, across=2, along=2, slices=1, aside=0, once=2, place=0, unsigned=0,
//@         m=16, n=16, depth=32, lanes=32)
//@     t48x96(rows=48, columns=96, k=256, down=1, across=2, along=4, slices=1, aside=0, once=1, place=0, unsigned=0,
//@         m=16, n=16, depth=32, lanes=32)
//@     t64(rows=64, columns=64, k=128, down=2, across=2, along=1, slices=1, aside=0, once=2, place=0, unsigned=0,
//@         m=16, n=16, depth=32, lanes=32)
//@     t64d(rows=64, columns=64, k=256, down=1, across=1, along=4, slices=1, aside=0, once=2, place=0, unsigned=0,
//@         m=16, n=16, depth=32, lanes=32)
//@     t32(rows=32, columns=32, k=128, down=1, across=1, along=4, slices=1, aside=0, once=2, place=0, unsigned=0,
//@         m=16, n=16, depth=32, lanes=32)
//@     t32d(rows=32, columns=32, k=256, down=1, across=1, along=4, slices=1, aside=0, once=0, place=0, unsigned=0,
//@         m=16, n=16, depth=32, lanes=32)
//@     t16(rows=16, columns=32, k=256, down=1, across=1, along=4, slices=1, aside=0, once=0, place=0, unsigned=0,
//@         m=16, n=16, depth=32, lanes=32)
//@     t64k16(rows=64, columns=64, k=128, down=2, across=2, along=1, slices=1, aside=0, once=2, place=0, unsigned=0,
//@         m=16, n=16, depth=16, lanes=32)
//@     t64m8n16(rows=64, columns=64, k=64, down=8, across=2, along=1, slices=1, aside=0, once=2, place=0, unsigned=0,
//@         m=8, n=16, depth=32, lanes=16)
//@     t32m8n8(rows=32, columns=32, k=64, down=4, across=4, along=1, slices=1, aside=0, once=2, place=0, unsigned=0,
//@         m=8, n=8, depth=32, lanes=8)
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

// A workgroup computes a tile of the output in SUBGROUPS_DOWN x SUBGROUPS_ACROSS parts. SUBGROUPS_K subgroups
// split K of each part. A matrix unit multiplies ROWS x DEPTH elements by DEPTH x COLUMNS, in a subgroup of LANES.
// Shared memory is small enough for two workgroups on a multiprocessor: one multiplies while the other
// waits. Tiles with a larger K are for outputs with one workgroup per multiprocessor.
const uint TILE_ROWS = TILE_rows, TILE_COLUMNS = TILE_columns, TILE_K = TILE_k;
const uint SUBGROUPS_DOWN = TILE_down, SUBGROUPS_ACROSS = TILE_across, SUBGROUPS_K = TILE_along;
// Slices that an invocation reads at once. With two, eight invocations read 128 bytes of a row of A or a
// column of B, which suits caches best, but no registers are left to compute sums.
#if TILE_slices == 2
#define NO_ADDING
#endif
const uint SLICES_READ = TILE_slices;
// The first workgroups compute sums that are not given.
#if TILE_aside
#define SUMS_ASIDE
#define TILE_INDEX (group_index() - summing_groups())
uint summing_groups();
#endif
// Whether the rows of a strip are stored all at once, if possible (1: with corrections only). As measured:
// the code after the loop affects the compiler's choice of registers.
#if TILE_once == 1
#define STORES_AT_ONCE HAS_CORRECTION
#else
#define STORES_AT_ONCE (TILE_once != 0)
#endif
// Whether the tile's place is kept in shared memory until the end.
#if TILE_place
#define KEEPS_PLACE
#endif
// Matrix units multiply unsigned A and B without lowering.
#if TILE_unsigned
#define ELEMENT uint8_t
#define SUM uint
#else
#define ELEMENT int8_t
#define SUM int
#endif
const uint SUBGROUPS = SUBGROUPS_DOWN * SUBGROUPS_ACROSS * SUBGROUPS_K;
const uint LANES = TILE_lanes;
const uint INVOCATIONS = LANES * SUBGROUPS;
layout(local_size_x = INVOCATIONS) in;
#define SPECIALIZED
#define GIVEN_SUMS
#include "include/matrix_multiply_integer_to_float.glsl"
#include "include/bytes.glsl"
#include "include/lowered.glsl"
#include "include/dot_product.glsl"

// A and B with K contiguous and a multiple of TILE_K, in vectors of 16 elements. A line is a row of A
// or a column of B.
layout(binding = 8) readonly buffer AVectors { uvec4 a_vectors[]; };
layout(binding = 9) readonly buffer BVectors { uvec4 b_vectors[]; };
layout(binding = 10) readonly buffer RowSums { int row_sums[]; };
layout(binding = 11) readonly buffer ColumnSums { int column_sums[]; };
layout(binding = 12) writeonly buffer OutputVectors { uvec4 out_vectors[]; };
layout(binding = 13) writeonly buffer OutputPairs { uvec2 out_pairs[]; };
// The scale and the zero point of a quantized output. They use the push fields of the bias and of partial
// sums, which it does not have: row r's are at bias_offset + r * bias_strides[1], and at
// partial_offset + r * bias_strides[2].
layout(binding = 6) readonly buffer YScale { float y_scale[]; };
layout(binding = 14) readonly buffer YZero { uint y_zero[]; };
#ifdef SUMS_ASIDE
layout(binding = 15) coherent buffer MadeSums { int made_sums[]; };
layout(binding = 16) coherent buffer Zeroed { uint zeroed[]; };
#endif

// Whether A and B are repacked (their elements are signed already), and whether their sums are given.
layout(constant_id = 9) const bool A_REPACKED = false;
layout(constant_id = 10) const bool B_REPACKED = false;
layout(constant_id = 11) const bool A_SUMMED = false;
layout(constant_id = 12) const bool B_SUMMED = false;
// Whether given sums come in several parts. A constant, because even a loop that never runs takes time.
layout(constant_id = 14) const bool SUMS_IN_PARTS = false;
// Whether outputs are quantized to 8 bits, four columns to a word. INTEGER is true, too.
layout(constant_id = 18) const bool QUANTIZED = false;
layout(constant_id = 19) const bool Y_SIGNED = false;
layout(constant_id = 20) const bool HAS_Y_ZERO = false;
#define GIVEN_ROWS (ROW_SUMS && A_SUMMED)
#define GIVEN_COLUMNS (COLUMN_SUMS && B_SUMMED)
#ifdef NO_ADDING
#define ADDS_ROWS false
#define ADDS_COLUMNS false
#else
#define ADDS_ROWS (ROW_SUMS && !A_SUMMED)
#define ADDS_COLUMNS (COLUMN_SUMS && !B_SUMMED)
#endif

const uint ROWS = TILE_m, COLUMNS = TILE_n, DEPTH = TILE_depth;
const uint PART_ROWS = TILE_ROWS / SUBGROUPS_DOWN;
const uint PART_COLUMNS = TILE_COLUMNS / SUBGROUPS_ACROSS;
const int DOWN = int(PART_ROWS / ROWS);
const int ACROSS = int(PART_COLUMNS / COLUMNS);

#define Product coopmat<SUM, gl_ScopeSubgroup, ROWS, COLUMNS, gl_MatrixUseAccumulator>
#define RowFragment coopmat<ELEMENT, gl_ScopeSubgroup, ROWS, DEPTH, gl_MatrixUseA>
#define ColumnFragment coopmat<ELEMENT, gl_ScopeSubgroup, DEPTH, COLUMNS, gl_MatrixUseB>

// A slice of K: rows of A, then columns of B. After the last slice it holds the products, ROWS rows of
// each part at a time. A vector of padding after each line, and two after each row of products, avoid bank
// conflicts.
const uint LINE_VECTORS = TILE_K / 16u;
const uint PITCH = LINE_VECTORS + 1u;
const uint SLICE = (TILE_ROWS + TILE_COLUMNS) * PITCH;
const uint ROW_VECTORS = PART_COLUMNS / 4u;
const uint STRIP_PITCH = ROW_VECTORS + 2u;
const uint STRIP = ROWS * STRIP_PITCH;
shared uvec4 s_slice[max(SLICE, SUBGROUPS * STRIP)];
// Rows, then columns.
const uint LINES = TILE_ROWS + TILE_COLUMNS;
shared int s_zero[LINES];
shared int s_sum[LINES];
shared float s_scale[LINES];
shared float s_shift[TILE_COLUMNS];
#ifdef KEEPS_PLACE
shared uint s_place[4];  // batch, row, column
#endif

const uint READ_VECTORS = SLICES_READ * LINE_VECTORS;
const int ROW_LOADS = int(TILE_ROWS * READ_VECTORS / INVOCATIONS);
const int COLUMN_LOADS = int(TILE_COLUMNS * READ_VECTORS / INVOCATIONS);

// The line of an invocation's ``load``-th vector, and the vector's position in it. Eight invocations
// store together. If lines have fewer than eight vectors, they use lines with different banks. Of two
// slices, half of the invocations read the second one first.
uint line_of(int load) {
    uint vector = gl_LocalInvocationIndex + uint(load) * INVOCATIONS;
    if (SLICES_READ == 2u) return vector / READ_VECTORS ^ uint(load) % 2u * 4u;
    if (LINE_VECTORS == 4u) return vector / 4u % 2u * 4u + vector / 8u % 4u + vector / 32u * 8u;
    return vector / LINE_VECTORS;
}

uint vector_of(int load) {
    uint vector = gl_LocalInvocationIndex % READ_VECTORS;
    return SLICES_READ == 2u ? vector ^ uint(load) % 2u * LINE_VECTORS : vector;
}

uvec4 as_signed(bool already, uvec4 x) {
    return already ? x : x ^ 0x80808080u;
}

// The position of the first part of a given sum, and the distance between its parts along K.
uvec2 sum_place(bool of_a, uint batch, uint line) {
    uint count = of_a ? rows : columns;
    bool repeats = (of_a ? a_strides[0] : b_strides[0]) == 0u;
    uint first = (of_a ? row_sums_offset : column_sums_offset) + (repeats ? 0u : batch * count);
    return uvec2(first + line, count * (repeats ? 1u : batches));
}

// Loads the operands of an invocation's row and column before their products are needed, all at once and
// without conditions, so that the loads overlap. Lines beyond the edges, and invocations without a line,
// repeat the last line.
void begin_lines(uint batch, uint row, uint column) {
    uint i = min(gl_LocalInvocationIndex, TILE_ROWS - 1u);
    uint j = min(gl_LocalInvocationIndex, TILE_COLUMNS - 1u);
    row = min(row + i, rows - 1u);
    column = min(column + j, columns - 1u);
    uvec2 row_at = sum_place(true, batch, row), column_at = sum_place(false, batch, column);
    uint row_zero = zero_word(true, row), column_zero = zero_word(false, column);
    int row_sum = GIVEN_ROWS ? row_sums[row_at.x] : 0;
    int column_sum = GIVEN_COLUMNS ? column_sums[column_at.x] : 0;
    float row_scale = LOAD_FLOAT(a_scale, a_scale_offset + row * a_scale_stride);
    float column_scale = LOAD_FLOAT(b_scale, b_scale_offset + column * b_scale_stride);
    if (SCALES_FIRST) {
        precise float both = row_scale * column_scale;
        column_scale = both;
        row_scale = 1.0;
    }
    float shift = HAS_BIAS ? LOAD_FLOAT(bias, bias_offset + batch * bias_strides[0] +
                                                  column * bias_strides[2])
                           : 0.0;
#ifndef SUMS_ASIDE
    if (SUMS_IN_PARTS)
        for (uint part = 1u; part < sum_count; ++part) {
            if (GIVEN_ROWS) row_sum += row_sums[row_at.x + part * row_at.y];
            if (GIVEN_COLUMNS) column_sum += column_sums[column_at.x + part * column_at.y];
        }
#endif
    int zero = zero_point(true, row, row_zero);
    s_zero[i] = zero;
    s_zero[TILE_ROWS + j] = zero_point(false, column, column_zero);
    s_sum[i] = row_sum - int(K) * zero;
    s_sum[TILE_ROWS + j] = column_sum;
    s_scale[i] = row_scale;
    s_scale[TILE_ROWS + j] = column_scale;
    s_shift[j] = bias_strides[1] == 0u ? shift : 0.0;
}

#ifdef SUMS_ASIDE
#include "include/made_sums.glsl"
#endif

// The operands of an invocation's four columns, for all rows.
struct Columns {
    uint first;
    uint count;
    bool are_vectors;  // in the output
    ivec4 zero;
    ivec4 sum;
    vec4 scale;
    vec4 shift;
};

Columns columns_at(uint batch, uint column, uint tile_column) {
    Columns c;
    c.first = column + tile_column;
    c.count = c.first < columns ? min(columns - c.first, 4u) : 0u;
    c.are_vectors = c.count == 4u && out_strides[2] == 1u &&
                    (out_offset | batch * out_strides[0] | out_strides[1]) % 4u == 0u;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        c.zero[i] = s_zero[TILE_ROWS + tile_column + i];
        c.sum[i] = s_sum[TILE_ROWS + tile_column + i];
        c.scale[i] = s_scale[TILE_ROWS + tile_column + i];
        c.shift[i] = s_shift[tile_column + i];
    }
    return c;
}

// Turns a sum into the bits of a result. A sum that another dispatch adds to is returned as it is.
int finished(int x, int row_zero, int row_sum, float row_scale, int column_zero, int column_sum,
             float column_scale, float shift) {
    if (ROW_SUMS) x -= column_zero * row_sum;
    if (COLUMN_SUMS) x -= row_zero * column_sum;
    if (CONTINUES || UNFINISHED || INTEGER) return x;
    precise float result = float(x);
    result = result * row_scale;
    result = result * column_scale;
    if (HAS_BIAS) {
        if (bias_strides[1] == 0u) result = result + shift;
    }
    return floatBitsToInt(result);
}

// The word of four quantized sums.
uint quantized(uint row, float row_scale, Columns c, ivec4 sums) {
    float to_y = y_scale[bias_offset + row * bias_strides[1]];
    uint at = partial_offset + row * bias_strides[2];
    uint byte = HAS_Y_ZERO ? y_zero[at / 4u] >> (at % 4u * 8u) & 0xFFu : 0u;
    float zero = Y_SIGNED ? float(signed_byte(byte)) : float(byte);
    float low = Y_SIGNED ? -128.0 : 0.0;
    uint word = 0u;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        precise float scale = row_scale * c.scale[i];
        scale = scale / to_y;
        precise float x = roundEven(float(sums[i]) * scale) + zero;
        word |= (uint(int(clamp(x, low, low + 255.0))) & 0xFFu) << (8u * i);
    }
    return word;
}

// Stores finished outputs. ``whole``: all rows of the tile exist.
void store_row(uint batch, uint row, bool whole, float row_scale, Columns c, ivec4 bits) {
    if (!whole && row >= rows) return;
    if (QUANTIZED) {
        if (c.count > 0u)
            out_words[(out_offset + batch * out_strides[0] + row * out_strides[1] + c.first) / 4u] =
                quantized(row, row_scale, c, bits);
        return;
    }
    if (CONTINUES || UNFINISHED) {
        [[unroll]] for (uint i = 0u; i < 4u; i += 2u)
            finish_pair(batch, row, c.first + i, widen(bits[i]), widen(bits[i + 1u]));
        return;
    }
    precise vec4 x = intBitsToFloat(bits);
    if (HAS_BIAS) {
        if (bias_strides[1] != 0u)
            [[unroll]] for (uint i = 0u; i < 4u; ++i)
                x[i] = x[i] + LOAD_FLOAT(bias, bias_offset + batch * bias_strides[0] +
                                                   row * bias_strides[1] +
                                                   min(c.first + i, columns - 1u) *
                                                       bias_strides[2]);
    }
    uvec2 pairs = floats_to_halves(x);
    uint to = out_offset + batch * out_strides[0] + row * out_strides[1] + c.first * out_strides[2];
    if (c.are_vectors) {
        if (HALF) out_pairs[to / 4u] = pairs;
        else out_vectors[to / 4u] = floatBitsToUint(x);
        return;
    }
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint at = to + i * out_strides[2];
        if (i >= c.count) break;
        if (HALF) STORE_HALF(out_words, at, pairs[i / 2u] >> (i % 2u * 16u) & 0xFFFFu)
        else out_words[at] = floatBitsToUint(x[i]);
    }
}

// Stores a strip. An invocation takes four columns of two rows at a time. If subgroups split K of a part,
// their products in shared memory are added up first.
void store_strip(uint batch, uint row, bool whole, uint tile_row, uint part, uint member,
                 Columns c) {
    const uint STEP = SUBGROUPS_K * LANES / ROW_VECTORS;
    bool is_plain = false;
    if (STORES_AT_ONCE) is_plain = whole && c.are_vectors;
    if (CONTINUES || UNFINISHED) is_plain = false;
    if (HAS_BIAS) is_plain = is_plain && bias_strides[1] == 0u;
    if (is_plain) {
        const uint COUNT = (ROWS - 1u) / STEP + 1u;
        uint to = out_offset + batch * out_strides[0] + (row + tile_row) * out_strides[1] + c.first;
        ivec4 bits[COUNT];
        [[unroll]] for (uint n = 0u; n < COUNT; ++n) {
            uint r = min(member / ROW_VECTORS + n * STEP, ROWS - 1u);
            uint at = r * STRIP_PITCH + member % ROW_VECTORS;
            bits[n] = ivec4(s_slice[part * SUBGROUPS_K * STRIP + at]);
            [[unroll]] for (uint d = 1u; d < SUBGROUPS_K; ++d)
                bits[n] += ivec4(s_slice[(part * SUBGROUPS_K + d) * STRIP + at]);
        }
        [[unroll]] for (uint n = 0u; n < COUNT; ++n) {
            uint r = min(member / ROW_VECTORS + n * STEP, ROWS - 1u);
            uint line = tile_row + r;
            if (SUBGROUPS_K > 1u)
                [[unroll]] for (uint i = 0u; i < 4u; ++i)
                    bits[n][i] = finished(bits[n][i], s_zero[line], s_sum[line], s_scale[line],
                                          c.zero[i], c.sum[i], c.scale[i], c.shift[i]);
            uint at = (to + r * out_strides[1]) / 4u;
            vec4 x = intBitsToFloat(bits[n]);
            if (QUANTIZED) out_words[at] = quantized(row + line, s_scale[line], c, bits[n]);
            else if (HALF) out_pairs[at] = floats_to_halves(x);
            else out_vectors[at] = floatBitsToUint(x);
        }
        return;
    }
    const uint TOGETHER = ROWS % (2u * STEP) == 0u ? 2u : 1u;
    [[dont_unroll]] for (uint r = member / ROW_VECTORS; r < ROWS; r += TOGETHER * STEP) {
        ivec4 bits[TOGETHER];
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            uint at = (r + n * STEP) * STRIP_PITCH + member % ROW_VECTORS;
            bits[n] = ivec4(s_slice[part * SUBGROUPS_K * STRIP + at]);
            [[unroll]] for (uint d = 1u; d < SUBGROUPS_K; ++d)
                bits[n] += ivec4(s_slice[(part * SUBGROUPS_K + d) * STRIP + at]);
        }
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            uint line = tile_row + r + n * STEP;
            if (SUBGROUPS_K > 1u)
                [[unroll]] for (uint i = 0u; i < 4u; ++i)
                    bits[n][i] = finished(bits[n][i], s_zero[line], s_sum[line], s_scale[line],
                                          c.zero[i], c.sum[i], c.scale[i], c.shift[i]);
            store_row(batch, row + line, whole, s_scale[line], c, bits[n]);
        }
    }
}

// Between writing and reading strips. A subgroup with a part of its own needs no other.
void share_strip() {
    if (SUBGROUPS_K > 1u) {
        barrier();
    } else {
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    }
}

#define SPREAD(fragment, of, line, layout) \
    coopMatLoad(fragment, of, line, 0u, gl_CooperativeMatrixLayout##layout);

void main() {
#ifdef SUMS_ASIDE
    if (group_index() < summing_groups()) {
        bool of_a = group_index() < groups_of(true);
        make_sums(of_a, group_index() - (of_a ? 0u : groups_of(true)));
        return;
    }
#endif
    uint batch, row, column;
    if (!find_tile(batch, row, column)) return;
    uint member_of_k = gl_SubgroupID % SUBGROUPS_K;
    uint part_row = gl_SubgroupID / SUBGROUPS_K / SUBGROUPS_ACROSS;
    uint part_column = gl_SubgroupID / SUBGROUPS_K % SUBGROUPS_ACROSS;

    // Lines beyond the edges repeat the last line. Their products are dropped.
    uint a_from[ROW_LOADS], b_from[COLUMN_LOADS];
    [[unroll]] for (int i = 0; i < ROW_LOADS; ++i)
        a_from[i] = (a_offset + batch * a_strides[0] +
                     min(row + line_of(i), rows - 1u) * a_strides[1]) / 16u + vector_of(i);
    [[unroll]] for (int i = 0; i < COLUMN_LOADS; ++i)
        b_from[i] = (b_offset + batch * b_strides[0] +
                     min(column + line_of(i), columns - 1u) * b_strides[2]) / 16u + vector_of(i);
    uvec4 a_next[ROW_LOADS], b_next[COLUMN_LOADS];
#define LOAD(number) \
    [[unroll]] for (int i = 0; i < ROW_LOADS; ++i) \
        a_next[i] = a_vectors[a_from[i] + (number) * READ_VECTORS]; \
    [[unroll]] for (int i = 0; i < COLUMN_LOADS; ++i) \
        b_next[i] = b_vectors[b_from[i] + (number) * READ_VECTORS];
    uint my_vector = gl_LocalInvocationIndex % LINE_VECTORS;
    // Whether the odd loads hold the first slice and the even ones the second. Then they are swapped,
    // so that all invocations store vectors of each slice.
    bool swapped = gl_LocalInvocationIndex % READ_VECTORS >= LINE_VECTORS;
#define SWAP(next, loads) \
    [[unroll]] for (int i = 0; i + 1 < loads; i += 2) { \
        uvec4 even = next[i]; \
        next[i] = swapped ? next[i + 1] : even; \
        next[i + 1] = swapped ? even : next[i + 1]; \
    }

    Product products[DOWN][ACROSS];
    [[unroll]] for (int i = 0; i < DOWN; ++i)
        [[unroll]] for (int j = 0; j < ACROSS; ++j) products[i][j] = Product(0);
    int a_sum[ROW_LOADS], b_sum[COLUMN_LOADS];
    [[unroll]] for (int i = 0; i < ROW_LOADS; ++i) a_sum[i] = 0;
    [[unroll]] for (int i = 0; i < COLUMN_LOADS; ++i) b_sum[i] = 0;
    uint reads = (K - 1u) / (TILE_K * SLICES_READ) + 1u;
    // Each workgroup begins at another place in K, so that workgroups that share lines do not read
    // the same vectors at once.
    uint read = TILE_ROWS == 128u ? group_index() % reads : 0u;
    LOAD(read)
    begin_lines(batch, row, column);
#ifdef KEEPS_PLACE
    if (gl_LocalInvocationIndex == 0u) {
        s_place[0] = batch;
        s_place[1] = row;
        s_place[2] = column;
    }
#endif
    for (uint number = 0u; number < reads; ++number) {
        if (SLICES_READ == 2u) {
            SWAP(a_next, ROW_LOADS)
            SWAP(b_next, COLUMN_LOADS)
        }
        [[unroll]] for (int slice = 0; slice < int(SLICES_READ); ++slice) {
            barrier();
            [[unroll]] for (int i = 0; i < ROW_LOADS; i += int(SLICES_READ)) {
                uvec4 x = as_signed(A_SIGNED || A_REPACKED, a_next[i + slice]);
                uint line = swapped ? line_of(i + int(SLICES_READ) - 1 - slice) : line_of(i + slice);
                s_slice[line * PITCH + my_vector] = x;
                if (ADDS_ROWS) a_sum[i] += dot_product(x, uvec4(ONES));
            }
            [[unroll]] for (int i = 0; i < COLUMN_LOADS; i += int(SLICES_READ)) {
                uvec4 x = as_signed(B_SIGNED || B_REPACKED, b_next[i + slice]);
                uint line = swapped ? line_of(i + int(SLICES_READ) - 1 - slice) : line_of(i + slice);
                s_slice[(TILE_ROWS + line) * PITCH + my_vector] = x;
                if (ADDS_COLUMNS) b_sum[i] += dot_product(x, uvec4(ONES));
            }
            barrier();
            // The next slice is read while this one is multiplied. At the end the first slice is
            // read again: with a condition, the compiler would wait for the loads.
            if (slice + 1 == int(SLICES_READ)) {
                read = read + 1u < reads ? read + 1u : 0u;
                LOAD(read)
            }
            [[unroll]] for (uint k = 0u; k < TILE_K / DEPTH / SUBGROUPS_K; ++k) {
                uint at = (k * SUBGROUPS_K + member_of_k) * DEPTH / 16u;
                ColumnFragment y[ACROSS];
                RowFragment x;
                [[unroll]] for (int j = 0; j < ACROSS; ++j) {
                    uint line = TILE_ROWS + part_column * PART_COLUMNS + uint(j) * COLUMNS;
                    coopMatLoad(y[j], s_slice, line * PITCH + at, PITCH,
                                gl_CooperativeMatrixLayoutColumnMajor);
                }
                [[unroll]] for (int i = 0; i < DOWN; ++i) {
                    uint line = part_row * PART_ROWS + uint(i) * ROWS;
                    coopMatLoad(x, s_slice, line * PITCH + at, PITCH,
                                gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (int j = 0; j < ACROSS; ++j)
                        products[i][j] = coopMatMulAdd(x, y[j], products[i][j]);
                }
            }
        }
    }

    if (ADDS_ROWS)
        [[unroll]] for (int i = 0; i < ROW_LOADS; ++i) atomicAdd(s_sum[line_of(i)], a_sum[i]);
    if (ADDS_COLUMNS)
        [[unroll]] for (int i = 0; i < COLUMN_LOADS; ++i)
            atomicAdd(s_sum[TILE_ROWS + line_of(i)], b_sum[i]);
#ifdef KEEPS_PLACE
    batch = s_place[0];
    row = s_place[1];
    column = s_place[2];
#endif
#ifdef SUMS_ASIDE
    if (MAKES_ROWS || MAKES_COLUMNS) add_made_sums(batch, row, column);
#endif
    barrier();
    uint part = gl_SubgroupID / SUBGROUPS_K;
    uint member = member_of_k * LANES + gl_SubgroupInvocationID;
    Columns c = columns_at(batch, column, part_column * PART_COLUMNS + member % ROW_VECTORS * 4u);
    bool whole = row + TILE_ROWS <= rows;
    if (SUBGROUPS_K == 1u) {
        // If no other subgroup shares them, sums are finished in registers. Values by line are loaded as
        // fragments of the same shape, with a stride of 0.
        [[unroll]] for (int j = 0; j < ACROSS; ++j) {
            uint at = part_column * PART_COLUMNS + uint(j) * COLUMNS;
            Product column_zero, column_sum, column_scale, shift;
            if (HAS_CORRECTION) {
                SPREAD(column_zero, s_zero, TILE_ROWS + at, RowMajor)
                SPREAD(column_sum, s_sum, TILE_ROWS + at, RowMajor)
            }
            SPREAD(column_scale, s_scale, TILE_ROWS + at, RowMajor)
            if (HAS_BIAS) SPREAD(shift, s_shift, at, RowMajor)
            [[unroll]] for (int i = 0; i < DOWN; ++i) {
                uint line = part_row * PART_ROWS + uint(i) * ROWS;
                Product row_zero, row_sum, row_scale;
                if (HAS_CORRECTION) {
                    SPREAD(row_zero, s_zero, line, ColumnMajor)
                    SPREAD(row_sum, s_sum, line, ColumnMajor)
                }
                SPREAD(row_scale, s_scale, line, ColumnMajor)
                [[unroll]] for (int e = 0; e < products[i][j].length(); ++e)
                    products[i][j][e] = SUM(finished(
                        int(products[i][j][e]), int(row_zero[e]), int(row_sum[e]),
                        intBitsToFloat(int(row_scale[e])), int(column_zero[e]), int(column_sum[e]),
                        intBitsToFloat(int(column_scale[e])), intBitsToFloat(int(shift[e]))));
            }
        }
    }
    // Strips of ROWS rows of each part, at most four, go through shared memory. They are not a loop: if
    // a compiler does not unroll it, all products go to memory.
#define STORE_STRIP(number) \
    if (DOWN > number) { \
        share_strip(); \
        [[unroll]] for (int j = 0; j < ACROSS; ++j) \
            coopMatStore(products[min(number, DOWN - 1)][j], s_slice, \
                         gl_SubgroupID * STRIP + uint(j) * COLUMNS / 4u, STRIP_PITCH, \
                         gl_CooperativeMatrixLayoutRowMajor); \
        share_strip(); \
        store_strip(batch, row, whole, part_row * PART_ROWS + uint(number) * ROWS, part, \
                    member, c); \
    }
    STORE_STRIP(0)
    STORE_STRIP(1)
    STORE_STRIP(2)
    STORE_STRIP(3)
}
