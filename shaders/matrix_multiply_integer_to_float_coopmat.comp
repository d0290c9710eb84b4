//@ op DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT
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
const uint INVOCATIONS = 128u;
layout(local_size_x = INVOCATIONS) in;
const uint TILE_ROWS = 128u;
const uint TILE_COLUMNS = 128u;
const uint TILE_DEPTH = 128u;
#define SPECIALIZED
#include "include/matrix_multiply_integer_to_float.glsl"
#include "include/packed_depth.glsl"

// The matrices once more, in vectors of 16 elements.
layout(binding = 9) readonly buffer AVectors { uvec4 a_vectors[]; };
layout(binding = 10) readonly buffer BVectors { uvec4 b_vectors[]; };

// A workgroup makes a 128 x 128 tile of the output, each of its four subgroups of 32 a quarter of
// it, in 4 x 4 cooperative matrices. While they multiply one slice of the depth, the next is on its
// way from memory to registers. Every invocation also adds up one row and one column.
const uint PART = 64u;
const uint FRAGMENT = 16u;
const uint FRAGMENT_DEPTH = 32u;
const int FRAGMENTS = 4;

#define Product coopmat<int, gl_ScopeSubgroup, FRAGMENT, FRAGMENT, gl_MatrixUseAccumulator>
#define RowFragment coopmat<int8_t, gl_ScopeSubgroup, FRAGMENT, FRAGMENT_DEPTH, gl_MatrixUseA>
#define ColumnFragment coopmat<int8_t, gl_ScopeSubgroup, FRAGMENT_DEPTH, FRAGMENT, gl_MatrixUseB>

// 128 rows of A, then 128 columns of B, each with 16 bytes after it: no bank conflicts between
// lines. After the last slice the products pass through here.
const uint LINE_VECTORS = TILE_DEPTH / 16u;
const uint PITCH = LINE_VECTORS + 1u;
shared uvec4 s_lines[LINES * PITCH];

// The elements of a matrix come into registers as vectors of 16 along the depth, or across the lines.
// Which one decides how registers are used: known only at run time, it costs half the speed.
layout(constant_id = 9) const bool A_ACROSS = false;
layout(constant_id = 10) const bool B_ACROSS = false;

const int VECTORS = int(128u * LINE_VECTORS / INVOCATIONS);

uvec4 vector_of(bool of_a, uint index) {
    uvec4 x = of_a ? a_vectors[index / 16u] : b_vectors[index / 16u];
    return (of_a ? A_SIGNED : B_SIGNED) ? x : x ^ 0x80808080u;
}

// Unit u of those that read across the lines covers the lines from x on and four elements of the
// depth from y on. Neighbouring units read neighbouring vectors and write different banks.
uvec2 unit_place(uint unit) {
    return uvec2((unit / 64u * 2u + unit % 2u) * 16u, unit / 2u % 32u * 4u);
}

void fetch(Lines lines, bool across, uint begin, out uvec4 fetched[VECTORS]) {
    uint left = depth - begin;
    [[unroll]] for (int i = 0; i < VECTORS; ++i) {
        fetched[i] = uvec4(0u);
        if (across) {
            uvec2 place = unit_place(gl_LocalInvocationIndex + uint(i / 4) * INVOCATIONS);
            uint at = place.y + uint(i % 4);
            if (place.x < lines.count && at < left)
                fetched[i] = vector_of(lines.of_a, lines.offset + place.x +
                                                       (begin + at) * lines.depth_stride);
        } else {
            uint vector = gl_LocalInvocationIndex + uint(i) * INVOCATIONS;
            uint line = vector / LINE_VECTORS;
            uint at = vector % LINE_VECTORS * 16u;
            if (line < lines.count && at < left)
                fetched[i] =
                    vector_of(lines.of_a, lines.offset + line * lines.line_stride + begin + at);
        }
    }
}

void keep(uint to, bool across, uvec4 fetched[VECTORS]) {
    [[unroll]] for (int i = 0; i < VECTORS; ++i) {
        if (across) {
            // Four words of four lines at a time, turned around.
            int unit = i / 4 * 4;
            int c = i % 4;
            uvec2 place = unit_place(gl_LocalInvocationIndex + uint(i / 4) * INVOCATIONS);
            uvec4 words = transposed(uvec4(fetched[unit][c], fetched[unit + 1][c],
                                           fetched[unit + 2][c], fetched[unit + 3][c]));
            uint at = (to + place.x + uint(c) * 4u) * PITCH + place.y / 16u;
            uint component = place.y / 4u % 4u;
            [[unroll]] for (int line = 0; line < 4; ++line)
                s_lines[at + uint(line) * PITCH][component] = words[line];
        } else {
            uint vector = gl_LocalInvocationIndex + uint(i) * INVOCATIONS;
            s_lines[(to + vector / LINE_VECTORS) * PITCH + vector % LINE_VECTORS] = fetched[i];
        }
    }
}

// OpSDotKHR on packed words: capabilities DotProductInput4x8BitPackedKHR and DotProductKHR.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019],
                  id = 4450)
int packed_dot_product(uint x, uint y, spirv_literal uint format);

int vector_sum(uvec4 x) {
    const uint ones = 0x01010101u;
    return packed_dot_product(x.x, ones, 0u) + packed_dot_product(x.y, ones, 0u) +
           packed_dot_product(x.z, ones, 0u) + packed_dot_product(x.w, ones, 0u);
}

// Sums of lines come from the registers that hold parts of them, or, across lines, from the tile.
#define ROW_SUMS (HAS_B_ZERO || !B_SIGNED)
#define COLUMN_SUMS (HAS_A_ZERO || !A_SIGNED)

void add_vectors(inout int sums[VECTORS], uvec4 fetched[VECTORS]) {
    [[unroll]] for (int i = 0; i < VECTORS; ++i) sums[i] += vector_sum(fetched[i]);
}

void publish(uint to, int sums[VECTORS]) {
    [[unroll]] for (int i = 0; i < VECTORS; ++i) {
        uint vector = gl_LocalInvocationIndex + uint(i) * INVOCATIONS;
        atomicAdd(s_sums[to + vector / LINE_VECTORS], sums[i]);
    }
}

int line_sum(uint line) {
    int sum = 0;
    for (uint v = 0u; v < LINE_VECTORS; ++v) sum += vector_sum(s_lines[line * PITCH + v]);
    return sum;
}

void main() {
    uint batch, row, column;
    if (!find_tile(batch, row, column)) return;
    Lines a_lines = rows_from(batch, row);
    Lines b_lines = columns_from(batch, column);
    uint part_row = gl_SubgroupID / 2u * PART;
    uint part_column = gl_SubgroupID % 2u * PART;
    uint my_row = gl_LocalInvocationIndex;
    uint my_column = TILE_ROWS + gl_LocalInvocationIndex;

    Product products[FRAGMENTS][FRAGMENTS];
    [[unroll]] for (int i = 0; i < FRAGMENTS; ++i)
        [[unroll]] for (int j = 0; j < FRAGMENTS; ++j) products[i][j] = Product(0);
    int row_sum = 0;
    int column_sum = 0;
    int a_sums[VECTORS], b_sums[VECTORS];
    [[unroll]] for (int i = 0; i < VECTORS; ++i) a_sums[i] = b_sums[i] = 0;
    s_sums[my_row] = s_sums[my_column] = 0;

    uvec4 a_fetched[VECTORS], b_fetched[VECTORS];
    fetch(a_lines, A_ACROSS, 0u, a_fetched);
    fetch(b_lines, B_ACROSS, 0u, b_fetched);
    uint slices = (depth - 1u) / TILE_DEPTH + 1u;
    for (uint slice = 0u; slice < slices; ++slice) {
        barrier();
        keep(0u, A_ACROSS, a_fetched);
        keep(TILE_ROWS, B_ACROSS, b_fetched);
        if (ROW_SUMS && !A_ACROSS) add_vectors(a_sums, a_fetched);
        if (COLUMN_SUMS && !B_ACROSS) add_vectors(b_sums, b_fetched);
        barrier();
        if (slice + 1u < slices) {
            fetch(a_lines, A_ACROSS, (slice + 1u) * TILE_DEPTH, a_fetched);
            fetch(b_lines, B_ACROSS, (slice + 1u) * TILE_DEPTH, b_fetched);
        }
        [[unroll]] for (uint k = 0u; k < TILE_DEPTH / FRAGMENT_DEPTH; ++k) {
            RowFragment x[FRAGMENTS];
            ColumnFragment y;
            uint at = k * FRAGMENT_DEPTH / 16u;
            [[unroll]] for (int i = 0; i < FRAGMENTS; ++i)
                coopMatLoad(x[i], s_lines, (part_row + uint(i) * FRAGMENT) * PITCH + at, PITCH,
                            gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (int j = 0; j < FRAGMENTS; ++j) {
                coopMatLoad(y, s_lines,
                            (TILE_ROWS + part_column + uint(j) * FRAGMENT) * PITCH + at, PITCH,
                            gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (int i = 0; i < FRAGMENTS; ++i)
                    products[i][j] = coopMatMulAdd(x[i], y, products[i][j]);
            }
        }
        if (ROW_SUMS && A_ACROSS) row_sum += line_sum(my_row);
        if (COLUMN_SUMS && B_ACROSS) column_sum += line_sum(my_column);
    }
    if (ROW_SUMS && !A_ACROSS) publish(0u, a_sums);
    if (COLUMN_SUMS && !B_ACROSS) publish(TILE_ROWS, b_sums);
    barrier();
    keep_line(my_row, row, column, A_ACROSS ? row_sum : s_sums[my_row]);
    keep_line(my_column, row, column, B_ACROSS ? column_sum : s_sums[my_column]);

    // Each subgroup lays the upper, then the lower half of its part out in shared memory.
    const uint half_rows = PART / 2u;
    const uint row_vectors = PART / 4u;
    uint staged = gl_SubgroupID * half_rows * row_vectors;
    [[unroll]] for (int h = 0; h < 2; ++h) {
        barrier();
        [[unroll]] for (int i = 0; i < 2; ++i)
            [[unroll]] for (int j = 0; j < FRAGMENTS; ++j)
                coopMatStore(products[2 * h + i][j], s_lines,
                             staged + uint(i) * FRAGMENT * row_vectors + uint(j) * FRAGMENT / 4u,
                             row_vectors, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        for (uint r = 0u; r < half_rows; ++r) {
            uint c = gl_SubgroupInvocationID * 2u;
            uvec4 four = s_lines[staged + r * row_vectors + c / 4u];
            uvec2 pair = c % 4u == 0u ? four.xy : four.zw;
            finish_products(batch, row, column, part_row + uint(h) * half_rows + r,
                            part_column + c, int(pair.x), int(pair.y));
        }
    }
}
