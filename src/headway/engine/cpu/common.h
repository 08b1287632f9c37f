// What a step of few tokens does on a CPU, in C: for x86-64 with AVX2, FMA and F16C.
//
// torch runs a layer of one token as some forty operations, each of which costs more to call than
// to compute, and multiplies by matrices at half the speed at which they come from memory. Every
// kernel has its plain torch twin, and its tests compare the two.
//
// Sums have one order, whatever else is in the step: a row's numbers do not depend on its company.

#pragma once

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

// Work of that many multiplications on several threads: each is told which it is, and of how many.
typedef void (*work_t)(void *given, long thread, long threads);
__attribute__((visibility("hidden"))) void on_threads(work_t work, void *given, long cost,
                                                      long threads);

// Called from Python and from layers.c.
void multiply(const char *weights, const float *scales, const float *x, float *y, long rows,
              long outputs, long inputs, int kind, long threads);
void normalize(const float *x, const float *weight, float *y, long rows, long width, float epsilon,
               long threads);
void gate(const float *gate_up, float *y, long rows, long width, long threads);
void rotate(float *heads, const float *by, long rows, long count, long width, long stride,
            long threads);
void write_rows(const float *keys, const float *values, float *key_pages, float *value_pages,
                const int64_t *places, long rows, long width, long stride, long threads);
void attend(const float *queries, const float *keys, const float *values, const int64_t *tables,
            const int64_t *slots, const int64_t *positions, const int64_t *runs, float *out,
            long count, long decodes, long heads, long group, long features, long page, long stride,
            long columns, float scale, long threads);

// This thread's share of `count`.
INLINE void share(long count, long thread, long threads, long *begin, long *end)
{
    *begin = count * thread / threads;
    *end = count * (thread + 1) / threads;
}

INLINE float sum_of(__m256 x)
{
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

INLINE float most_of(__m256 x)
{
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// e to the x, as exact as floats are but for the last bit or two; -87 and below are e to the -87.
INLINE __m256 exponential(__m256 x)
{
    // In this order of the operands, what is not a number stays so.
    x = _mm256_max_ps(_mm256_set1_ps(-87.0f), _mm256_min_ps(_mm256_set1_ps(88.0f), x));
    const int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    __m256 whole = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), nearest);
    x = _mm256_fnmadd_ps(whole, _mm256_set1_ps(0.693359375f), x);
    x = _mm256_fnmadd_ps(whole, _mm256_set1_ps(-2.12194440e-4f), x);
    __m256 sum = _mm256_set1_ps(1.9875691500e-4f);
    sum = _mm256_fmadd_ps(sum, x, _mm256_set1_ps(1.3981999507e-3f));
    sum = _mm256_fmadd_ps(sum, x, _mm256_set1_ps(8.3334519073e-3f));
    sum = _mm256_fmadd_ps(sum, x, _mm256_set1_ps(4.1665795894e-2f));
    sum = _mm256_fmadd_ps(sum, x, _mm256_set1_ps(1.6666665459e-1f));
    sum = _mm256_fmadd_ps(sum, x, _mm256_set1_ps(5.0000001201e-1f));
    sum = _mm256_fmadd_ps(sum, _mm256_mul_ps(x, x), _mm256_add_ps(x, _mm256_set1_ps(1.0f)));
    __m256i power = _mm256_slli_epi32(
        _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(sum, _mm256_castsi256_ps(power));
}
