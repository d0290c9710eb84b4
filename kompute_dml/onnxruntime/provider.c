/* The two functions that ONNX Runtime looks for in a provider library. What they do is set from
   outside, so this file knows neither Python nor ONNX Runtime's headers. */
#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#define PUBLIC __declspec(dllexport)
#else
#define PUBLIC __attribute__((visibility("default")))
#endif

typedef void *create_factories(const char *, const void *, const void *, void **, size_t, size_t *);
typedef void *release_factory(void *);

static create_factories *create;
static release_factory *release;

PUBLIC void kompute_dml_connect(create_factories *c, release_factory *r) {
    create = c;
    release = r;
}

/* Stands in for functions that return nothing or a status, once Python is gone. */
PUBLIC void *kompute_dml_nothing(void) { return NULL; }

struct base {
    const void *(*get_api)(uint32_t version);
};
typedef void *create_status(int code, const char *message);

PUBLIC void *CreateEpFactories(const char *name, const void *base, const void *logger,
                               void **factories, size_t room, size_t *count) {
    *count = 0;
    if (create) return create(name, base, logger, factories, room, count);
    const void *api = ((const struct base *)base)->get_api(1);
    return (*(create_status *const *)api)(
        1, "this library works inside Python: import kompute_dml.onnxruntime first");
}

PUBLIC void *ReleaseEpFactory(void *factory) { return release ? release(factory) : NULL; }
