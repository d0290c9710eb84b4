//@ op DML_OPERATOR_PADDING DML_OPERATOR_PADDING1 DML_OPERATOR_TILE
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Each coordinate of the output has a source coordinate, which begins at -start. MODE says what lies
// outside of the input. DENSE: the output is contiguous. ROWS: its rows are. In both, an invocation
// writes one vector of the output. ELEMENTS: it writes one element. CHUNKS: the output is contiguous, and
// a workgroup writes a chunk of it: first the vectors that are copied whole, then those that touch a
// border, so that these do not delay the others of a subgroup. RUNS: an invocation writes `run` vectors of a
// contiguous row, which repeats a contiguous row of the input. BY_LINES: the output is contiguous.
// TOGETHER rows (or planes, if PLANES), which are whole words, are a line. An invocation writes the same word
// (or element of 8 bytes) of PARTS lines. A workgroup writes at_once lines side by side, or one of the slices
// of a line.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint PATH = 0u;
layout(constant_id = 2) const uint MODE = 0u;
layout(constant_id = 3) const bool CONTIGUOUS = false;  // rows of the input
layout(constant_id = 4) const uint RANK = 0u;  // dimensions that count rows
layout(constant_id = 5) const uint PARTS = 1u;  // that each invocation writes of a chunk (vectors), or BY_LINES
layout(constant_id = 7) const bool NARROW = false;  // rows are shorter than a vector
layout(constant_id = 9) const bool JOINS = false;  // a vector is a part of one row or two, repeated whole
layout(constant_id = 10) const bool REPEATS = false;  // MODE WRAP without a start, for a driver on the CPU
layout(constant_id = 11) const bool EVEN = false;  // a dense output consists of whole vectors
layout(constant_id = 12) const uint TOGETHER = 1u;
layout(constant_id = 14) const uint LINES = 1u;  // at least the rows (planes) of a workgroup's lines
layout(constant_id = 15) const bool PLANES = false;

const uint ELEMENTS = 0u;
const uint ROWS = 1u;
const uint DENSE = 2u;
const uint CHUNKS = 3u;
const uint RUNS = 4u;
const uint BY_LINES = 5u;

layout(push_constant) uniform Push {
    uint x_offset;
    uint y_offset;
    uint params_offset;
    uint rows;
    uint value[2];
    uint per_row[3];  // invocations; then multiplier and shift to divide by them
    uint border;  // vectors that a border of a chunk may touch, ...
    uint borders;  // ... times those of a chunk
    uint line_words[3];  // of a line; then multiplier and shift
    uint at_once;
    uint slices;
    uint run;
};
#include "include/grid.glsl"
#include "include/vectors.glsl"
#include "include/walk.glsl"
#include "include/padding.glsl"
#define RUN_BYTES BYTES
#include "include/runs.glsl"

#define VALUE uvec2(value[0], value[1])

struct Row {
    uint from;
    uint to;
    bool outside;
};

// The place of a row, or of a plane if the dimension of ``within`` = 1 is a part of it.
Row place_of(uint row, uint within) {
    Row result = Row(x_offset, y_offset, false);
    uint d = within * WORDS;
    [[unroll]] for (uint i = within; i < RANK; ++i) {
        d += WORDS;
        uint next = i + 1u == RANK ? 0u : walk_quotient(row, param(d + MULTIPLIER), param(d + SHIFT));
        uint coordinate = row - next * param(d + SIZE);
        uint at = source(d, coordinate);
        if (MODE == CONSTANT) result.outside = result.outside || at >= param(d + SOURCE);
        result.from += at * param(d + IN_STRIDE);
        result.to += coordinate * param(d + OUT_STRIDE);
        row = next;
    }
    return result;
}

Row row_at(uint row) { return place_of(row, 0u); }

uvec2 element(Row row, uint column) {
    uint at = source(0u, column);
    if (MODE == CONSTANT && (row.outside || at >= param(SOURCE))) return VALUE;
    return x_bits(row.from + at * param(IN_STRIDE));
}

void put_vector(uint to, uint have, uvec4 vector) {
    if (EVEN) y_vectors[to / PER_VECTOR] = vector;
    else store_vector(to, have, vector);
}

// ``have`` elements from ``column`` of a row on. They lie in one vector of the output.
void make_part(uint to, uint have, uint number, uint column, Row row) {
    uint width = param(SIZE), size = param(SOURCE);
    if (JOINS) {
        uint at = source(0u, column), count = min(size - at, have), end = at + count;
        uint begin = end >= PER_VECTOR ? end - PER_VECTOR : 0u;
        uvec4 vector = load_words(row.from + begin), after = uvec4(0u);
        if (count < have) {
            if (column + count == width) row = row_at(number + 1u);
            after = load_words(row.from);
        }
        vector = run_joined(vector, after, (at - begin) * BYTES);
        put_vector(to, have, vector);
        return;
    }
    if (!NARROW && have == PER_VECTOR && column + have <= width) {
        uint at = MODE == WRAP ? source(0u, column) : column - param(START);
        bool filled = row.outside;
        if (MODE == CONSTANT)
            filled = filled || at >= size && (at <= 0u - have || column >= param(START));
        if (MODE == CONSTANT && filled) {
            y_vectors[to / PER_VECTOR] = filled_vector(VALUE);
            return;
        }
        if (CONTIGUOUS && at < size && size - at >= have) {
            y_vectors[to / PER_VECTOR] = load_vector(row.from + at);
            return;
        }
    }
    Row next = row;
    if (!NARROW && have > width - column) next = row_at(number + 1u);
    uvec4 vector = uvec4(0u);
    uint begin = MODE == WRAP ? source(0u, 0u) : 0u, repeated = MODE == WRAP ? source(0u, column) : 0u;
    [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e) {
        if (e < have) {
            if (column == width) {
                column = 0u;
                repeated = begin;
                number += 1u;
                row = next;
                if (NARROW) row = row_at(number);
            }
            if (MODE == WRAP) {
                set_element(vector, e, x_bits(row.from + repeated * param(IN_STRIDE)));
                repeated = repeated + 1u == size ? 0u : repeated + 1u;
            } else {
                set_element(vector, e, element(row, column));
            }
            column += 1u;
        }
    }
    put_vector(to, have, vector);
}

// A vector of the dense output.
void make_vector(uint number) {
    uint width = param(SIZE);
    uint first = max(number * PER_VECTOR, y_offset);
    uint last = min((number + 1u) * PER_VECTOR, y_offset + rows * width);
    if (first >= last) return;
    uint at = first - y_offset;
    uint row = RANK == 0u ? 0u : walk_quotient(at, param(MULTIPLIER), param(SHIFT));
    make_part(first, last - first, row, at - row * width, row_at(row));
}

// The same, where all of it is a part of a row of the input.
void copy_inside(uint number) {
    uint width = param(SIZE), size = param(SOURCE), at = number * PER_VECTOR - y_offset;
    uint total = rows * width;
    if (at >= total || total - at < PER_VECTOR) return;
    uint row = RANK == 0u ? 0u : walk_quotient(at, param(MULTIPLIER), param(SHIFT));
    uint column = at - row * width - param(START);
    if (column >= size || size - column < PER_VECTOR) return;
    Row place = row_at(row);
    uvec4 vector;
    if (MODE == CONSTANT && place.outside) vector = filled_vector(VALUE);
    else vector = load_vector(place.from + column);
    y_vectors[number] = vector;
}

// Borders lie around the places where rows meet, and at both ends of the output.
void make_chunk() {
    uint width = param(SIZE), start = param(START), end = width - param(SOURCE) - start;
    uint per_chunk = gl_WorkGroupSize.x * PARTS;
    uint chunk = y_offset / PER_VECTOR + group_index() * per_chunk;
    [[unroll]] for (uint p = 0u; p < PARTS; ++p)
        copy_inside(chunk + p * gl_WorkGroupSize.x + gl_LocalInvocationID.x);
    uint before = y_offset + start, at = chunk * PER_VECTOR;
    uint first = at <= before || RANK == 0u ? 0u
        : walk_quotient(at - before, param(MULTIPLIER), param(SHIFT));
    for (uint i = gl_LocalInvocationID.x; i < borders; i += gl_WorkGroupSize.x) {
        uint row = first + i / border;
        if (row > rows) break;
        uint meets = y_offset + row * width;
        uint number = (row == 0u ? meets : meets - end) / PER_VECTOR + i % border;
        uint last = row == rows ? meets : meets + start;
        if (number - chunk < per_chunk && number * PER_VECTOR < last) make_vector(number);
    }
}

const uint NOWHERE = 0xFFFFFFFFu;
shared uint line_from[LINES];  // where the input's rows (planes) begin; NOWHERE where all is the value

// What is the same for a word of all lines is found out once: where its elements come from.
void make_lines() {
    uint lines = at_once * PARTS;  // of the workgroup
    uint width = param(SIZE), height = PLANES ? param(WORDS + SIZE) : 1u, slice = group_index() % slices;
    uint first = group_index() / slices * lines, planes = rows / height, total = planes / TOGETHER;
    if (first >= total) return;
    for (uint i = gl_LocalInvocationID.x; i < lines * TOGETHER; i += gl_WorkGroupSize.x) {
        Row row = place_of(min(first * TOGETHER + i, planes - 1u), PLANES ? 1u : 0u);
        line_from[i] = MODE == CONSTANT && row.outside ? NOWHERE : row.from;
    }
    barrier();
    uint lane = slice * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint line = line_words[0] == 1u ? lane : walk_quotient(lane, line_words[1], line_words[2]);
    uint word = lane - line * line_words[0];
    if (line >= at_once) return;
    uint at[PER_WORD];
    uint from[PER_WORD];
    bool outside[PER_WORD];
    [[unroll]] for (uint e = 0u; e < PER_WORD; ++e) {
        uint place = word * PER_WORD + e;
        bool one_row = TOGETHER == 1u && !PLANES;
        uint row = one_row ? 0u : width == 1u ? place : walk_quotient(place, param(MULTIPLIER), param(SHIFT));
        uint column = source(0u, place - row * width);
        outside[e] = MODE == CONSTANT && column >= param(SOURCE);
        at[e] = column * param(IN_STRIDE);
        from[e] = line * TOGETHER + row;
        if (PLANES) {
            uint plane = TOGETHER == 1u ? 0u : row / height, own = source(WORDS, row - plane * height);
            outside[e] = outside[e] || MODE == CONSTANT && own >= param(WORDS + SOURCE);
            at[e] += own * param(WORDS + IN_STRIDE);
            from[e] = line * TOGETHER + plane;
        }
    }
    uvec2 made[PARTS];
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        made[p] = uvec2(0u);
        [[unroll]] for (uint e = 0u; e < PER_WORD; ++e) {
            uint begin = line_from[from[e] + p * at_once * TOGETHER];
            bool nowhere = MODE == CONSTANT && (outside[e] || begin == NOWHERE);
            uint element = nowhere ? x_offset : begin + at[e];
            if (BYTES < 4u) {
                const uint bits = 8u * BYTES;
                uint found = nowhere ? value[0] : x_words[element / PER_WORD] >> (element * bits & 31u);
                made[p].x |= (e + 1u < PER_WORD ? found & (1u << bits % 32u) - 1u : found) << e * bits;
            } else {
                made[p] = x_bits(element);
                if (nowhere) made[p] = VALUE;
            }
        }
    }
    [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
        uint number = first + line + p * at_once;
        if (number >= total) return;
        uint to = y_offset / PER_WORD + number * line_words[0] + word;
        if (BYTES == 8u) {
            y_words[2u * to] = made[p].x;
            y_words[2u * to + 1u] = made[p].y;
        } else {
            y_words[to] = made[p].x;
        }
    }
}

void make_run(uint number, uint part) {
    Row row = row_at(number);
    uint begin = (row.to / PER_VECTOR + part * run) * PER_VECTOR;
    uint to = max(begin, row.to), last = min(begin + run * PER_VECTOR, row.to + param(SIZE));
    uint start = row.to + param(START), size = param(SOURCE);
    while (to < last) {
        uint at = MODE == WRAP ? source(0u, to - row.to) : to - start;
        while (MODE != WRAP && to < last && (at >= size || row.outside)) {
            y_store_bits(to, element(row, to - row.to));
            ++to;
            ++at;
        }
        uint have = min(size - at, last - to);
        if (to < last) copy_run(row.from + at, to, have);
        to += have;
    }
}

void main() {
    uint index = invocation_index();
    if (PATH == RUNS) {
        uint number = index / per_row[0];
        if (number < rows) make_run(number, index - number * per_row[0]);
        return;
    }
    // A row of one element is the only row: walk_quotient divides by 2 at least.
    uint number = RANK == 0u ? 0u : walk_quotient(index, per_row[1], per_row[2]);
    uint part = index - number * per_row[0];
    uint width = param(SIZE);
    if (PATH == DENSE) {
        make_vector(y_offset / PER_VECTOR + index);
        return;
    }
    if (PATH == BY_LINES) {
        make_lines();
        return;
    }
    if (PATH == CHUNKS) {
        make_chunk();
        return;
    }
    if (number >= rows) return;
    Row row = row_at(number);
    if (PATH == ROWS) {
        uint first = max((row.to / PER_VECTOR + part) * PER_VECTOR, row.to);
        uint last = min((row.to / PER_VECTOR + part + 1u) * PER_VECTOR, row.to + width);
        if (first < last) make_part(first, last - first, number, first - row.to, row);
    } else if (part < width) {
        y_store_bits(row.to + part * param(OUT_STRIDE), element(row, part));
    }
}
