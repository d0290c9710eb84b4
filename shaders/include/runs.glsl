// Copies runs of elements that are contiguous in x and in y. A driver on the CPU takes as long for a word
// as for a vector, and long for what an invocation works out beforehand. So an invocation should copy many
// vectors. The includer declares x and y (include/bits.glsl), whose elements have RUN_BYTES bytes.
const uint RUN_EACH = 16u / RUN_BYTES;

// The 16 bytes that follow the first ``bytes`` bytes of ``low``. ``high`` comes after ``low``.
uvec4 run_joined(uvec4 low, uvec4 high, uint bytes) {
    bool one = (bytes & 4u) != 0u, two = (bytes & 8u) != 0u;
    uvec4 a = two ? uvec4(low.zw, high.xy) : low;
    uvec2 b = two ? high.zw : high.xy;
    uvec4 next = uvec4(a.yzw, b.x);
    uvec4 words = one ? next : a;
    if (RUN_BYTES >= 4u) return words;
    uvec4 after = one ? uvec4(a.zw, b) : next;
    uint shift = bytes % 4u * 8u;
    return words >> shift | after << 1u << 31u - shift;
}

// A word of y that has elements from ``first`` to before ``last``. That which goes to ``first`` is element
// ``from`` of x.
void copy_run_word(uint word, uint from, uint first, uint last) {
    if (RUN_BYTES >= 4u) {
        const uint words = RUN_BYTES < 4u ? 1u : RUN_BYTES / 4u;  // of an element
        uint e = word / words;
        if (e >= first && e < last) y_words[word] = x_words[(from + (e - first)) * words + word % words];
        return;
    }
    const uint each = RUN_BYTES < 4u ? 4u / RUN_BYTES : 1u, bits = 8u * RUN_BYTES;
    uint begin = max(word * each, first), end = min(word * each + each, last);
    if (begin >= end) return;
    uint at = from + (begin - first), shift = at % each * bits;
    // Both may be the same. Then what the second one adds lies behind the elements.
    uint low = x_words[at / each], high = x_words[(at + (end - begin) - 1u) / each];
    uint made = low >> shift | high << 1u << 31u - shift;
    if (end - begin == each) {
        y_words[word] = made;
    } else {
        uint to = begin % each * bits, mask = (1u << (end - begin) * bits) - 1u << to;
        atomicXor(y_words[word], (y_words[word] ^ made << to) & mask);  // no other invocation changes them
    }
}

void copy_run(uint from, uint to, uint count) {
    uint first = to / RUN_EACH, last = (to + count - 1u) / RUN_EACH;
    if (last - first > 1u) {
        uint begin = from + ((first + 1u) * RUN_EACH - to);
        uint x = begin / RUN_EACH, y = first + 1u, bytes = begin % RUN_EACH * RUN_BYTES;
        uvec4 low = x_vectors[x];
        // What comes after the last vector's words may lie behind the tensor.
        for (; y + 1u < last; ++y) {
            uvec4 high = x_vectors[++x];
            y_vectors[y] = run_joined(low, high, bytes);
            low = high;
        }
        uint word = x * 4u + bytes / 4u;
        uvec4 words = uvec4(x_words[word], x_words[word + 1u], x_words[word + 2u], x_words[word + 3u]);
        uint next = RUN_BYTES < 4u && bytes % 4u != 0u ? x_words[word + 4u] : 0u;
        y_vectors[y] = run_joined(words, uvec4(next, 0u, 0u, 0u), bytes % 4u);
    }
    [[unroll]] for (uint w = 0u; w < 4u; ++w) copy_run_word(4u * first + w, from, to, to + count);
    if (first == last) return;
    [[unroll]] for (uint w = 0u; w < 4u; ++w) copy_run_word(4u * last + w, from, to, to + count);
}

// Of a row of ``size`` elements that begins at ``to``: those that lie in vectors of the output from number
// ``part * length`` on, of which there are ``length``. There may be none.
void copy_row_run(uint from, uint to, uint size, uint part, uint length) {
    uint begin = (to / RUN_EACH + part * length) * RUN_EACH;
    uint first = max(begin, to), last = min(begin + length * RUN_EACH, to + size);
    if (first < last) copy_run(from + (first - to), first, last - first);
}
