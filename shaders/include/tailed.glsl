// The interface of kernels that take a tail (include/tail.glsl): the variants with TAIL have one push
// field and one binding more, before the params.
#if defined(TAIL)
#define TAIL_FIELD uint tail_offset;
#define AFTER_TAIL(binding) (binding + 1)
#else
#define TAIL_FIELD
#define AFTER_TAIL(binding) binding
#endif
