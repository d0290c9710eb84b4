// What is known of the device's arithmetic. PlanBuilder sets it.
#ifndef HAS_EXACT_UNITS
// fma rounds once, conversions to and from float16 are IEEE's, and exp2, log2, sqrt, inversesqrt and
// quotients are good to some ulp and keep NaN.
layout(constant_id = 33) const bool EXACT_UNITS = false;
#define HAS_EXACT_UNITS EXACT_UNITS
#endif
