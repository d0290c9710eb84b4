// The dimensions of a padded tensor, in words that operators/movement.py writes. The includer defines MODE,
// REPEATS, walk_quotient, and param, which reads a word.
const uint CONSTANT = 0u;
const uint EDGE = 1u;
const uint REFLECTION = 2u;
const uint SYMMETRIC = 3u;
const uint WRAP = 4u;

// Words of a dimension. The row's own dimension comes first, then the others from the last to the first.
const uint SIZE = 0u;
const uint MULTIPLIER = 1u;
const uint SHIFT = 2u;
const uint START = 3u;
const uint SOURCE = 4u;  // the input's size
const uint PERIOD = 5u;  // then multiplier and shift
const uint IN_STRIDE = 8u;
const uint OUT_STRIDE = 9u;
const uint WORDS = 10u;

uint in_period(uint n, uint d) {
    uint period = param(d + PERIOD);
    if (period == 1u) return 0u;
    return n - walk_quotient(n, param(d + PERIOD + 1u), param(d + PERIOD + 2u)) * period;
}

// The input's coordinate of a coordinate of the output. Outside in mode CONSTANT, it is not below the
// input's size.
uint source(uint d, uint coordinate) {
    if (REPEATS) return in_period(coordinate, d);
    uint start = param(d + START), size = param(d + SOURCE);
    uint at = coordinate - start;
    if (at < size || MODE == CONSTANT) return at;
    if (MODE == EDGE) return coordinate < start ? 0u : size - 1u;
    uint period = param(d + PERIOD), back = MODE == SYMMETRIC ? 1u : 0u;
    if (MODE != WRAP) {
        uint mirrored = (coordinate < start ? start - coordinate : period - at) - back;
        if (mirrored < size) return mirrored;
    }
    bool after = coordinate >= start;
    at = in_period(after ? at : start - coordinate - 1u, d);
    if (!after) at = period - 1u - at;
    return at < size ? at : period - back - at;
}
