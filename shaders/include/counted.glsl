// float counted(start, window, axis): the elements of a window of an average that count, along an axis.
float counted(int start, int window, int axis) {
    if (INCLUDE_PADDING) return float(min(window, padded_ends[axis] - start));
    return float(max(min(start + window, x_sizes[axis]) - max(start, 0), 0));
}
