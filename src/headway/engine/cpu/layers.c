// All layers of a decoder of Llama's kind, kernel after kernel.
//
// For a step of one token, calling each kernel from Python takes a third of the time.

#include "common.h"

struct matrix {
    const char *weights;
    const float *scales, *bias;  // of each output; NULL: none
    long outputs, inputs;
    int kind;
};

struct layer {
    struct matrix qkv, out, gate_up, down;
    const float *before, *between;  // the norms' weights
    cell *keys, *values;            // its pages
};

struct step {
    float *hidden;                               // the rows: in and out
    float *row, *heads, *attended, *both, *gated;  // room for what is between
    uint16_t *pairs;                             // and for rows as bf16
    const float *rotations;
    const int64_t *tables, *slots, *positions, *places, *runs;
    long rows, width, query_heads, kv_heads, features, page, columns, run_count, decodes;
    long threads;
    float epsilon, scale;
};

struct sum {
    float *to;
    const float *x;
    long rows, width, stride;  // of x; 0: the same for every row
};

static void add_on_thread(void *work, long thread, long threads)
{
    const struct sum *given = work;
    long begin, end;
    share(given->rows, thread, threads, &begin, &end);
    for (long row = begin; row < end; row++) {
        float *to = given->to + row * given->width;
        const float *x = given->x + row * given->stride;
        for (long i = 0; i < given->width; i++) to[i] += x[i];
    }
}

static void add(float *to, const float *x, const struct step *step, long width, long stride)
{
    struct sum given = {to, x, step->rows, width, stride};
    on_threads(add_on_thread, &given, step->rows * width, step->threads);
}

static void multiply_by(const struct matrix *by, const float *x, float *y, const struct step *step)
{
    const void *rows = x;
    if (by->kind == BF16_PAIRS) {
        round_to_bf16(x, step->pairs, step->rows, by->inputs, step->threads);
        rows = step->pairs;
    }
    multiply(by->weights, by->scales, rows, y, step->rows, by->outputs, by->inputs, by->kind,
             step->threads);
    if (by->bias) add(y, by->bias, step, by->outputs, 0);
}

static void attend_in(const struct layer *layer, const struct step *step)
{
    const long rows = step->rows, features = step->features, kv_heads = step->kv_heads;
    const long rotated = step->query_heads + kv_heads, stride = (rotated + kv_heads) * features;
    float *own_keys = step->heads + step->query_heads * features;
    rotate(step->heads, step->rotations, rows, rotated, features, stride, step->threads);
    write_rows(own_keys, own_keys + kv_heads * features, layer->keys, layer->values, step->places,
               rows, kv_heads * features, stride, step->threads);
    attend(step->heads, layer->keys, layer->values, step->tables, step->slots, step->positions,
           step->runs, step->attended, step->run_count, step->decodes, kv_heads,
           step->query_heads / kv_heads, features, step->page, stride, step->columns, step->scale,
           step->threads);
}

static void run_layer(const struct layer *layer, const struct step *step)
{
    const long rows = step->rows, width = step->width, threads = step->threads;
    normalize(step->hidden, layer->before, step->row, rows, width, step->epsilon, threads);
    multiply_by(&layer->qkv, step->row, step->heads, step);
    attend_in(layer, step);
    multiply_by(&layer->out, step->attended, step->row, step);
    add(step->hidden, step->row, step, width, width);
    normalize(step->hidden, layer->between, step->row, rows, width, step->epsilon, threads);
    multiply_by(&layer->gate_up, step->row, step->both, step);
    gate(step->both, step->gated, rows, layer->down.inputs, threads);
    multiply_by(&layer->down, step->gated, step->row, step);
    add(step->hidden, step->row, step, width, width);
}

void run_layers(const struct layer *layers, const struct step *step, long count)
{
    for (long index = 0; index < count; index++) run_layer(layers + index, step);
}
