//@ op DML_OPERATOR_CONVOLUTION
//@ tail *
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Depthwise convolutions of tensors whose rows are whole chunks, with filters that have no dilation. An
// invocation computes COLUMNS columns of ROWS rows of one channel, from above to below. It keeps the sums of
// all rows whose windows have begun, so it reads and converts each row of the input once. A window of rows is
// on its way.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool HAS_BIAS = false;
layout(constant_id = 3) const uint TAPS_Y = 3u;
layout(constant_id = 4) const uint TAPS_X = 3u;
layout(constant_id = 5) const uint STRIDE_Y = 1u;
layout(constant_id = 6) const uint STRIDE_X = 1u;
layout(constant_id = 7) const uint COLUMNS = 4u;    // 1, 2 or 4 whole words of the output
layout(constant_id = 8) const uint ROWS = 7u;
layout(constant_id = 9) const uint WORDS = 4u;      // of a chunk of the input: 1, 2 or 4
layout(constant_id = 10) const uint PHASE = 0u;     // where the first window begins in the first chunk
// Elements, counted from where the first chunk begins, that are inside the image for every invocation: from
// SURE_FROM to before SURE_TO.
layout(constant_id = 11) const uint SURE_FROM = 0u;
layout(constant_id = 12) const uint SURE_TO = 0u;
#include "include/depthwise.glsl"

const uint PER_WORD = 4u / BYTES_OF(TYPE);
const uint SPAN = (COLUMNS - 1u) * STRIDE_X + TAPS_X;
const uint FROM = PHASE / PER_WORD, RAW = (PHASE + SPAN - 1u) / PER_WORD - FROM + 1u;  // words of the windows
const uint KEPT = (TAPS_Y - 1u) / STRIDE_Y + 1u;  // rows of the output whose windows share a row of the input
const uint RING = KEPT * STRIDE_Y;                // rows of the input in registers, each in the place of row % RING

uint from;     // the channel's first element
int last_row;  // that the invocation needs
int left;      // the column where its first chunk begins

// The windows' words of row ``iy``, 0 outside the image.
void read(int iy, out uint raw[RAW]) {
    bool row_inside = uint(iy) < x_sizes[0];
    uint row = from + uint(clamp(iy, 0, last_row)) * x_strides[2];
    [[unroll]] for (uint c = FROM / WORDS * WORDS; c < FROM + RAW; c += WORDS) {
        uint place = uint(left) + c * PER_WORD;  // a chunk is inside the row, or outside
        bool inside = c * PER_WORD >= SURE_FROM && (c + WORDS) * PER_WORD <= SURE_TO || place < x_sizes[1];
        uint word = (row + (inside ? place : 0u)) / PER_WORD;
        bool whole = c >= FROM && c + WORDS <= FROM + RAW;
        uvec4 chunk = uvec4(0u);
        if (WORDS == 4u && whole) chunk = x_vectors[word / 4u];
        else if (WORDS == 2u && whole) chunk.xy = x_pairs[word / 2u];
        [[unroll]] for (uint i = 0u; i < WORDS; ++i) {
            if (c + i < FROM || c + i >= FROM + RAW) continue;
            if (WORDS == 1u || !whole) chunk[i] = x_words[word + i];
            raw[c + i - FROM] = inside && row_inside ? chunk[i] : 0u;
        }
    }
}

// Element ``k`` of the windows' words.
float element(uint raw[RAW], uint k) {
    uint n = PHASE - FROM * PER_WORD + k, word = raw[n / PER_WORD];
    return PER_WORD == 2u ? halves_to_floats(word)[n % 2u] : uintBitsToFloat(word);
}

void main() {
    uint index = invocation_index();
    uint across = (y_sizes[1] - 1u) / COLUMNS + 1u, down = (y_sizes[0] - 1u) / ROWS + 1u;
    uint next = index / across;
    uint ox = (index - next * across) * COLUMNS;
    index = next / down;
    uint oy = (next - index * down) * ROWS;
    uint batch = index / channels, channel = index - batch * channels;
    if (batch >= batches) return;

    uint rows = min(ROWS, y_sizes[0] - oy);
    int top = int(oy * STRIDE_Y) - padding[0];
    last_row = clamp(top + int((rows - 1u) * STRIDE_Y + TAPS_Y) - 1, 0, int(x_sizes[0]) - 1);
    left = int(ox * STRIDE_X) - padding[1] - int(PHASE);
    from = x_offset + batch * x_strides[0] + channel * x_strides[1];
    uint ring[RING][RAW];
    [[unroll]] for (uint r = 0u; r + 1u < RING; ++r) read(top + int(r), ring[r]);

    float taps[TAPS_Y * TAPS_X];
    [[unroll]] for (uint tap = 0u; tap < TAPS_Y * TAPS_X; ++tap)
        taps[tap] = filter_at(channel, tap / TAPS_X, tap % TAPS_X);
    float added = bias_at(channel);

    float sums[KEPT][COLUMNS];  // of a row of the output in the place of row % KEPT
    [[unroll]] for (uint j = 0u; j < KEPT; ++j)
        [[unroll]] for (uint p = 0u; p < COLUMNS; ++p) sums[j][p] = 0.0;
    uint to = y_offset + batch * y_strides[0] + channel * y_strides[1] + oy * y_strides[2] + ox;
    // A turn ends where it began in the ring and in the sums, so that all places are constants.
    for (uint begin = 0u; begin < rows + KEPT - 1u; begin += KEPT) {
        [[unroll]] for (uint s = 0u; s < KEPT; ++s) {
            [[unroll]] for (uint v = 0u; v < STRIDE_Y; ++v) {
                uint r = s * STRIDE_Y + v;
                read(top + int(begin * STRIDE_Y + r + RING - 1u), ring[(r + RING - 1u) % RING]);
                [[unroll]] for (uint k = 0u; k < SPAN; ++k) {
                    float x = element(ring[r], k);
                    [[unroll]] for (uint p = 0u; p < COLUMNS; ++p) {
                        if (k < p * STRIDE_X || k - p * STRIDE_X >= TAPS_X) continue;
                        [[unroll]] for (uint j = 0u; j < KEPT; ++j) {  // the row that began j rows above
                            uint ky = j * STRIDE_Y + v;
                            if (ky < TAPS_Y)
                                sums[(s + KEPT - j) % KEPT][p] += taps[ky * TAPS_X + k - p * STRIDE_X] * x;
                        }
                    }
                }
            }
            uint done = begin + s - (KEPT - 1u), slot = (s + 1u) % KEPT;
            if (done < rows) {
                uint at = to + done * y_strides[2];
                uvec4 words = uvec4(0u);
                [[unroll]] for (uint p = 0u; p < COLUMNS; p += PER_WORD) {
                    float one = finish(sums[slot][p] + added, at + p - y_offset);
                    if (PER_WORD == 2u)
                        words[p / 2u] = floats_to_halves(
                            one, finish(sums[slot][p + PER_WORD - 1u] + added, at + p + 1u - y_offset));
                    else
                        words[p] = floatBitsToUint(one);
                }
                if (COLUMNS == 4u * PER_WORD) y_vectors[at / COLUMNS] = words;
                else if (COLUMNS == 2u * PER_WORD) y_pairs[at / COLUMNS] = words.xy;
                else y_words[at / COLUMNS] = words.x;
            }
            [[unroll]] for (uint p = 0u; p < COLUMNS; ++p) sums[slot][p] = 0.0;
        }
    }
}
