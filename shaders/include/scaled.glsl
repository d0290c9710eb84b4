// INT32 sums as scaled numbers. They are rounded as CAST, ELEMENT_WISE_MULTIPLY and ELEMENT_WISE_ADD do. The
// includer has include/typed.glsl.
float nearest_float(int x) {
    return HAS_EXACT_UNITS ? float(x) : to_float(x, true);
}

float scaled(int sum, float scale, bool has_bias, float added) {
    precise float x = nearest_float(sum) * scale;
    precise float y = x + added;
    return has_bias ? y : x;
}
