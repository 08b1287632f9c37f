// What a step of few tokens does on a CPU, in C: for x86-64 with AVX2, FMA and F16C.
//
// torch runs a layer of one token as some forty operations, each of which costs more to call than
// to compute, and multiplies by matrices at half the speed at which they come from memory. Every
// function here has its plain torch twin, and its tests compare the two.
//
// Sums have one order, whatever else is in the step: a row's numbers do not depend on its company.
// Threads are those of the OpenMP runtime that torch has loaded: there is no second pool.

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

extern void GOMP_parallel(void (*work)(void *), void *given, unsigned threads, unsigned flags);
extern int omp_get_thread_num(void);
extern int omp_get_num_threads(void);

enum { LEAST = 1 << 15 };  // multiplications: for fewer, other threads are not worth waking

static void on_threads(void (*work)(void *), void *given, long cost, int threads)
{
    if (cost < LEAST || threads == 1)
        work(given);
    else
        GOMP_parallel(work, given, threads, 0);
}

// This thread's share of `count`.
INLINE void share(long count, long *begin, long *end)
{
    long thread = omp_get_thread_num(), threads = omp_get_num_threads();
    *begin = count * thread / threads;
    *end = count * (thread + 1) / threads;
}

INLINE float sum_of(__m256 x)
{
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

// e to the x, as exact as floats are but for the last bit or two; -87 and below are e to the -87.
INLINE __m256 exponential(__m256 x)
{
    x = _mm256_max_ps(_mm256_min_ps(x, _mm256_set1_ps(88.0f)), _mm256_set1_ps(-87.0f));
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

// ---- products with weights
//
// Weights lie in panels of WIDTH outputs: [panel][input][WIDTH]. They are widened to float32 as
// they are multiplied. Sums run over DEPTH inputs at a time, for which a panel stays in the cache.

enum { WIDTH = 16, DEPTH = 512, HEIGHT = 96, TALLEST = 6, WIDEST = 4 };
enum kind { HALF, BRAIN, INT8 };

struct product {
    const char *weights;
    const float *scales;  // of each output; NULL: none
    const float *x;
    float *y;
    long rows, outputs, inputs;
    enum kind kind;
};

INLINE size_t size_of(enum kind kind) { return kind == INT8 ? 1 : 2; }

INLINE __m256 widened(enum kind kind, const char *at)
{
    if (kind == HALF) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
    if (kind == INT8)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

// Some rows by some panels, over `depth` inputs from `start` on.
INLINE void tile(const enum kind kind, const int rows, const int panels,
                 const struct product *given, long row, long panel, long start, long depth)
{
    const size_t size = size_of(kind) * WIDTH, stride = size * given->inputs;
    const char *weights = given->weights + panel * stride + start * size;
    const float *x = given->x + row * given->inputs + start;
    __m256 sums[TALLEST][2 * WIDEST];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < 2 * panels; p++) sums[r][p] = _mm256_setzero_ps();
    for (long i = 0; i < depth; i++) {
        __m256 wide[2 * WIDEST];
        for (int p = 0; p < panels; p++) {
            const char *at = weights + p * stride + i * size;
            if (panels > 1) _mm_prefetch(at + 1536, _MM_HINT_T0);
            wide[2 * p] = widened(kind, at);
            wide[2 * p + 1] = widened(kind, at + size / 2);
        }
        for (int r = 0; r < rows; r++) {
            __m256 value = _mm256_broadcast_ss(x + r * given->inputs + i);
            for (int p = 0; p < 2 * panels; p++)
                sums[r][p] = _mm256_fmadd_ps(value, wide[p], sums[r][p]);
        }
    }
    const int is_last = start + depth == given->inputs;
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < 2 * panels; p++) {
            long output = panel * WIDTH + 8 * p;
            float *to = given->y + (row + r) * given->outputs + output;
            __m256 sum = sums[r][p];
            if (start) sum = _mm256_add_ps(_mm256_loadu_ps(to), sum);
            if (kind == INT8 && is_last)
                sum = _mm256_mul_ps(sum, _mm256_loadu_ps(given->scales + output));
            _mm256_storeu_ps(to, sum);
        }
}

// Few rows: the weights come from memory, once, and several panels at a time keep it busy.
INLINE void few_rows(const enum kind kind, const int rows, const int panels,
                     const struct product *given, long begin, long end)
{
    for (long panel = begin; panel < end;) {
        const int is_wide = panel + panels <= end;
        for (long start = 0; start < given->inputs; start += DEPTH) {
            long left = given->inputs - start, depth = left < DEPTH ? left : DEPTH;
            if (is_wide)
                tile(kind, rows, panels, given, 0, panel, start, depth);
            else
                tile(kind, rows, 1, given, 0, panel, start, depth);
        }
        panel += is_wide ? panels : 1;
    }
}

// Many rows: a panel's part is used for HEIGHT rows while it is in the cache.
INLINE void many_rows(const enum kind kind, const struct product *given, long begin, long end)
{
    for (long top = 0; top < given->rows; top += HEIGHT) {
        long bottom = top + HEIGHT < given->rows ? top + HEIGHT : given->rows;
        for (long start = 0; start < given->inputs; start += DEPTH) {
            long left = given->inputs - start, depth = left < DEPTH ? left : DEPTH;
            for (long panel = begin; panel < end; panel++) {
                long row = top;
                for (; row + 6 <= bottom; row += 6)
                    tile(kind, 6, 1, given, row, panel, start, depth);
                switch (bottom - row) {
                case 5: tile(kind, 5, 1, given, row, panel, start, depth); break;
                case 4: tile(kind, 4, 1, given, row, panel, start, depth); break;
                case 3: tile(kind, 3, 1, given, row, panel, start, depth); break;
                case 2: tile(kind, 2, 1, given, row, panel, start, depth); break;
                case 1: tile(kind, 1, 1, given, row, panel, start, depth); break;
                }
            }
        }
    }
}

INLINE void multiply_share(const enum kind kind, const struct product *given)
{
    long begin, end;
    share(given->outputs / WIDTH, &begin, &end);
    switch (given->rows) {
    case 1: few_rows(kind, 1, 4, given, begin, end); break;
    case 2: few_rows(kind, 2, 2, given, begin, end); break;
    case 3: few_rows(kind, 3, 2, given, begin, end); break;
    default: many_rows(kind, given, begin, end);
    }
}

static void multiply_on_thread(void *work)
{
    const struct product *given = work;
    switch (given->kind) {
    case HALF: multiply_share(HALF, given); break;
    case BRAIN: multiply_share(BRAIN, given); break;
    case INT8: multiply_share(INT8, given); break;
    }
}

void multiply(const char *weights, const float *scales, const float *x, float *y, long rows,
              long outputs, long inputs, int kind, int threads)
{
    struct product given = {weights, scales, x, y, rows, outputs, inputs, kind};
    on_threads(multiply_on_thread, &given, rows * outputs * inputs, threads);
}

// ---- what is done to each row

struct rows {
    const float *x, *by;
    float *y;
    long rows, width, stride, count;
    float epsilon;
};

static void normalize_on_thread(void *work)
{
    const struct rows *given = work;
    long begin, end, width = given->width;
    share(given->rows, &begin, &end);
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
               int threads)
{
    struct rows given = {x, weight, y, rows, width, width, 0, epsilon};
    on_threads(normalize_on_thread, &given, rows * width, threads);
}

static void gate_on_thread(void *work)
{
    const struct rows *given = work;
    long begin, end, width = given->width;
    share(given->rows, &begin, &end);
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
void gate(const float *gate_up, float *y, long rows, long width, int threads)
{
    struct rows given = {gate_up, NULL, y, rows, width, 2 * width, 0, 0};
    on_threads(gate_on_thread, &given, 4 * rows * width, threads);
}

static void rotate_on_thread(void *work)
{
    const struct rows *given = work;
    long begin, end, width = given->width;
    share(given->rows, &begin, &end);
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
            int threads)
{
    struct rows given = {NULL, by, heads, rows, width, stride, count, 0};
    on_threads(rotate_on_thread, &given, rows * count * width, threads);
}

// ---- attention of one query for each sequence, over pages where they lie

enum { MOST_PAGE = 256 };  // tokens; pages have a multiple of four

struct attention {
    const float *queries, *keys, *values;
    const int64_t *tables, *slots, *lengths;
    float *out;
    long sequences, heads, group, features, page, stride, columns;
    float scale;
    long next;  // the sequence and head that nobody has taken yet
};

// A query's products with the keys of four tokens.
INLINE __m128 four_scores(const float *query, const float *keys, long stride, long features)
{
    __m256 sums[4];
    for (int t = 0; t < 4; t++) sums[t] = _mm256_setzero_ps();
    for (long i = 0; i < features; i += 8) {
        __m256 part = _mm256_loadu_ps(query + i);
        for (int t = 0; t < 4; t++)
            sums[t] = _mm256_fmadd_ps(part, _mm256_loadu_ps(keys + t * stride + i), sums[t]);
    }
    __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
    return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

// The values' sum by their weights, of some vectors of features, added to `kept` of what is there.
INLINE void add_values(const int vectors, float *to, float kept, const float *weights,
                       const float *values, long stride, long tokens)
{
    __m256 sums[8];
    for (int i = 0; i < vectors; i++)
        sums[i] = kept ? _mm256_mul_ps(_mm256_loadu_ps(to + 8 * i), _mm256_set1_ps(kept))
                       : _mm256_setzero_ps();
    for (long t = 0; t < tokens; t++) {
        const float *at = values + t * stride;
        __m256 weight = _mm256_broadcast_ss(weights + t);
        for (int i = 0; i < vectors; i++)
            sums[i] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(at + 8 * i), sums[i]);
    }
    for (int i = 0; i < vectors; i++) _mm256_storeu_ps(to + 8 * i, sums[i]);
}

// What a query finds in one page; `most` and `total` are of the pages before. The scores of a
// page's unused places are computed, for its memory is there, and then have no weight.
INLINE void attend_page(const struct attention *given, const float *query, const float *keys,
                        const float *values, long tokens, float *most, float *total, float *out)
{
    const long features = given->features, stride = given->heads * features;
    float scores[MOST_PAGE], largest = *most;
    for (long t = 0; t < tokens; t += 4) {
        __m128 four = four_scores(query, keys + t * stride, stride, features);
        _mm_storeu_ps(scores + t, _mm_mul_ps(four, _mm_set1_ps(given->scale)));
    }
    for (long t = 0; t < tokens; t++) largest = scores[t] > largest ? scores[t] : largest;
    for (long t = tokens; t % 8; t++) scores[t] = -INFINITY;
    __m256 sum = _mm256_setzero_ps();
    for (long t = 0; t < tokens; t += 8) {
        __m256 part = _mm256_sub_ps(_mm256_loadu_ps(scores + t), _mm256_set1_ps(largest));
        part = exponential(part);
        _mm256_storeu_ps(scores + t, part);
        sum = _mm256_add_ps(sum, part);
    }
    const float kept = *total ? expf(*most - largest) : 0.0f;
    *total = *total * kept + sum_of(sum);
    *most = largest;
    long i = 0;
    for (; i + 64 <= features; i += 64)
        add_values(8, out + i, kept, scores, values + i, stride, tokens);
    for (; i < features; i += 8)
        add_values(1, out + i, kept, scores, values + i, stride, tokens);
}

static void attend_head(const struct attention *given, long sequence, long head)
{
    const long group = given->group, features = given->features;
    const float *queries = given->queries + sequence * given->stride + head * group * features;
    float *out = given->out + (sequence * given->heads + head) * group * features;
    const int64_t *table = given->tables + given->slots[sequence] * given->columns;
    float most[group], totals[group];
    for (long q = 0; q < group; q++) most[q] = -INFINITY, totals[q] = 0.0f;
    for (long done = 0; done < given->lengths[sequence]; done += given->page) {
        long left = given->lengths[sequence] - done;
        size_t token = (size_t)table[done / given->page] * given->page;
        size_t at = (token * given->heads + head) * features;
        long tokens = left < given->page ? left : given->page;
        for (long q = 0; q < group; q++)
            attend_page(given, queries + q * features, given->keys + at, given->values + at, tokens,
                        most + q, totals + q, out + q * features);
    }
    for (long q = 0; q < group; q++)
        for (long i = 0; i < features; i++) out[q * features + i] /= totals[q];
}

static void attend_on_thread(void *work)
{
    struct attention *given = work;
    const long count = given->sequences * given->heads;
    for (;;) {
        long item = __atomic_fetch_add(&given->next, 1, __ATOMIC_RELAXED);
        if (item >= count) return;
        attend_head(given, item / given->heads, item % given->heads);
    }
}

void attend(const float *queries, const float *keys, const float *values, const int64_t *tables,
            const int64_t *slots, const int64_t *lengths, float *out, long sequences, long heads,
            long group, long features, long page, long stride, long columns, float scale,
            int threads)
{
    struct attention given = {queries, keys,     values, tables, slots,  lengths, out,   sequences,
                              heads,   group, features, page,   stride, columns, scale, 0};
    long cost = 0;
    for (long s = 0; s < sequences; s++) cost += lengths[s] * heads * group * features / 2;
    on_threads(attend_on_thread, &given, cost, threads);
}
