// What a step of few tokens does on a CPU, in C: for x86-64 with AVX2, FMA and F16C,
// or with AVX-512 and its products of bf16.
//
// torch runs a layer of one token as some forty operations, each of which costs more to call than
// to compute, and multiplies by matrices at half the speed at which they come from memory. Every
// kernel has its plain torch twin, and its tests compare the two.
//
// Sums have one order, whatever else is in the step: a row's numbers do not depend on its company.

#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "vectors.h"

// Work of that many multiplications on several threads: each is told which it is, and of how many.
typedef void (*work_t)(void *given, long thread, long threads);
__attribute__((visibility("hidden"))) void on_threads(work_t work, void *given, long cost,
                                                      long threads);

enum kind { HALF, BF16_WIDENED, INT8, BF16_PAIRS };  // of weights

// Called from Python and from layers.c.
void multiply(const char *weights, const float *scales, const void *x, float *y, long rows,
              long outputs, long inputs, int kind, long threads);
void normalize(const float *x, const float *weight, float *y, long rows, long width, float epsilon,
               long threads);
void round_to_bf16(const float *x, uint16_t *y, long rows, long width, long threads);
void gate(const float *gate_up, float *y, long rows, long width, long threads);
void rotate(float *heads, const float *by, long rows, long count, long width, long stride,
            long threads);
void write_rows(const float *keys, const float *values, cell *key_pages, cell *value_pages,
                const int64_t *places, long rows, long width, long stride, long threads);
void attend(const float *queries, const cell *keys, const cell *values, const int64_t *tables,
            const int64_t *slots, const int64_t *positions, const int64_t *runs, float *out,
            long count, long decodes, long heads, long group, long features, long page, long stride,
            long columns, float scale, long threads);

// This thread's share of `count`.
INLINE void share(long count, long thread, long threads, long *begin, long *end)
{
    *begin = count * thread / threads;
    *end = count * (thread + 1) / threads;
}
