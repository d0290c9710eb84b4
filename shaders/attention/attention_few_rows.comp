//@ op DML_OPERATOR_MULTIHEAD_ATTENTION DML_OPERATOR_MULTIHEAD_ATTENTION1
//@ variants ROWS: r4 r8
#version 450
#define MAY_BE_BFLOAT16
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Attention of few queries, bound by reading keys and values once. Rows are the queries of all query
// heads that share a key head. A workgroup takes all rows and one part of the keys. It computes scores,
// then their maxima and sums, then the products with values. attention_combine combines the parts.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool RELATIVE = false;
layout(constant_id = 3) const uint MASK = 0u;
layout(constant_id = 4) const bool CAUSAL = false;
layout(constant_id = 5) const uint HEAD_VECTORS = 16u;  // vectors of 16 bytes in a head
layout(constant_id = 6) const uint VALUE_VECTORS = 16u;
#if defined(ROWS_r8)
#define QUADS 2u
#define LOADS 2u  // loads in flight
#define SPAN 256u
#else
#define QUADS 1u
#define LOADS 4u
#define SPAN 512u
#endif
const uint ROWS = 4u * QUADS;
#define ATTENTION_TYPE TYPE
#define OUTPUT_TYPE 36u
#include "include/attention.glsl"

const uint INVOCATIONS = 256u;
const uint EACH = 16u / BYTES_OF(TYPE);
#include "include/attention_rows.glsl"
// Keys at a time. Invocations that are left over do nothing.
const uint K_LINES = INVOCATIONS / HEAD_VECTORS;
const uint V_LINES = INVOCATIONS / VALUE_VECTORS;
const uint PITCH = HEAD_VECTORS + 1u;
shared vec4 s_parts[QUADS][INVOCATIONS * LOADS * 5u / 4u];  // HEAD_VECTORS is at least 4
shared float s_powers[ROWS][SPAN];
shared float s_most[ROWS], s_sum[ROWS];

void main() {
    const uint i = gl_LocalInvocationIndex;
    uint rows = group * queries;
    uint rest = group_index();
    uint part = rest % parts;
    rest /= parts;
    uint head = rest % key_heads, batch = rest / key_heads;
    if (batch >= batches) return;

    uvec4 by_element = ELEMENT_STRIDES, relative_by = RELATIVE_STRIDES, mask_by = MASK_STRIDES;
    uint k_base = k_offset + batch * k_by[0] + head * k_by[1];
    uint v_base = v_offset + batch * v_by[0] + head * v_by[1];
    Seen seen = seen_by(batch, mask_by);
    uint low = seen.low, high = seen.high, past = seen.past;
    uvec2 own_keys = keys_of_part(past, part, 32u);
    uint begin = own_keys.x, end = min(keys, begin + own_keys.y);
    if (CAUSAL) end = min(end, seen_from(past, queries - 1u));
    uint count = end > begin ? end - begin : 0u;
    if (count == 0u) {  // what is combined has a maximum of -infinity
        if (i < rows) {
            uint to = record_of(batch, head, i, part, VALUE_VECTORS * EACH) + VALUE_VECTORS * EACH;
            y_words[to] = 0xFF800000u;
            y_words[to + 1u] = 0u;
        }
        return;
    }

    // Scores: an invocation multiplies a vector of a key by those of all rows. Then sums are added up.
    uint vector = i % HEAD_VECTORS, line = i / HEAD_VECTORS;
    vec4 x[ROWS][2];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r)
        [[unroll]] for (uint n = 0u; n < EACH / 4u; ++n)
            x[r][n] = query_four(batch, head, min(r, rows - 1u), vector * EACH + 4u * n, by_element[0]);
    for (uint first = 0u; first < count; first += K_LINES * LOADS) {
        uvec4 found[LOADS];
        [[unroll]] for (uint n = 0u; n < LOADS; ++n) {
            uint key = begin + min(first + n * K_LINES + line, count - 1u);
            found[n] = k_vectors[(k_base + key * k_by[2]) / EACH + vector];
        }
        barrier();  // the previous parts have been read
        [[unroll]] for (uint n = 0u; n < LOADS; ++n)
            if (line < K_LINES)
                [[unroll]] for (uint quad = 0u; quad < QUADS; ++quad) {
                    vec4 sums = vec4(0.0);
                    [[unroll]] for (uint e = 0u; e < EACH / 4u; ++e) {
                        vec4 four = quarter(found[n], e);
                        [[unroll]] for (uint r = 0u; r < 4u; ++r)
                            sums[r] += dot(x[4u * quad + r][e], four);
                    }
                    s_parts[quad][(n * K_LINES + line) * PITCH + vector] = sums;
                }
        barrier();
        for (uint own = i; own < K_LINES * LOADS * QUADS; own += INVOCATIONS) {
            uint at = own / QUADS, quad = own % QUADS, key = begin + first + at;
            if (first + at >= count) continue;
            vec4 sums = vec4(0.0);
            for (uint n = 0u; n < HEAD_VECTORS; ++n) sums += s_parts[quad][at * PITCH + n];
            [[unroll]] for (uint r = 0u; r < 4u; ++r) {
                uint row = min(4u * quad + r, rows - 1u), position = row % queries;
                uint own_head = head * group + row / queries;
                float score = capped(sums[r] * scale);
                if (RELATIVE)
                    score += relative_float(
                        relative_offset + batch * relative_by.x + own_head * relative_by.y
                        + position * relative_by.z + key * relative_by.w);
                bool kept = key >= low && key < high;
                if (MASK == 4u)
                    kept = mask_words[mask_offset + batch * mask_by.x + own_head * mask_by.y
                                      + position * mask_by.z + key * mask_by.w] != 0u;
                if (!kept) score += filter_value;
                if (CAUSAL && !sees(past, position, key)) score = uintBitsToFloat(0xFF800000u);
                s_powers[4u * quad + r][first + at] = score;
            }
        }
    }
    barrier();

    // Maxima and sums: TEAM invocations for each row.
    const uint TEAM = INVOCATIONS / ROWS;
    uint row = i / TEAM, member = i % TEAM;
    float most = uintBitsToFloat(0xFF800000u), sum = 0.0;
    for (uint n = member; n < count; n += TEAM) most = max(most, s_powers[row][n]);
    s_parts[0][i].x = most;
    barrier();
    for (uint n = 0u; n < TEAM; ++n) most = max(most, s_parts[0][row * TEAM + n].x);
    float base = most == uintBitsToFloat(0xFF800000u) ? 0.0 : most;
    for (uint n = member; n < count; n += TEAM) {
        float p = power(s_powers[row][n] - base);
        s_powers[row][n] = p;
        sum += p;
    }
    s_parts[0][i].y = sum;
    if (member == 0u) s_most[row] = most;
    barrier();
    if (member == 0u) {
        float total = 0.0;
        for (uint n = 0u; n < TEAM; ++n) total += s_parts[0][row * TEAM + n].y;
        s_sum[row] = total;
    }

    // Values: an invocation sums a vector of every V_LINES-th key.
    uint column = i % VALUE_VECTORS;
    line = i / VALUE_VECTORS;
    vec4 o[ROWS][2];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) o[r][0] = o[r][1] = vec4(0.0);
    if (line < V_LINES)
        for (uint first = line; first < count; first += V_LINES * LOADS) {
            uvec4 found[LOADS];
            [[unroll]] for (uint n = 0u; n < LOADS; ++n) {
                uint key = begin + min(first + n * V_LINES, count - 1u);
                found[n] = v_vectors[(v_base + key * v_by[2]) / EACH + column];
            }
            [[unroll]] for (uint n = 0u; n < LOADS; ++n) {
                uint at = first + n * V_LINES;
                [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                    float p = at < count ? s_powers[r][min(at, SPAN - 1u)] : 0.0;
                    [[unroll]] for (uint e = 0u; e < EACH / 4u; ++e)
                        o[r][e] += p * quarter(found[n], e);
                }
            }
        }

    // Records by row and part: the undivided output, the maximum, the sum.
    uint value_size = VALUE_VECTORS * EACH;
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        uint to = record_of(batch, head, r, part, value_size);
        [[unroll]] for (uint e = 0u; e < EACH / 4u; ++e) {
            barrier();
            s_parts[0][i] = o[r][e];
            barrier();
            if (i < VALUE_VECTORS && r < rows) {
                vec4 total = vec4(0.0);
                for (uint n = 0u; n < V_LINES; ++n) total += s_parts[0][n * VALUE_VECTORS + i];
                [[unroll]] for (uint c = 0u; c < 4u; ++c)
                    y_words[to + i * EACH + 4u * e + c] = floatBitsToUint(total[c]);
            }
        }
        if (i == 0u && r < rows) {
            y_words[to + value_size] = floatBitsToUint(s_most[r]);
            y_words[to + value_size + 1u] = floatBitsToUint(s_sum[r]);
        }
    }
}
