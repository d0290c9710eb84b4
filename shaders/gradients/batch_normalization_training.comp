//@ op DML_OPERATOR_BATCH_NORMALIZATION_TRAINING
//@ variants STEP: statistics moments outputs
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// ``statistics`` finds the mean of each part, and the sum of squared distances from it: of a few elements at
// a time, which are then joined. ``moments`` joins the parts of each row and writes mean and variance,
// ``outputs`` joins them again and writes the outputs. All is computed in float32.
#define PARAMS_BINDING 7
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool ADDS = false;
layout(push_constant) uniform Push {
    uint rows;
    uint columns;
    uint parts;
    uint span;
    uint columns_at;
    uint activation_at;
    float epsilon;
    uint x_offset;
    uint scale_offset;
    uint bias_offset;
    uint added_offset;
    uint sums_offset;  // means by row and part; then sums of squares
    uint y_offset;  // with ``moments``, where means go
    uint variance_offset;
    uint params_offset;
};
#include "include/grid.glsl"
#include "include/walk.glsl"
#include "include/typed.glsl"
#include "include/batch_normalization.glsl"
#include "include/activation.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_EACH(x, TYPE, true)
INPUT_TENSOR(scale, 1, TYPE)
INPUT_TENSOR(bias, 2, TYPE)
INPUT_TENSOR(added, 3, TYPE)
INPUT_EACH(added, TYPE, true)
layout(binding = 4) buffer Sums { float sums[]; };
OUTPUT_TENSOR(y, 5, TYPE)
OUTPUT_EACH(y, TYPE)
OUTPUT_TENSOR(variance, 6, TYPE)
WALK(row_walk, 7)
layout(constant_id = 36) const uint COLUMN_RANK = 0u;  // where it is known
WALK_OF_RANK(column_walk, 3, COLUMN_RANK)

float plus(float a, float b) { return a + b; }
WORKGROUP_REDUCE(total, float, plus, subgroupAdd)

// Elements, their mean, and the sum of their squared distances from it.
struct Spread {
    float count;
    float mean;
    float squares;
};

// ``b`` is of at least one element.
Spread joined(Spread a, Spread b) {
    float count = a.count + b.count, apart = b.mean - a.mean, share = b.count / count;
    return Spread(count, a.mean + apart * share, a.squares + b.squares + apart * apart * a.count * share);
}

Spread spread_of(uint row) {
    Spread all = Spread(0.0, 0.0, 0.0);
    for (uint n = 0u; n < parts; ++n) {
        uint from = sums_offset + row * parts + n;
        float count = float(min(span, columns - n * span)) * float(EACH);
        all = joined(all, Spread(count, sums[from], sums[from + rows * parts]));
    }
    return all;
}

#if defined(STEP_moments)
void main() {
    uint row = invocation_index();
    if (row >= rows) return;
    uint[7] at = row_walk(0u, row);
    Spread all = spread_of(row);
    y_store_float(y_offset + at[5], all.mean);
    variance_store_float(variance_offset + at[6], all.squares / all.count);
}
#elif defined(STEP_statistics)
void main() {
    Part p;
    if (!find_part(p)) return;
    uint[7] at = row_walk(0u, p.row);
    Spread own = Spread(0.0, 0.0, 0.0);
    EACH_COLUMN(p) {
        float x[TOGETHER][EACH];
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n)
            x_load_each(x_offset + at[0] + column_walk(columns_at, min(COLUMN(n), p.end - 1u))[0], x[n]);
        Spread some = Spread(0.0, 0.0, 0.0);
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            float sum = 0.0;
            [[unroll]] for (uint e = 0u; e < EACH; ++e) sum += x[n][e];
            bool there = COLUMN(n) < p.end;
            some.count += there ? float(EACH) : 0.0;
            some.mean += there ? sum : 0.0;
        }
        some.mean /= some.count;
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            float sum = 0.0;
            [[unroll]] for (uint e = 0u; e < EACH; ++e) sum += (x[n][e] - some.mean) * (x[n][e] - some.mean);
            some.squares += COLUMN(n) < p.end ? sum : 0.0;
        }
        own = joined(own, some);
    }
    float mean = total(own.count * own.mean) / (float(p.end - p.part * span) * float(EACH));
    float apart = own.mean - mean;
    float squares = total(own.squares + own.count * apart * apart);
    if (gl_LocalInvocationIndex != 0u) return;
    sums[sums_offset + p.row * parts + p.part] = mean;
    sums[sums_offset + (rows + p.row) * parts + p.part] = squares;
}
#else
void main() {
    Part p;
    if (!find_part(p)) return;
    uint[7] at = row_walk(0u, p.row);
    Spread all = spread_of(p.row);
    float factor = scale_float(scale_offset + at[3]) * inversesqrt(all.squares / all.count + epsilon);
    float shift = bias_float(bias_offset + at[4]);
    EACH_COLUMN(p) {
        float x[TOGETHER][EACH], added[TOGETHER][EACH];
        uint to[TOGETHER];
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            uint[3] from = column_walk(columns_at, min(COLUMN(n), p.end - 1u));
            x_load_each(x_offset + at[0] + from[0], x[n]);
            if (ADDS) added_load_each(added_offset + at[1] + from[1], added[n]);
            to[n] = y_offset + at[2] + from[2];
        }
        [[unroll]] for (uint n = 0u; n < TOGETHER; ++n) {
            if (COLUMN(n) >= p.end) continue;
            uvec2 made[EACH];
            [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                float value = (x[n][e] - all.mean) * factor + shift;
                if (ADDS) value += added[n][e];
                made[e] = uvec2(bits_of(activate(value), TYPE), 0u);
            }
            y_store_each(to[n], made);
        }
    }
}
#endif
