// Several floats at a time: sixteen where the processor multiplies bf16 itself (AVX-512), else eight.
//
// And how a number is kept in the KV cache: as bf16 where CACHE_BF16 is defined, else as a float.

#pragma once

#include <immintrin.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

#ifdef __AVX512BF16__

enum { LANES = 16 };
typedef __m512 floats;

INLINE floats zeros(void) { return _mm512_setzero_ps(); }
INLINE floats broadcast(float x) { return _mm512_set1_ps(x); }
INLINE floats load(const float *at) { return _mm512_loadu_ps(at); }
INLINE void store(float *at, floats x) { _mm512_storeu_ps(at, x); }
INLINE floats fma_of(floats x, floats y, floats sum) { return _mm512_fmadd_ps(x, y, sum); }
INLINE floats fnma_of(floats x, floats y, floats sum) { return _mm512_fnmadd_ps(x, y, sum); }
// Where one of them is not a number: the second.
INLINE floats larger(floats x, floats y) { return _mm512_max_ps(x, y); }
INLINE floats smaller(floats x, floats y) { return _mm512_min_ps(x, y); }
INLINE floats nearest(floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
INLINE floats times_power_of_2(floats x, floats whole) { return _mm512_scalef_ps(x, whole); }
INLINE __m256 folded(floats x) { return _mm512_castps512_ps256(x) + _mm512_extractf32x8_ps(x, 1); }

INLINE floats from_half(const void *at) { return _mm512_cvtph_ps(_mm256_loadu_si256(at)); }

INLINE floats from_bf16(const void *at)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at)), 16));
}

INLINE floats from_int8(const void *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
}

INLINE void to_bf16(uint16_t *at, floats x)
{
    _mm256_storeu_si256((__m256i *)at, (__m256i)_mm512_cvtneps_pbh(x));
}

// Complex numbers, each a pair of neighbours.
INLINE floats times_complex(floats x, floats by)
{
    const floats crossed = _mm512_permute_ps(x, 0xB1) * _mm512_movehdup_ps(by);
    return _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(by), crossed);
}

// Pairs of bf16 numbers, multiplied and added to a float each.
INLINE floats add_pairs(floats x, floats y, floats sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(x),
                            (__m512bh)_mm512_castps_si512(y));
}

INLINE float max_of(floats x) { return _mm512_reduce_max_ps(x); }

#else

enum { LANES = 8 };
typedef __m256 floats;

INLINE floats zeros(void) { return _mm256_setzero_ps(); }
INLINE floats broadcast(float x) { return _mm256_set1_ps(x); }
INLINE floats load(const float *at) { return _mm256_loadu_ps(at); }
INLINE void store(float *at, floats x) { _mm256_storeu_ps(at, x); }
INLINE floats fma_of(floats x, floats y, floats sum) { return _mm256_fmadd_ps(x, y, sum); }
INLINE floats fnma_of(floats x, floats y, floats sum) { return _mm256_fnmadd_ps(x, y, sum); }
// Where one of them is not a number: the second.
INLINE floats larger(floats x, floats y) { return _mm256_max_ps(x, y); }
INLINE floats smaller(floats x, floats y) { return _mm256_min_ps(x, y); }
INLINE floats nearest(floats x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE __m256 folded(floats x) { return x; }

INLINE floats times_power_of_2(floats x, floats whole)
{
    const __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return x * _mm256_castsi256_ps(_mm256_slli_epi32(power, 23));
}

INLINE floats from_half(const void *at) { return _mm256_cvtph_ps(_mm_loadu_si128(at)); }

INLINE floats from_bf16(const void *at)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16));
}

INLINE floats from_int8(const void *at)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at)));
}

// To the nearest, of two the even one.
INLINE void to_bf16(uint16_t *at, floats x)
{
    const __m256i bits = _mm256_castps_si256(x), one = _mm256_set1_epi32(1);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    __m256i whole = _mm256_add_epi32(bits, _mm256_add_epi32(_mm256_set1_epi32(0x7FFF), odd));
    const __m256i is_none = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    whole = _mm256_blendv_epi8(whole, _mm256_set1_epi32(0x7FC00000), is_none);
    whole = _mm256_srli_epi32(whole, 16);
    const __m128i low = _mm256_castsi256_si128(whole), high = _mm256_extracti128_si256(whole, 1);
    _mm_storeu_si128((__m128i *)at, _mm_packus_epi32(low, high));
}

// Complex numbers, each a pair of neighbours.
INLINE floats times_complex(floats x, floats by)
{
    const floats crossed = _mm256_permute_ps(x, 0xB1) * _mm256_movehdup_ps(by);
    return _mm256_fmaddsub_ps(x, _mm256_moveldup_ps(by), crossed);
}

INLINE float max_of(floats x)
{
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

#endif

INLINE float sum_of(floats x)
{
    const __m256 eight = folded(x);
    __m128 half = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
    half += _mm_movehl_ps(half, half);
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

INLINE __m128 four_sums_of(const floats x[4])
{
    const __m256 two = _mm256_hadd_ps(folded(x[0]), folded(x[1]));
    const __m256 four = _mm256_hadd_ps(two, _mm256_hadd_ps(folded(x[2]), folded(x[3])));
    return _mm256_castps256_ps128(four) + _mm256_extractf128_ps(four, 1);
}

// e to the x, as exact as floats are but for the last bit or two; -87 and below are e to the -87.
INLINE floats exponential(floats x)
{
    // In this order of the operands, what is not a number stays so.
    x = larger(broadcast(-87.0f), smaller(broadcast(88.0f), x));
    const floats whole = nearest(x * broadcast(1.44269504f));
    x = fnma_of(whole, broadcast(0.693359375f), x);
    x = fnma_of(whole, broadcast(-2.12194440e-4f), x);
    floats sum = broadcast(1.9875691500e-4f);
    sum = fma_of(sum, x, broadcast(1.3981999507e-3f));
    sum = fma_of(sum, x, broadcast(8.3334519073e-3f));
    sum = fma_of(sum, x, broadcast(4.1665795894e-2f));
    sum = fma_of(sum, x, broadcast(1.6666665459e-1f));
    sum = fma_of(sum, x, broadcast(5.0000001201e-1f));
    sum = fma_of(sum, x * x, x + broadcast(1.0f));
    return times_power_of_2(sum, whole);
}

#ifdef CACHE_BF16
typedef uint16_t cell;
INLINE floats load_cells(const cell *at) { return from_bf16(at); }
INLINE void store_cells(cell *at, floats x) { to_bf16(at, x); }
INLINE __m256 load_eight_cells(const cell *at)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at)), 16));
}
#else
typedef float cell;
INLINE floats load_cells(const cell *at) { return load(at); }
INLINE void store_cells(cell *at, floats x) { store(at, x); }
INLINE __m256 load_eight_cells(const cell *at) { return _mm256_loadu_ps(at); }
#endif
