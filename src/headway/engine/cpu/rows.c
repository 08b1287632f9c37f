// What is done to each row: norm, gate, rotation; and where it is kept.

#include "common.h"

// How these kernels were compiled, for Python.
const int lanes = LANES, cell_bytes = sizeof(cell);

struct rows {
    const float *x, *by;
    float *y;
    long rows, width, stride, count;
    float epsilon;
};

static void normalize_on_thread(void *work, long thread, long threads)
{
    const struct rows *given = work;
    long begin, end, width = given->width;
    share(given->rows, thread, threads, &begin, &end);
    for (long row = begin; row < end; row++) {
        const float *x = given->x + row * width;
        float *y = given->y + row * width;
        floats squares[2] = {zeros(), zeros()};
        for (long i = 0; i < width; i += LANES) {
            const floats value = load(x + i);
            squares[i / LANES % 2] = fma_of(value, value, squares[i / LANES % 2]);
        }
        const float mean = sum_of(squares[0] + squares[1]) / width;
        const floats scale = broadcast(1.0f / sqrtf(mean + given->epsilon));
        for (long i = 0; i < width; i += LANES)
            store(y + i, load(x + i) * scale * load(given->by + i));
    }
}

// Root mean square normalisation.
void normalize(const float *x, const float *weight, float *y, long rows, long width, float epsilon,
               long threads)
{
    struct rows given = {x, weight, y, rows, width, width, 0, epsilon};
    on_threads(normalize_on_thread, &given, rows * width, threads);
}

static void round_on_thread(void *work, long thread, long threads)
{
    const struct rows *given = work;
    long begin, end, width = given->width;
    share(given->rows, thread, threads, &begin, &end);
    for (long i = begin * width; i < end * width; i += LANES)
        to_bf16((uint16_t *)given->y + i, load(given->x + i));
}

// Rows as bf16.
void round_to_bf16(const float *x, uint16_t *y, long rows, long width, long threads)
{
    struct rows given = {x, NULL, (float *)y, rows, width, width, 0, 0};
    on_threads(round_on_thread, &given, rows * width, threads);
}

static void gate_on_thread(void *work, long thread, long threads)
{
    const struct rows *given = work;
    long begin, end, width = given->width;
    share(given->rows, thread, threads, &begin, &end);
    for (long row = begin; row < end; row++) {
        const float *gate = given->x + 2 * row * width, *up = gate + width;
        float *y = given->y + row * width;
        for (long i = 0; i < width; i += LANES) {
            const floats x = load(gate + i), below = broadcast(1.0f) + exponential(zeros() - x);
            store(y + i, x / below * load(up + i));
        }
    }
}

// silu(gate) * up, which lie beside each other in a row.
void gate(const float *gate_up, float *y, long rows, long width, long threads)
{
    struct rows given = {gate_up, NULL, y, rows, width, 2 * width, 0, 0};
    on_threads(gate_on_thread, &given, 4 * rows * width, threads);
}

static void rotate_on_thread(void *work, long thread, long threads)
{
    const struct rows *given = work;
    long begin, end, width = given->width;
    share(given->rows, thread, threads, &begin, &end);
    for (long row = begin; row < end; row++) {
        const float *by = given->by + row * width;
        for (long head = 0; head < given->count; head++) {
            float *x = given->y + row * given->stride + head * width;
            for (long i = 0; i < width; i += LANES)
                store(x + i, times_complex(load(x + i), load(by + i)));
        }
    }
}

// Each row's first `count` heads, in place, by that row's complex numbers.
void rotate(float *heads, const float *by, long rows, long count, long width, long stride,
            long threads)
{
    struct rows given = {NULL, by, heads, rows, width, stride, count, 0};
    on_threads(rotate_on_thread, &given, rows * count * width, threads);
}

struct written {
    const float *keys, *values;
    cell *key_pages, *value_pages;
    const int64_t *places;
    long rows, width, stride;
};

static void write_on_thread(void *work, long thread, long threads)
{
    const struct written *given = work;
    const long width = given->width;
    long begin, end;
    share(given->rows, thread, threads, &begin, &end);
    for (long row = begin; row < end; row++) {
        const size_t place = given->places[row] * width, from = row * given->stride;
        for (long i = 0; i < width; i += LANES) {
            store_cells(given->key_pages + place + i, load(given->keys + from + i));
            store_cells(given->value_pages + place + i, load(given->values + from + i));
        }
    }
}

// Each row's keys and values, of all heads, to its place in the pages.
void write_rows(const float *keys, const float *values, cell *key_pages, cell *value_pages,
                const int64_t *places, long rows, long width, long stride, long threads)
{
    struct written given = {keys, values, key_pages, value_pages, places, rows, width, stride};
    on_threads(write_on_thread, &given, rows * width, threads);
}
