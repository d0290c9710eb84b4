// Functions for the expressions of activation_table.glsl. The includer defines SHORT (results need only
// the digits of a FLOAT16) and parameter(i), an attribute.
#define EITHER(name, arguments) (SHORT ? short_##name arguments : name##_of arguments)
#define ALPHA parameter(0u)
#define BETA parameter(1u)

// x limited to [0, 1], or NaN.
float within_one(float x) {
    float limit = x < 1.0 ? 0.0 : 1.0;
    return is_nan(x) || (x > 0.0 && x < 1.0) ? x : limit;
}
