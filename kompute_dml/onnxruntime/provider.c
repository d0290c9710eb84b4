/* The two functions that ONNX Runtime looks for in a provider library, and three that fetch
   tensors in one call, because each call from Python takes time. What they call is set from
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

/* Functions of ONNX Runtime. They return a status, which is null without an error. */
struct calls {
    void *(*input)(const void *context, size_t index, void **value);
    void *(*output)(void *context, size_t index, const int64_t *sizes, size_t rank, void **value);
    void *(*describe)(const void *value, int *type, const int64_t **sizes, size_t *rank);
    void *(*data)(void *value, void **data);
    void *(*size)(const void *value, size_t *nbytes);
};

/* The addresses of a node's inputs, and for each its type, its rank and its sizes. `used` are the
   words that these take; of more than `room` nothing is written. */
PUBLIC void *kompute_dml_inputs(const struct calls *ort, const void *context, size_t count,
                                void **data, int64_t *words, size_t room, size_t *used) {
    *used = 0;
    for (size_t i = 0; i < count; i++) {
        void *value, *status;
        int type;
        const int64_t *sizes;
        size_t rank;
        if ((status = ort->input(context, i, &value))) return status;
        if ((status = ort->describe(value, &type, &sizes, &rank))) return status;
        if ((status = ort->data(value, &data[i]))) return status;
        size_t at = *used;
        *used += 2 + rank;
        if (*used > room) continue;
        words[at] = type;
        words[at + 1] = (int64_t)rank;
        for (size_t k = 0; k < rank; k++) words[at + 2 + k] = sizes[k];
    }
    return NULL;
}

/* The addresses of a node's outputs, whose ranks and sizes are `words`. */
PUBLIC void *kompute_dml_outputs(const struct calls *ort, void *context, size_t count, void **data,
                                 const int64_t *words) {
    for (size_t i = 0; i < count; i++) {
        void *value, *status;
        size_t rank = (size_t)*words++;
        if ((status = ort->output(context, i, words, rank, &value))) return status;
        if ((status = ort->data(value, &data[i]))) return status;
        words += rank;
    }
    return NULL;
}

/* The addresses of tensors, and their bytes. */
PUBLIC void *kompute_dml_tensors(const struct calls *ort, void *const *values, size_t count,
                                 void **data, size_t *nbytes) {
    for (size_t i = 0; i < count; i++) {
        void *status;
        if ((status = ort->data(values[i], &data[i]))) return status;
        if ((status = ort->size(values[i], &nbytes[i]))) return status;
    }
    return NULL;
}
