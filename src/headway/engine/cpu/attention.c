// Attention over pages where they lie.
//
// Rows of one sequence that follow each other are a run. A thread takes some rows of a run at a time,
// for one head: each page is in the cache for all of them. A decode is a run of one row.

#include <stdlib.h>
#include <string.h>

#include "common.h"

enum { MOST_PAGE = 256 };  // tokens; pages have a multiple of four

struct item {  // some rows of a run, for some heads
    long first, rows, head, heads;
};

struct attention {
    const float *queries;
    const cell *keys, *values;
    const int64_t *tables, *slots, *positions;  // of each row: its sequence's table, its place there
    float *out;
    struct item *items;  // of work
    long count;          // of them
    long decodes;  // rows, before all others
    long heads, group, features, page, stride, columns;
    float scale;
    long next;  // the item that nobody has taken yet
};

struct query {
    const float *from;
    float *to;
    float most, total;  // of what was seen
};

// Scores become weights: of some vectors of tokens, of which the first `tokens` count. Returns how
// much of what was found before is kept.
INLINE float weigh(struct query *query, float *scores, long tokens, long vectors)
{
    for (long t = tokens; t < LANES * vectors; t++) scores[t] = -INFINITY;
    floats tops = load(scores), sum = zeros();
    for (long v = 1; v < vectors; v++) tops = larger(tops, load(scores + LANES * v));
    const float top = most_of(tops), most = top > query->most ? top : query->most;
    for (long v = 0; v < vectors; v++) {
        const floats part = exponential(load(scores + LANES * v) - all(most));
        store(scores + LANES * v, part);
        sum += part;
    }
    for (long t = tokens; t < LANES * vectors; t++) scores[t] = 0.0f;
    const float kept = !query->total ? 0.0f : most == query->most ? 1.0f : expf(query->most - most);
    query->total = query->total * kept + sum_of(sum);
    query->most = most;
    return kept;
}

// So much of what was found before. At first nothing was: there lie any numbers.
INLINE floats kept_of(const float *found, float kept)
{
    if (!kept) return zeros();
    return load(found) * all(kept);
}

INLINE void divide_by_totals(struct query *queries, long count, long features)
{
    for (long q = 0; q < count; q++)
        for (long i = 0; i < features; i++) queries[q].to[i] /= queries[q].total;
}

// ---- a decode: page by page, a query at a time

enum { MANY = 64 / LANES };  // vectors of features: many heads have so many

// A query's products with the keys of four tokens.
INLINE __m128 four_scores(const float *query, const cell *keys, long stride, long features)
{
    floats sums[4];
    for (int t = 0; t < 4; t++) sums[t] = zeros();
    for (long i = 0; i < features; i += LANES) {
        const floats part = load(query + i);
        for (int t = 0; t < 4; t++)
            sums[t] = fma_of(part, load_cells(keys + t * stride + i), sums[t]);
    }
    return four_sums_of(sums);
}

// The values' sum by their weights, of some vectors of features, added to `kept` of what is there.
INLINE void add_values(const int vectors, float *to, float kept, const float *weights,
                       const cell *values, long stride, long tokens)
{
    floats sums[MANY];
    for (int i = 0; i < vectors; i++) sums[i] = kept_of(to + LANES * i, kept);
    for (long t = 0; t < tokens; t++) {
        const cell *at = values + t * stride;
        const floats weight = all(weights[t]);
        for (int i = 0; i < vectors; i++)
            sums[i] = fma_of(weight, load_cells(at + LANES * i), sums[i]);
    }
    for (int i = 0; i < vectors; i++) store(to + LANES * i, sums[i]);
}

// Rows of the next page that are fetched between the steps of the computation on this one: pages lie
// anywhere, so the processor cannot guess where the next one is.
struct next_page {
    const cell *keys, *values;
    long left, cells, stride;  // rows; cells of a row that are needed; cells between two rows
    long rows, steps, due;      // so many rows in so many steps; what is due of them, in 1 / steps
};

INLINE void fetch_row(const cell *keys, const cell *values, long cells)
{
    for (long i = 0; i < cells; i += 64 / sizeof(cell)) {
        _mm_prefetch((const char *)(keys + i), _MM_HINT_T0);
        _mm_prefetch((const char *)(values + i), _MM_HINT_T0);
    }
}

INLINE void fetch_some(struct next_page *next)
{
    for (next->due += next->rows; next->due >= next->steps && next->left; next->left--) {
        fetch_row(next->keys, next->values, next->cells);
        next->keys += next->stride, next->values += next->stride;
        next->due -= next->steps;
    }
}

// What a query finds in one page. The scores of a page's unused places are computed, for its memory
// is there, and then have no weight; the values there are not read.
INLINE void attend_page(const struct attention *given, struct query *query, const cell *keys,
                        const cell *values, long tokens, struct next_page *next)
{
    const long features = given->features, stride = given->heads * features;
    float scores[MOST_PAGE];
    for (long t = 0; t < tokens; t += 4) {
        fetch_some(next);
        __m128 four = four_scores(query->from, keys + t * stride, stride, features);
        _mm_storeu_ps(scores + t, _mm_mul_ps(four, _mm_set1_ps(given->scale)));
    }
    const float kept = weigh(query, scores, tokens, (tokens + LANES - 1) / LANES);
    long i = 0;
    for (; i + LANES * MANY <= features; i += LANES * MANY)
        add_values(MANY, query->to + i, kept, scores, values + i, stride, tokens);
    for (; i < features; i += LANES)
        add_values(1, query->to + i, kept, scores, values + i, stride, tokens);
}

static void attend_row(const struct attention *given, struct query *queries, const int64_t *table,
                       long length, long head, long heads)
{
    const long page = given->page, features = given->features, stride = given->heads * features;
    const long count = heads * given->group, steps = count * page / 4;
    for (long done = 0; done < length; done += page) {
        const long left = length - done, tokens = left < page ? left : page;
        const size_t at = (size_t)table[done / page] * page * stride + head * features;
        struct next_page next = {0};
        if (left > page) {
            const long more = left - page, rows = more < page ? more : page;
            const size_t from = (size_t)table[done / page + 1] * page * stride + head * features;
            next = (struct next_page){given->keys + from, given->values + from, rows,
                                      heads * features,   stride,               rows,
                                      steps,              0};
        }
        for (long q = 0; q < count; q++) {
            const size_t from = at + q / given->group * features;
            attend_page(given, queries + q, given->keys + from, given->values + from, tokens,
                        &next);
        }
    }
}

// ---- a prompt's rows: a block of tokens at a time, for all their queries
//
// As products of matrices: a block's keys are turned so that a vector holds one feature of eight
// tokens. A row's sums have the same order however the prompt is cut.

enum { ACROSS = 4, BLOCK = ACROSS * LANES, ABREAST = LANES == 16 ? 6 : 3, MOST_FEATURES = 256 };
enum { LEAST_ROWS = 8, MOST_ROWS = 32 };  // of a prompt, that a thread takes at a time

struct block {
    const cell *keys[BLOCK], *values[BLOCK];  // of each token
    long tokens;
    float turned[MOST_FEATURES][BLOCK] __attribute__((aligned(64)));
};

// Eight tokens' eight features from `i` on.
INLINE void turn(struct block *block, long token, long i)
{
    __m256 rows[8], pairs[8], fours[8];
    for (int t = 0; t < 8; t++)
        rows[t] = token + t < block->tokens ? load_eight_cells(block->keys[token + t] + i)
                                            : _mm256_setzero_ps();
    for (int t = 0; t < 8; t += 2) {
        pairs[t] = _mm256_unpacklo_ps(rows[t], rows[t + 1]);
        pairs[t + 1] = _mm256_unpackhi_ps(rows[t], rows[t + 1]);
    }
    for (int t = 0; t < 8; t += 4)
        for (int high = 0; high < 2; high++) {
            fours[t + 2 * high] = _mm256_shuffle_ps(pairs[t + high], pairs[t + 2 + high], 0x44);
            fours[t + 2 * high + 1] = _mm256_shuffle_ps(pairs[t + high], pairs[t + 2 + high], 0xEE);
        }
    for (int f = 0; f < 4; f++) {
        _mm256_store_ps(block->turned[i + f] + token,
                        _mm256_permute2f128_ps(fours[f], fours[f + 4], 0x20));
        _mm256_store_ps(block->turned[i + f + 4] + token,
                        _mm256_permute2f128_ps(fours[f], fours[f + 4], 0x31));
    }
}

// Where a token's key and value begin.
INLINE size_t place_of(const struct attention *given, const int64_t *table, long token, long head)
{
    const size_t page = (size_t)table[token / given->page];
    return ((page * given->page + token % given->page) * given->heads + head) * given->features;
}

INLINE void gather(struct block *block, const struct attention *given, const int64_t *table,
                   long first, long tokens, long head)
{
    block->tokens = tokens;
    for (long t = 0; t < tokens; t++) {
        const size_t at = place_of(given, table, first + t, head);
        block->keys[t] = given->keys + at, block->values[t] = given->values + at;
    }
    for (long i = 0; i < given->features; i += 8)
        for (long t = 0; t < BLOCK; t += 8) turn(block, t, i);
}

// Some queries' products with a block's keys.
INLINE void block_scores(const int count, const struct block *block, const struct query *queries,
                         long features, float scale, float scores[][BLOCK])
{
    floats sums[ABREAST][ACROSS];
    for (int q = 0; q < count; q++)
        for (int v = 0; v < ACROSS; v++) sums[q][v] = zeros();
    for (long i = 0; i < features; i++) {
        floats value[ABREAST];
        for (int q = 0; q < count; q++) value[q] = all(queries[q].from[i]);
        for (int v = 0; v < ACROSS; v++) {
            const floats keys = load(block->turned[i] + LANES * v);
            for (int q = 0; q < count; q++) sums[q][v] = fma_of(value[q], keys, sums[q][v]);
        }
    }
    for (int q = 0; q < count; q++)
        for (int v = 0; v < ACROSS; v++) store(scores[q] + LANES * v, sums[q][v] * all(scale));
}

// The values' sums by some queries' weights, of some vectors of features from `i` on.
INLINE void block_values(const int count, const int vectors, const struct block *block,
                         struct query *queries, const float *kept, float weights[][BLOCK], long i)
{
    floats sums[ABREAST][ACROSS];
    for (int q = 0; q < count; q++)
        for (int v = 0; v < vectors; v++)
            sums[q][v] = kept_of(queries[q].to + i + LANES * v, kept[q]);
    for (long t = 0; t < block->tokens; t++) {
        floats weight[ABREAST];
        for (int q = 0; q < count; q++) weight[q] = all(weights[q][t]);
        for (int v = 0; v < vectors; v++) {
            const floats values = load_cells(block->values[t] + i + LANES * v);
            for (int q = 0; q < count; q++) sums[q][v] = fma_of(weight[q], values, sums[q][v]);
        }
    }
    for (int q = 0; q < count; q++)
        for (int v = 0; v < vectors; v++) store(queries[q].to + i + LANES * v, sums[q][v]);
}

// What some queries find in a block; each attends to so many of its tokens.
INLINE void attend_block(const int count, const struct attention *given, const struct block *block,
                         struct query *queries, const long *tokens)
{
    float kept[ABREAST], scores[ABREAST][BLOCK];
    block_scores(count, block, queries, given->features, given->scale, scores);
    for (int q = 0; q < count; q++) {
        kept[q] = 1.0f;
        if (tokens[q] > 0)
            kept[q] = weigh(queries + q, scores[q], tokens[q], ACROSS);
        else
            memset(scores[q], 0, sizeof scores[q]);
    }
    long i = 0;
    for (; i + LANES * ACROSS <= given->features; i += LANES * ACROSS)
        block_values(count, ACROSS, block, queries, kept, scores, i);
    for (; i < given->features; i += LANES)
        block_values(count, 1, block, queries, kept, scores, i);
}

static void attend_rows(const struct attention *given, struct query *queries, const int64_t *table,
                        long start, long rows, long head)
{
    struct block block;
    const long count = rows * given->group, end = start + rows;
    for (long done = 0, fetched = BLOCK; done < end; done += BLOCK) {
        const long left = end - done;
        gather(&block, given, table, done, left < BLOCK ? left : BLOCK, head);
        for (long q = 0, taken; q < count; q += taken) {
            long tokens[ABREAST];
            taken = count - q >= ABREAST ? ABREAST : count - q > 3 ? 3 : count - q;
            for (long each = 0; each < taken; each++) {
                long own = start + (q + each) / given->group + 1 - done;
                tokens[each] = own < BLOCK ? own : BLOCK;
            }
            // A part of the next block is fetched with each group of queries.
            const long due = done + BLOCK + (q + taken) * BLOCK / count;
            for (; fetched < due && fetched < done + 2 * BLOCK && fetched < end; fetched++) {
                const size_t at = place_of(given, table, fetched, head);
                fetch_row(given->keys + at, given->values + at, given->features);
            }
            switch (taken) {
            case 1: attend_block(1, given, &block, queries + q, tokens); break;
            case 2: attend_block(2, given, &block, queries + q, tokens); break;
            case 3: attend_block(3, given, &block, queries + q, tokens); break;
            default: attend_block(ABREAST, given, &block, queries + q, tokens);
            }
        }
    }
}

// ---- sharing out the work

// A row's sums have the same order however work is shared out.
static void attend_item(const struct attention *given, const struct item *item)
{
    const long group = given->group, features = given->features, across = item->heads * group;
    const long count = item->rows * across, start = given->positions[item->first];
    const int64_t *table = given->tables + given->slots[item->first] * given->columns;
    struct query queries[count];
    for (long q = 0; q < count; q++) {
        long row = item->first + q / across, at = (item->head * group + q % across) * features;
        queries[q] = (struct query){given->queries + row * given->stride + at,
                                    given->out + row * given->heads * group * features + at,
                                    -INFINITY, 0.0f};
    }
    if (item->first < given->decodes)
        attend_row(given, queries, table, start + 1, item->head, item->heads);
    else
        attend_rows(given, queries, table, start, item->rows, item->head);
    divide_by_totals(queries, count, features);
}

static void attend_on_thread(void *work, long thread, long threads)
{
    struct attention *given = work;  // whoever is free takes the next item
    (void)thread, (void)threads;
    for (;;) {
        long next = __atomic_fetch_add(&given->next, 1, __ATOMIC_RELAXED);
        if (next >= given->count) return;
        attend_item(given, given->items + next);
    }
}

// Rows of prompts, some at a time, and then decodes: short work last, so that the threads end
// together. No run may be empty. Returns how many items there are.
static long share_out(const struct attention *given, const int64_t *runs, long count, long threads,
                      struct item *items)
{
    const long heads = given->heads;
    long made = 0, decodes = 0;
    for (long run = 0; run < count; run++) {
        if (runs[run] < given->decodes) {
            decodes++;
            continue;
        }
        const long end = runs[run + 1], wanted = (end - runs[run]) * heads / (4 * threads);
        const long rows = wanted < LEAST_ROWS ? LEAST_ROWS : wanted < MOST_ROWS ? wanted : MOST_ROWS;
        for (long head = 0; head < heads; head++)  // its pages stay in the cache for all rows
            for (long row = runs[run]; row < end; row += rows)
                items[made++] = (struct item){row, row + rows < end ? rows : end - row, head, 1};
    }
    // All heads of a page lie together in memory. But one item for each of a few decodes would leave
    // threads idle.
    const long together = decodes < 2 * threads ? 1 : heads;
    for (long run = 0; run < count; run++)
        if (runs[run] < given->decodes)
            for (long head = 0; head < heads; head += together)
                items[made++] = (struct item){runs[run], 1, head, together};
    return made;
}

void attend(const float *queries, const cell *keys, const cell *values, const int64_t *tables,
            const int64_t *slots, const int64_t *positions, const int64_t *runs, float *out,
            long count, long decodes, long heads, long group, long features, long page, long stride,
            long columns, float scale, long threads)
{
    struct attention given = {queries, keys,    values, tables, slots,    positions, out,    NULL,
                              0,       decodes, heads,  group,  features, page,      stride, columns,
                              scale,   0};
    given.items = malloc((runs[count] - runs[0]) * heads * sizeof *given.items);
    if (!given.items) abort();
    given.count = share_out(&given, runs, count, threads, given.items);
    long cost = 0;
    for (long row = runs[0]; row < runs[count]; row++)
        cost += (positions[row] + 1) * heads * group * features / 2;
    on_threads(attend_on_thread, &given, cost, threads);
    free(given.items);
}
