// Computes one unit of one sequence from the sums of its gates. The includer has the specialization
// constants F, G, H (activations), CLIP and COUPLE, and a push field threshold.
uint activation_at;
#include "include/activation.glsl"

float f(float x) { activation_at = 9u; return activate_as(F, x); }
float g(float x) { activation_at = param(7u); return activate_as(G, x); }
float h(float x) { activation_at = param(8u); return activate_as(H, x); }
float clipped(float x) { return CLIP ? clamp(x, -threshold, threshold) : x; }

// The new state and the new cell. ``peepholes`` are for the input, output and forget gates.
vec2 lstm_unit(vec4 gates, float memory, vec3 peepholes) {
    float input_gate = f(clipped(gates[0] + peepholes[0] * memory));
    float forget = 1.0 - input_gate;
    if (!COUPLE) forget = f(clipped(gates[2] + peepholes[2] * memory));
    float made = forget * memory + input_gate * g(clipped(gates[3]));
    float open = f(clipped(gates[1] + peepholes[1] * made));
    return vec2(open * h(made), made);
}

// ``recurrence`` is the product of the new state's gate, with its bias.
float gru_unit(vec3 gates, float recurrence, float old) {
    float update = f(gates[0]), reset_gate = f(gates[1]);
    float made = g(gates[2] + reset_gate * recurrence);
    return (1.0 - update) * made + update * old;
}
