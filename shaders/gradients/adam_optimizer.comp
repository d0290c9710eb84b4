//@ op DML_OPERATOR_ADAM_OPTIMIZER
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// An invocation updates a vector of elements, or one element. It reads all inputs before it writes,
// because outputs may be inputs.
layout(constant_id = 1) const uint TYPE = 36u;
layout(constant_id = 2) const bool VECTORS = false;
layout(push_constant) uniform Push {
    uint count;
    float learning_rate;
    float beta1;
    float beta2;
    float rest1;  // 1 - beta1
    float rest2;
    float log_beta1;
    float log_beta2;
    float epsilon;
    uint x_offset;
    uint m_offset;
    uint v_offset;
    uint g_offset;
    uint step_offset;
    uint new_x_offset;
    uint new_m_offset;
    uint new_v_offset;
};
#include "include/grid.glsl"
#include "include/typed.glsl"
#include "include/exponentials.glsl"

INPUT_TENSOR(x, 0, TYPE)
INPUT_TENSOR(m, 1, TYPE)
INPUT_TENSOR(v, 2, TYPE)
INPUT_TENSOR(g, 3, TYPE)
INPUT_TENSOR(step, 4, 4u)
OUTPUT_TENSOR(new_x, 5, TYPE)
OUTPUT_TENSOR(new_m, 6, TYPE)
OUTPUT_TENSOR(new_v, 7, TYPE)

const bool HALVES = BYTES_OF(TYPE) == 2u;
const uint PER_VECTOR = 16u / BYTES_OF(TYPE);
const uint EACH = VECTORS ? PER_VECTOR : 1u;

// 1 - beta^T, without cancellation where beta^T is near 1.
float correction(float log_beta) {
    return -expm1_of(float(step_bits(step_offset).x) * log_beta);
}

// The new parameter and moments.
vec3 update(float rate, float x, float m, float v, float g) {
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * g * g;
    return vec3(x - rate * divide(m, sqrt_of(v) + epsilon), m, v);
}

float element(uvec4 vector, uint e) {
    if (!HALVES) return uintBitsToFloat(vector[e]);
    return half_to_float(vector[e / 2u] >> e % 2u * 16u & 0xFFFFu);
}

void insert(inout uvec4 vector, uint e, float value) {
    if (HALVES) vector[e / 2u] |= float_to_half(value) << e % 2u * 16u;  // the half was 0
    else vector[e] = floatBitsToUint(value);
}

void main() {
    uint part = invocation_index();
    if (part > (count - 1u) / EACH) return;
    uint first = part * EACH, have = min(EACH, count - first);
    float rate = learning_rate * divide(sqrt_of(correction(log_beta2)), correction(log_beta1));
    if (VECTORS && have == EACH) {
        uvec4 xs = x_vectors[x_offset / EACH + part], ms = m_vectors[m_offset / EACH + part];
        uvec4 vs = v_vectors[v_offset / EACH + part], gs = g_vectors[g_offset / EACH + part];
        uvec4 made_x = uvec4(0u), made_m = uvec4(0u), made_v = uvec4(0u);
        [[unroll]] for (uint e = 0u; e < PER_VECTOR; ++e) {
            vec3 made = update(rate, element(xs, e), element(ms, e), element(vs, e), element(gs, e));
            insert(made_x, e, made.x);
            insert(made_m, e, made.y);
            insert(made_v, e, made.z);
        }
        new_x_vectors[new_x_offset / EACH + part] = made_x;
        new_m_vectors[new_m_offset / EACH + part] = made_m;
        new_v_vectors[new_v_offset / EACH + part] = made_v;
        return;
    }
    for (uint i = first; i < first + have; ++i) {
        vec3 made = update(rate, x_float(x_offset + i), m_float(m_offset + i), v_float(v_offset + i),
                           g_float(g_offset + i));
        new_x_store_float(new_x_offset + i, made.x);
        new_m_store_float(new_m_offset + i, made.y);
        new_v_store_float(new_v_offset + i, made.z);
    }
}
