// What the shaders of planes of floats share. Each invocation computes a block of ROWS x COLUMNS elements of one
// channel, or of a vector of contiguous channels with LAYOUT_last. The includer has the constants TYPE, ROWS and
// COLUMNS, the push constant ``channels``, and includes include/typed.glsl before.
#include "include/planes_vector.glsl"

// Makes a vector of the elements of an array of floats from ``first`` on.
#define PACK(vector, floats, first) \
    [[unroll]] for (uint w = 0u; w < 4u; ++w) \
        vector[w] = HALVES ? floats_to_halves(floats[(first) + (2u * w & VECTOR - 1u)], \
                                              floats[(first) + (2u * w + 1u & VECTOR - 1u)]) \
                           : floatBitsToUint(floats[(first) + w]);

struct Block {
    uint batch;
    uint channel;  // or vector of them
    uint y;        // rows of blocks before it
    uint x;
};

// Block ``index`` of planes of such sizes.
Block block_at(uint index, uint height, uint width) {
    Block block;
#if defined(LAYOUT_last)
    block.channel = index % channels;
    index /= channels;
#endif
    uint across = (width - 1u) / COLUMNS + 1u, down = (height - 1u) / ROWS + 1u;
    uint next = index / across;
    block.x = index - next * across;
    index = next / down;
    block.y = next - index * down;
#if defined(LAYOUT_first)
    next = index / channels;
    block.channel = index - next * channels;
    index = next;
#endif
    block.batch = index;
    return block;
}
