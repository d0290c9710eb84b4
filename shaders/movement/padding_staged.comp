//@ op DML_OPERATOR_PADDING DML_OPERATOR_PADDING1 DML_OPERATOR_TILE
//@ variants T: b8 b16
//@ unchecked b8
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Padding of rows, or planes, that lie one after another in the input and in the output. In each of its
// TURNS, a workgroup keeps what turn_rows rows of the output read in shared memory, so that each word of the
// input is read once. What the next turn needs is read before the output of a turn is written. TOGETHER
// rows, which are whole words, are a line. An invocation writes the same word of PARTS lines, so that it
// finds out once in which columns the elements lie. at_once lines are written side by side.
layout(constant_id = 1) const uint MODE = 0u;
layout(constant_id = 2) const bool PLANES = false;  // rows are padded, too
layout(constant_id = 3) const bool WIDE = false;  // the input is read by vectors
layout(constant_id = 4) const bool WHOLE = false;  // rows of the input are whole words
layout(constant_id = 5) const uint TOGETHER = 1u;
layout(constant_id = 7) const uint PARTS = 1u;
layout(constant_id = 8) const uint ENTRIES = 1u;  // at least the rows of at_once * PARTS lines
layout(constant_id = 9) const uint READS = 1u;  // of an invocation in a turn, of vectors or words
layout(constant_id = 10) const uint STAGED = 4u;  // at least the words that a turn reads
layout(constant_id = 11) const uint TURNS = 1u;
layout(constant_id = 12) const bool EXACT = false;  // each turn writes at_once * PARTS lines

layout(push_constant) uniform Push {
    uint x_offset;
    uint y_offset;
    uint value;
    uint read;  // elements of the input that a workgroup reads in a turn
    uint total;  // elements of the input
    uint lines;  // of the output
    uint line_words[3];  // then multiplier and shift
    uint turn_rows;
    uint at_once;
    uint dimensions[20];  // of columns, then of rows
};
#include "include/grid.glsl"
#include "include/vectors.glsl"
#include "include/quotient.glsl"
const bool REPEATS = false;
uint param(uint i) { return dimensions[i]; }
#include "include/padding.glsl"

const uint NOWHERE = 0xFFFFFFFFu;
const uint BITS = 8u * BYTES;

shared uint staged[STAGED];
// Where the sources of rows begin in shared memory, in words if WHOLE, else in elements. NOWHERE where all
// is the value.
shared uint begins[ENTRIES];

uvec4 got[READS];
uint got_words[READS];

void fetch(uint turn) {
    uint done = turn * read, have = min(total - done, read), from = x_offset + done;
    uint lane = gl_LocalInvocationID.x;
    uint per = WIDE ? PER_VECTOR : PER_WORD, skew = WIDE || WHOLE ? 0u : from % PER_WORD;
    uint last = (skew + have + per - 1u) / per - 1u;
    [[unroll]] for (uint i = 0u; i < READS; ++i) {
        uint at = from / per + min(lane + i * gl_WorkGroupSize.x, last);
        if (WIDE) got[i] = x_vectors[at];
        else got_words[i] = x_words[at];
    }
}

void stage() {
    [[unroll]] for (uint i = 0u; i < READS; ++i) {
        uint at = gl_LocalInvocationID.x + i * gl_WorkGroupSize.x;
        if (at >= (WIDE ? STAGED / 4u : STAGED)) continue;
        if (WIDE) {
            [[unroll]] for (uint w = 0u; w < 4u; ++w) staged[4u * at + w] = got[i][w];
        } else {
            staged[at] = got_words[i];
        }
    }
}

void find_begins(uint skew) {
    uint row_size = WHOLE ? param(SOURCE) / PER_WORD : param(SOURCE);
    uint entries = at_once * PARTS * TOGETHER;
    for (uint i = gl_LocalInvocationID.x; i < entries; i += gl_WorkGroupSize.x) {
        uint row = min(i, turn_rows - 1u);
        if (PLANES) {
            uint plane = walk_quotient(row, param(WORDS + MULTIPLIER), param(WORDS + SHIFT));
            uint at = source(WORDS, row - plane * param(WORDS + SIZE)), height = param(WORDS + SOURCE);
            row = MODE == CONSTANT && at >= height ? NOWHERE : plane * height + at;
        }
        begins[i] = row == NOWHERE ? NOWHERE : skew + row * row_size;
    }
}

void main() {
    uint first = group_index() * TURNS, turn_lines = turn_rows / TOGETHER;
    if (first * turn_lines >= lines) return;
    fetch(first);
    find_begins(WHOLE ? 0u : (x_offset + first * read) % PER_WORD);

    uint lane = gl_LocalInvocationID.x;
    uint line = line_words[0] == 1u ? lane : walk_quotient(lane, line_words[1], line_words[2]);
    uint word = lane - line * line_words[0];
    // Of each element of the word: its row of the line, its column of the input.
    uint row_of[PER_WORD], column_of[PER_WORD];
    bool outside[PER_WORD];
    [[unroll]] for (uint e = 0u; e < PER_WORD; ++e) {
        uint place = word * PER_WORD + e;
        row_of[e] = TOGETHER == 1u ? 0u : walk_quotient(place, param(MULTIPLIER), param(SHIFT));
        uint column = source(0u, place - row_of[e] * param(SIZE));
        outside[e] = MODE == CONSTANT && column >= param(SOURCE);
        column_of[e] = outside[e] ? 0u : column;
    }

    [[unroll]] for (uint t = 0u; t < TURNS; ++t) {
        uint turn = first + t;
        if (turn * turn_lines >= lines) break;
        if (t > 0u) barrier();
        stage();
        barrier();
        if (t + 1u < TURNS && (turn + 1u) * turn_lines < lines) fetch(turn + 1u);
        uint have = min(lines - turn * turn_lines, turn_lines);
        uint to = y_offset / PER_WORD + (turn * turn_lines + line) * line_words[0] + word;
        if (line < at_once) [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
            uint number = line + p * at_once, row = number * TOGETHER;
            // A word is of one row or two.
            uint begin = begins[row + row_of[0]], next = begin;
            if (TOGETHER > 1u) next = begins[row + row_of[PER_WORD - 1u]];
            uint made = 0u;
            [[unroll]] for (uint e = 0u; e < PER_WORD; ++e) {
                uint from = TOGETHER == 1u || row_of[e] == row_of[0] ? begin : next;
                bool nowhere = MODE == CONSTANT && (outside[e] || from == NOWHERE);
                if (MODE == CONSTANT && from == NOWHERE) from = 0u;
                uint at = WHOLE ? column_of[e] : from + column_of[e];
                uint bits = staged[at / PER_WORD + (WHOLE ? from : 0u)] >> (at * BITS & 31u);
                if (nowhere) bits = value;
                if (e + 1u < PER_WORD) bits &= (1u << BITS) - 1u;
                made |= bits << e * BITS;
            }
            if (!EXACT && number >= have) continue;
            y_words[to + p * at_once * line_words[0]] = made;
        }
    }
}
