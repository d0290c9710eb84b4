// Traits of the device's arithmetic. PlanBuilder sets them.
#ifndef HAS_EXACT_UNITS
// fma rounds once, conversions of float16 are IEEE's. exp2, log2, sqrt, inversesqrt and quotients are
// accurate to a few ulp and keep NaN.
layout(constant_id = 33) const bool EXACT_UNITS = false;
#define HAS_EXACT_UNITS EXACT_UNITS
#endif
