// What a step of few tokens does on a CPU, in C: for x86-64 with AVX2, FMA and F16C.
//
// torch runs a layer of one token as some forty operations, each of which costs more to call than
// to compute, and multiplies by matrices at half the speed at which they come from memory. Every
// function here has its plain torch twin, and its tests compare the two.
//
// Sums have one order, whatever else is in the step: a row's numbers do not depend on its company.

#define _GNU_SOURCE
#include <immintrin.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))

// ---- threads
//
// They meet some hundred times a step. Who waits looks again and again for a while, which is quick,
// and then sleeps. How long it looks is for the caller to say (`look_for`): where other processes
// want the cores, a thread that only looks keeps from them the very thread that it waits for.

typedef void (*work_t)(void *given, long thread, long threads);

enum { MOST_THREADS = 256, LEAST = 1 << 15 };  // multiplications that are worth another thread

static struct {
    pthread_mutex_t busy;
    long workers;  // that were started
    work_t work;
    void *given;
    long threads;      // of this turn, with the caller's
    uint32_t asleep;   // workers
    uint32_t awaited;  // does the caller sleep?
    int64_t patience;  // cycles
    long missed;       // how often the caller looked in vain
    uint32_t since[MOST_THREADS];                // the turn before a worker's first
    uint32_t turn __attribute__((aligned(64)));  // how many there were
    uint32_t left __attribute__((aligned(64)));  // workers that have not ended this turn
} team = {.busy = PTHREAD_MUTEX_INITIALIZER};

static void sleep_while(uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, MOST_THREADS, NULL, NULL, 0);
}

INLINE uint32_t read_now(uint32_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

// Has the word another value before patience ends?
INLINE int changes(uint32_t *word, uint32_t value)
{
    const int64_t until = (int64_t)__rdtsc() + __atomic_load_n(&team.patience, __ATOMIC_RELAXED);
    do {
        if (read_now(word) != value) return 1;
        _mm_pause();
    } while ((int64_t)__rdtsc() < until);
    return 0;
}

static void *be_worker(void *number)
{
    const long thread = (long)(intptr_t)number;
    uint32_t seen = team.since[thread];
    for (;;) {
        if (!changes(&team.turn, seen)) {
            __atomic_add_fetch(&team.asleep, 1, __ATOMIC_SEQ_CST);
            while (read_now(&team.turn) == seen) sleep_while(&team.turn, seen);
            __atomic_sub_fetch(&team.asleep, 1, __ATOMIC_SEQ_CST);
        }
        seen = read_now(&team.turn);
        if (thread < team.threads) team.work(team.given, thread, team.threads);
        if (!__atomic_sub_fetch(&team.left, 1, __ATOMIC_SEQ_CST) && read_now(&team.awaited))
            wake(&team.left);
    }
    return NULL;
}

// In a child of fork() there is only the thread that called it.
static void forget_workers(void)
{
    team.workers = team.turn = team.left = team.asleep = team.awaited = 0;
    pthread_mutex_init(&team.busy, NULL);
}

static void start_workers(long threads)
{
    while (team.workers < threads - 1) {
        pthread_t started;
        const long thread = team.workers + 1;
        team.since[thread] = team.turn;
        if (pthread_create(&started, NULL, be_worker, (void *)(intptr_t)thread)) return;
        pthread_detach(started);
        team.workers = thread;
    }
}

static void on_threads(work_t work, void *given, long cost, long threads)
{
    threads = threads < MOST_THREADS ? threads : MOST_THREADS;
    if (cost < LEAST || threads < 2 || pthread_mutex_trylock(&team.busy)) {
        work(given, 0, 1);  // or another engine of this process has the threads
        return;
    }
    if (team.workers < threads - 1) start_workers(threads);
    team.work = work, team.given = given;
    team.threads = threads <= team.workers + 1 ? threads : team.workers + 1;
    __atomic_store_n(&team.left, team.workers, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&team.turn, 1, __ATOMIC_SEQ_CST);
    if (read_now(&team.asleep)) wake(&team.turn);
    work(given, 0, team.threads);
    for (uint32_t left = read_now(&team.left); left; left = read_now(&team.left))
        if (!changes(&team.left, left)) {
            team.missed++;
            __atomic_store_n(&team.awaited, 1, __ATOMIC_SEQ_CST);
            left = read_now(&team.left);
            if (left) sleep_while(&team.left, left);
            __atomic_store_n(&team.awaited, 0, __ATOMIC_SEQ_CST);
        }
    pthread_mutex_unlock(&team.busy);
}

// How many cycles a thread looks for what it waits for before it sleeps.
void look_for(long cycles) { __atomic_store_n(&team.patience, cycles, __ATOMIC_RELAXED); }

// How often the caller has looked in vain: its work was done, and another thread had no core.
long missed(void) { return team.missed; }

__attribute__((constructor)) static void prepare(void)
{
    pthread_atfork(NULL, NULL, forget_workers);
}

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

INLINE void multiply_share(const enum kind kind, const struct product *given, long thread,
                           long threads)
{
    long begin, end;
    share(given->outputs / WIDTH, thread, threads, &begin, &end);
    switch (given->rows) {
    case 1: few_rows(kind, 1, 4, given, begin, end); break;
    case 2: few_rows(kind, 2, 2, given, begin, end); break;
    case 3: few_rows(kind, 3, 2, given, begin, end); break;
    default: many_rows(kind, given, begin, end);
    }
}

static void multiply_on_thread(void *work, long thread, long threads)
{
    const struct product *given = work;
    switch (given->kind) {
    case HALF: multiply_share(HALF, given, thread, threads); break;
    case BRAIN: multiply_share(BRAIN, given, thread, threads); break;
    case INT8: multiply_share(INT8, given, thread, threads); break;
    }
}

void multiply(const char *weights, const float *scales, const float *x, float *y, long rows,
              long outputs, long inputs, int kind, long threads)
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

static void attend_on_thread(void *work, long thread, long threads)
{
    struct attention *given = work;  // whoever is free takes the next head
    (void)thread, (void)threads;
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
            long threads)
{
    struct attention given = {queries, keys,     values, tables, slots,  lengths, out,   sequences,
                              heads,   group, features, page,   stride, columns, scale, 0};
    long cost = 0;
    for (long s = 0; s < sequences; s++) cost += lengths[s] * heads * group * features / 2;
    on_threads(attend_on_thread, &given, cost, threads);
}
