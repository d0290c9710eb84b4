//@ op DML_OPERATOR_PADDING DML_OPERATOR_PADDING1 DML_OPERATOR_TILE
//@ variants T: b8 b16 b32 b64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Rows of the output, which begin at a source coordinate of -start in each dimension. MODE says what
// lies outside of the input. DENSE: all of the output lies gapless; LINES: its rows do. An invocation
// makes what falls into one vector of output. ELEMENTS: it makes one element.
#define PARAMS_BINDING 2
layout(constant_id = 1) const uint PATH = 0u;
layout(constant_id = 2) const uint MODE = 0u;
layout(constant_id = 3) const bool GAPLESS = false;  // rows of the input
layout(constant_id = 4) const uint RANK = 0u;  // dimensions that count rows

const uint ELEMENTS = 0u;
const uint LINES = 1u;
const uint DENSE = 2u;
const uint CONSTANT = 0u;
const uint EDGE = 1u;
const uint REFLECTION = 2u;
const uint WRAP = 4u;

layout(push_constant) uniform Push {
    uint x_offset;
    uint y_offset;
    uint params_offset;
    uint rows;
    uint value[2];
    uint per_row[3];  // invocations: a number, and what divides by it
};
#include "include/grid.glsl"
#include "include/vectors.glsl"
#include "include/walk.glsl"

#if defined(T_b64)
#define VALUE uvec2(value[0], value[1])
#else
#define VALUE value[0]
#endif

// Words of a dimension, the row's own first, then from the last to the first.
const uint SIZE = 0u;
const uint MULTIPLIER = 1u;
const uint SHIFT = 2u;
const uint START = 3u;
const uint SOURCE = 4u;  // the input's size
const uint PERIOD = 5u;
const uint IN_STRIDE = 6u;
const uint OUT_STRIDE = 7u;
const uint WORDS = 8u;

// Which coordinate of the input an output's takes; outside of a CONSTANT's, not below its size.
uint source(uint d, uint coordinate) {
    uint start = param(d + START), size = param(d + SOURCE);
    uint at = coordinate - start;
    if (at < size || MODE == CONSTANT) return at;
    if (MODE == EDGE) return coordinate < start ? 0u : size - 1u;
    uint period = param(d + PERIOD);
    at = coordinate >= start ? at % period : period - 1u - (start - coordinate - 1u) % period;
    if (at < size) return at;
    return (MODE == REFLECTION ? period : period - 1u) - at;
}

struct Row {
    uint from;
    uint to;
    bool outside;
};

Row row_at(uint row) {
    Row result = Row(x_offset, y_offset, false);
    uint d = 0u;
    [[unroll]] for (uint i = 0u; i < RANK; ++i) {
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

ELEMENT element(Row row, uint column) {
    uint at = source(0u, column);
    if (MODE == CONSTANT && (row.outside || at >= param(SOURCE))) return VALUE;
    return LOAD_ELEMENT(in_words, row.from + at * param(IN_STRIDE));
}

// ``have`` elements from ``column`` of a row on, which lie in one vector of output.
void make_part(uint to, uint have, uint number, uint column, Row row) {
    uint width = param(SIZE), size = param(SOURCE);
    if (have == PER_VECTOR && column + have <= width) {
        uint at = MODE == WRAP ? source(0u, column) : column - param(START);
        bool filled = row.outside;
        if (MODE == CONSTANT)
            filled = filled || at >= size && (at <= 0u - have || column >= param(START));
        if (MODE == CONSTANT && filled) {
            out_vectors[to / PER_VECTOR] = filled_vector(VALUE);
            return;
        }
        if (GAPLESS && at < size && size - at >= have) {
            out_vectors[to / PER_VECTOR] = load_vector(row.from + at);
            return;
        }
    }
    uvec4 vector = uvec4(0u);
    [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e) {
        if (e < have) {
            if (column == width) {
                column = 0u;
                number += 1u;
                row = row_at(number);
            }
            set_element(vector, e, element(row, column));
            column += 1u;
        }
    }
    store_vector(to, have, vector);
}

void main() {
    uint index = invocation_index();
    // A row of one element comes alone.
    uint number = RANK == 0u ? 0u : walk_quotient(index, per_row[1], per_row[2]);
    uint part = index - number * per_row[0];
    uint width = param(SIZE);
    if (PATH == DENSE) {
        uint first = max((y_offset / PER_VECTOR + index) * PER_VECTOR, y_offset);
        uint last = min((y_offset / PER_VECTOR + index + 1u) * PER_VECTOR,
                        y_offset + rows * width);
        if (first >= last) return;
        uint at = first - y_offset;
        number = RANK == 0u ? 0u : walk_quotient(at, param(MULTIPLIER), param(SHIFT));
        make_part(first, last - first, number, at - number * width, row_at(number));
        return;
    }
    if (number >= rows) return;
    Row row = row_at(number);
    if (PATH == LINES) {
        uint first = max((row.to / PER_VECTOR + part) * PER_VECTOR, row.to);
        uint last = min((row.to / PER_VECTOR + part + 1u) * PER_VECTOR, row.to + width);
        if (first < last) make_part(first, last - first, number, first - row.to, row);
    } else if (part < width) {
        STORE_ELEMENT(out_words, row.to + part * param(OUT_STRIDE), element(row, part));
    }
}
