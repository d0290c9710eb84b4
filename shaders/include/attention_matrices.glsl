// What the shaders of FLOAT16 attention on matrix units share. Scores are float32, times LOG2_E. Exponents are
// relative to a stabilizer, which changes only when the row's maximum has grown by ROOM. Powers reach
// 2^(LIFT + ROOM), so that small ones keep their bits in FLOAT16.
#define ATTENTION_TYPE 34u
#define OUTPUT_TYPE 34u
#include "include/attention.glsl"

#define Sums coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define RowFragment coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define ColumnFragment coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>

const float LOWEST = -3.0e38;
#define ABSENT uintBitsToFloat(0xFF800000u)
const float ROOM = 8.0;
const float LIFT = 6.0;

// A score times LOG2_E. Only ABSENT is infinite.
float bounded(float x) {
    return x == ABSENT ? x : max(x * LOG2_E, LOWEST);
}

// Over the four invocations that share a row.
float row_max(float x) {
    x = max(x, subgroupShuffleXor(x, 1u));
    return max(x, subgroupShuffleXor(x, 2u));
}

float row_sum(float x) {
    x += subgroupShuffleXor(x, 1u);
    return x + subgroupShuffleXor(x, 2u);
}
