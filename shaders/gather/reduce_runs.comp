//@ op DML_OPERATOR_SCATTER_REDUCE DML_OPERATOR_SCATTER_ND_REDUCE
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Reduces runs of entries with equal keys. An invocation has CHUNK neighbouring entries, of one element of
// the slices. A run that lies inside of its chunk is finished: its place of the output, which holds the
// input, takes the result. What belongs to a run that goes on in a neighbouring chunk becomes one of the two
// entries of the chunk for the next dispatch. So the order of all sums follows from the keys alone.
#define PARAMS_BINDING 7
const uint CHUNK = 32u;
const uint NO_KEY = 0xFFFFFFFFu;
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const uint FUNCTION = 0u;
layout(constant_id = 3) const bool FIRST = true;  // entries are updates, else what a dispatch before made
layout(push_constant) uniform Push {
    uint count;      // of entries
    uint chunks;
    uint slices;     // elements of an update
    uint places;     // keys from here on aim at nothing
    uint places_at;  // where the params have the walks of places ...
    uint slices_at;  // ... and of slices
    uint updates_offset;
    uint numbers_offset;
    uint keys_offset;
    uint values_offset;
    uint y_offset;
    uint made_keys_offset;
    uint made_values_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/combined.glsl"

INPUT_TENSOR(updates, 0, TYPE)
layout(binding = 1) readonly buffer Numbers { uint numbers[]; };  // of the updates, in the keys' order
layout(binding = 2) readonly buffer Keys { uint keys[]; };
layout(binding = 3) readonly buffer Values { uint values[]; };
OUTPUT_TENSOR(y, 4, TYPE)
layout(binding = 5) writeonly buffer MadeKeys { uint made_keys[]; };
layout(binding = 6) writeonly buffer MadeValues { uint made_values[]; };
WALK(walk, 1)
WALK(walk_slices, 2)

const uint WORDS = LONG ? 2u : 1u;

HELD(y, TYPE)

void finish(uint key, uint slice_at, uvec2 value) {
    uint[1] place = walk(places_at, key);
    uint to = y_offset + place[0] + slice_at;
    y_store_bits(to, bits_of_value(combine(value_of(y_held(to)), value)));
}

void store_entry(uint entry, uint s, uint key, uvec2 value) {
    if (s == 0u) made_keys[made_keys_offset + entry] = key;
    uint at = made_values_offset + (entry * slices + s) * WORDS;
    made_values[at] = value.x;
    if (LONG) made_values[at + 1u] = value.y;
}

void main() {
    uint i = invocation_index();
    if (i >= chunks * slices) return;
    uint chunk = i / slices, s = i - chunk * slices;
    uint[2] slice = walk_slices(slices_at, s);
    uint begin = chunk * CHUNK, end = min(begin + CHUNK, count);
    uint key = keys[keys_offset + begin], head_key = NO_KEY, tail_key = NO_KEY;
    bool is_open = begin != 0u && keys[keys_offset + begin - 1u] == key;  // the run began before
    uvec2 run = nothing(), head = run, tail = run;
    for (uint at = begin; at < end; ++at) {
        uint next = keys[keys_offset + at];
        if (next != key) {
            if (is_open) {
                head_key = key;
                head = run;
            } else if (key < places) {
                finish(key, slice[1], run);
            }
            key = next;
            is_open = false;
            run = nothing();
        }
        if (next < places) {
            uvec2 value;
            if (FIRST) {
                uint[1] update = walk(0u, numbers[numbers_offset + at]);
                value = value_of(updates_bits(updates_offset + update[0] + slice[0]));
            } else {
                uint from = values_offset + (at * slices + s) * WORDS;
                value = uvec2(values[from], LONG ? values[from + 1u] : 0u);
            }
            run = combine(run, value);
        }
    }
    if (end < count && keys[keys_offset + end] == key) {
        tail_key = key;
        if (is_open) {  // the whole chunk: the head has it, and nothing follows
            head_key = key;
            head = run;
        } else {
            tail = run;
        }
    } else if (is_open) {
        head_key = key;
        head = run;
    } else if (key < places) {
        finish(key, slice[1], run);
    }
    if (chunks == 1u) return;
    store_entry(2u * chunk, s, head_key, head);
    store_entry(2u * chunk + 1u, s, tail_key, tail);
}
