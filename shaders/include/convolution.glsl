// The places of a convolution's output positions and filter taps. Words of the params buffer, which
// operators/convolution/geometry.py writes:
//   multiplier and shift of the input channels, then of each axis (z, y, x):
//   input size, input step, input step of a tap, filter step of a tap (of the filter's elements),
//   output size, output step, input stride, output stride, phases, positions, and where the phases'
//   words are.
// A phase consists of the output positions that use the same taps: all positions of a forward
// convolution, every stride-th position of a transposed one. Its words: the first tap's place in the
// filter (in elements), the number of taps, multiplier and shift of it, and the first tap's place in
// the input. The includer has push fields batches, in_channels, x_strides, w_strides, y_strides,
// x_offset and y_offset, and CHANNELS_INNER. With CONTIGUOUS_CHANNELS it needs no w_strides[2].
const uint NOWHERE = 0xFFFFFFFFu;
const uint AXIS_AT = 2u, AXIS_WORDS = 11u;

uint axis_word(uint axis, uint i) {
    return param(AXIS_AT + axis * AXIS_WORDS + i);
}

// The phase of a workgroup.
struct Taps {
    uint phases;  // of all axes
    uvec3 phase;
    uvec3 filter_first;
    uvec3 count;
    uvec3 multiplier;
    uvec3 shift;
    ivec3 input_first;
};

Taps taps_of(uint number) {
    Taps t;
    t.phases = 1u;
    [[unroll]] for (int a = 2; a >= 0; --a) {
        uint phases = axis_word(a, 8u);
        t.phases *= phases;
        t.phase[a] = number % phases;
        number /= phases;
        uint at = axis_word(a, 10u) + 5u * t.phase[a];
        t.filter_first[a] = param(at);
        t.count[a] = param(at + 1u);
        t.multiplier[a] = param(at + 2u);
        t.shift[a] = param(at + 3u);
        t.input_first[a] = int(param(at + 4u));
    }
    return t;
}

// The first tap of output position ``row`` in the input: the element and its coordinates. For a row that
// does not exist, no tap is inside the input. ``to``: the element of the output.
ivec4 input_row(Taps t, uint row, uint group, out uint to) {
    ivec3 at;
    uint from = x_offset + group * in_channels * x_strides[1];
    bool exists = true;
    to = y_offset;
    [[unroll]] for (int a = 2; a >= 0; --a) {
        uint positions = axis_word(a, 9u), next = row / positions;
        uint position = row - next * positions;
        row = next;
        at[a] = int(position * axis_word(a, 1u)) + t.input_first[a];
        from += uint(at[a]) * axis_word(a, 6u);
        uint place = t.phase[a] + position * axis_word(a, 5u);
        exists = exists && place < axis_word(a, 4u);
        to += place * axis_word(a, 7u);
    }
    exists = exists && row < batches;
    from += row * x_strides[0];
    to = exists ? to + row * y_strides[1] : NOWHERE;
    if (!exists) at = ivec3(0x80000000);
    return ivec4(from, at);
}

uint quotient(uint n, uint divisor, uint multiplier, uint shift) {
    return divisor == 1u ? n : walk_quotient(n, multiplier, shift);
}

#if !defined(CONTIGUOUS_CHANNELS)
// The distance of element ``k`` of K from a row's place, and ``tap``, its place in the filter.
ivec4 input_k(Taps t, uint k, out uint tap) {
    uint channel, taps_left = k;
    if (CHANNELS_INNER) {
        taps_left = quotient(k, in_channels, param(0u), param(1u));
        channel = k - taps_left * in_channels;
    }
    uvec3 at;
    [[unroll]] for (int a = 2; a >= 0; --a) {
        if (a == 0 && CHANNELS_INNER) {
            at[a] = taps_left;
        } else {
            uint next = quotient(taps_left, t.count[a], t.multiplier[a], t.shift[a]);
            at[a] = taps_left - next * t.count[a];
            taps_left = next;
        }
    }
    if (!CHANNELS_INNER) channel = taps_left;
    uint from = channel * x_strides[1];
    tap = channel * w_strides[2];
    ivec3 added;
    [[unroll]] for (int a = 0; a < 3; ++a) {
        added[a] = int(at[a] * axis_word(a, 2u));
        from += uint(added[a]) * axis_word(a, 6u);
        tap += t.filter_first[a] + at[a] * axis_word(a, 3u);
    }
    return ivec4(from, added);
}
#endif
