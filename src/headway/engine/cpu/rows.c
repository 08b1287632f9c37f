// What is done to each row: norm, gate, rotation; and where it is kept.

#include <string.h>

#include "common.h"

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
        __m256 squares[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (long i = 0; i < width; i += 8) {
            __m256 value = _mm256_loadu_ps(x + i);
            squares[i / 8 % 2] = _mm256_fmadd_ps(value, value, squares[i / 8 % 2]);
        }
        float mean = sum_of(_mm256_add_ps(squares[0], squares[1])) / width;
        __m256 scale = _mm256_set1_ps(1.0f / sqrtf(mean + given->epsilon));
        for (long i = 0; i < width; i += 8) {
            __m256 value = _mm256_mul_ps(_mm256_loadu_ps(x + i), scale);
            _mm256_storeu_ps(y + i, _mm256_mul_ps(value, _mm256_loadu_ps(given->by + i)));
        }
    }
}

// Root mean square normalisation.
void normalize(const float *x, const float *weight, float *y, long rows, long width, float epsilon,
               long threads)
{
    struct rows given = {x, weight, y, rows, width, width, 0, epsilon};
    on_threads(normalize_on_thread, &given, rows * width, threads);
}

static void gate_on_thread(void *work, long thread, long threads)
{
    const struct rows *given = work;
    long begin, end, width = given->width;
    share(given->rows, thread, threads, &begin, &end);
    const __m256 one = _mm256_set1_ps(1.0f), zero = _mm256_setzero_ps();
    for (long row = begin; row < end; row++) {
        const float *gate = given->x + 2 * row * width, *up = gate + width;
        float *y = given->y + row * width;
        for (long i = 0; i < width; i += 8) {
            __m256 x = _mm256_loadu_ps(gate + i);
            __m256 below = _mm256_add_ps(one, exponential(_mm256_sub_ps(zero, x)));
            __m256 value = _mm256_mul_ps(_mm256_div_ps(x, below), _mm256_loadu_ps(up + i));
            _mm256_storeu_ps(y + i, value);
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
            for (long i = 0; i < width; i += 8) {
                __m256 pair = _mm256_loadu_ps(x + i), angle = _mm256_loadu_ps(by + i);
                __m256 crossed = _mm256_permute_ps(pair, 0xB1);
                crossed = _mm256_mul_ps(crossed, _mm256_movehdup_ps(angle));
                pair = _mm256_fmaddsub_ps(pair, _mm256_moveldup_ps(angle), crossed);
                _mm256_storeu_ps(x + i, pair);
            }
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
    float *key_pages, *value_pages;
    const int64_t *places;
    long rows, width, stride;
};

static void write_on_thread(void *work, long thread, long threads)
{
    const struct written *given = work;
    const long width = given->width, bytes = width * sizeof(float);
    long begin, end;
    share(given->rows, thread, threads, &begin, &end);
    for (long row = begin; row < end; row++) {
        const size_t place = given->places[row] * width;
        memcpy(given->key_pages + place, given->keys + row * given->stride, bytes);
        memcpy(given->value_pages + place, given->values + row * given->stride, bytes);
    }
}

// Each row's keys and values, of all heads, to its place in the pages.
void write_rows(const float *keys, const float *values, float *key_pages, float *value_pages,
                const int64_t *places, long rows, long width, long stride, long threads)
{
    struct written given = {keys, values, key_pages, value_pages, places, rows, width, stride};
    on_threads(write_on_thread, &given, rows * width, threads);
}
