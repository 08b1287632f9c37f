// A decode's row: the queries that share a head's keys go through them together, a stretch of the
// sequence at a time. Weights are made for a whole stretch, for by themselves they cost as much as
// some tokens.

#include "attention.h"

enum { BUNCH = LANES == 16 ? 4 : 3 };  // queries, whose sums fit into registers
enum { MANY = 4 };                     // vectors of features

struct stretch {
    const struct attention *given;
    const int64_t *table;  // from its first page on
    long tokens;
    long head, heads;
};

struct bunch {  // queries of one head, and what they find in the stretch: scores, which become weights
    struct query *queries;
    float (*weights)[MOST_PAGE];
    const float *kept;  // how much of what was found before
    long head, count;
};

// Rows that are fetched between the steps of the computation on others: pages lie anywhere, so the
// processor cannot guess where the next one is. All at once would be no gain: it waits for some
// twenty of them at a time.
struct fetched {
    const cell *row;
    long left, cells, stride;  // rows; cells of a row that are needed; cells between two rows
    long rows, steps, due;     // `rows` are fetched over `steps`; due now, in 1 / steps of a row
};

INLINE void fetch_some(struct fetched *rows)
{
    for (rows->due += rows->rows; rows->due >= rows->steps && rows->left; rows->left--) {
        fetch(rows->row, rows->cells);
        rows->row += rows->stride;
        rows->due -= rows->steps;
    }
}

INLINE long stride_of(const struct attention *given) { return given->heads * given->features; }

// Where a page begins, for the stretch's heads.
INLINE size_t page_at(const struct stretch *stretch, long page)
{
    const struct attention *given = stretch->given;
    return place_of(given, stretch->table, page * given->page, stretch->head);
}

INLINE struct fetched rows_of(const struct stretch *stretch, const cell *pages, long page,
                              long steps)
{
    const struct attention *given = stretch->given;
    const long rows = given->page, cells = stretch->heads * given->features;
    const cell *first = pages + page_at(stretch, page);
    return (struct fetched){first, rows, cells, stride_of(given), rows, steps, 0};
}

// Some queries' products with the keys of four tokens.
INLINE void four_scores(const int count, const struct attention *given, const struct bunch *bunch,
                        const cell *keys, long token)
{
    const long stride = stride_of(given);
    floats sums[BUNCH][4];
    for (int q = 0; q < count; q++)
        for (int t = 0; t < 4; t++) sums[q][t] = zeros();
    for (long i = 0; i < given->features; i += LANES) {
        floats parts[BUNCH];
        for (int q = 0; q < count; q++) parts[q] = load(bunch->queries[q].from + i);
        for (int t = 0; t < 4; t++) {
            const floats key = load_cells(keys + t * stride + i);
            for (int q = 0; q < count; q++) sums[q][t] = fma_of(parts[q], key, sums[q][t]);
        }
    }
    for (int q = 0; q < count; q++)
        _mm_storeu_ps(bunch->weights[q] + token,
                      four_sums_of(sums[q]) * _mm_set1_ps(given->scale));
}

// The scores of a page's unused places are computed, for its memory is there, and then have no weight.
INLINE void page_scores(const int count, const struct stretch *stretch, const struct bunch *bunch,
                        long page, struct fetched *next_keys, struct fetched *own_values)
{
    const struct attention *given = stretch->given;
    const long first = page * given->page, left = stretch->tokens - first;
    const long tokens = left < given->page ? left : given->page;
    const cell *keys = given->keys + page_at(stretch, page) + bunch->head * given->features;
    for (long t = 0; t < tokens; t += 4) {
        fetch_some(next_keys);
        fetch_some(own_values);
        four_scores(count, given, bunch, keys + t * stride_of(given), first + t);
    }
}

// The values' sums by some queries' weights, of some vectors of features from `i` on, added to what
// is kept of those before.
INLINE void values_at(const int count, const int vectors, const struct stretch *stretch,
                      const struct bunch *bunch, long i)
{
    const struct attention *given = stretch->given;
    const struct query *queries = bunch->queries;
    floats sums[BUNCH][MANY];
    for (int q = 0; q < count; q++)
        for (int v = 0; v < vectors; v++)
            sums[q][v] = kept_of(queries[q].to + i + LANES * v, bunch->kept[q]);
    for (long first = 0; first < stretch->tokens; first += given->page) {
        const long left = stretch->tokens - first, tokens = left < given->page ? left : given->page;
        const cell *row = given->values + page_at(stretch, first / given->page) +
                          bunch->head * given->features + i;
        for (long t = first; t < first + tokens; t++, row += stride_of(given)) {
            floats weights[BUNCH];
            for (int q = 0; q < count; q++) weights[q] = broadcast(bunch->weights[q][t]);
            for (int v = 0; v < vectors; v++) {
                const floats value = load_cells(row + LANES * v);
                for (int q = 0; q < count; q++) sums[q][v] = fma_of(weights[q], value, sums[q][v]);
            }
        }
    }
    for (int q = 0; q < count; q++)
        for (int v = 0; v < vectors; v++) store(queries[q].to + i + LANES * v, sums[q][v]);
}

INLINE void values_of(const int count, const struct stretch *stretch, const struct bunch *bunch)
{
    const long features = stretch->given->features;
    long i = 0;
    for (; i + LANES * MANY <= features; i += LANES * MANY)
        values_at(count, MANY, stretch, bunch, i);
    for (; i < features; i += LANES) values_at(count, 1, stretch, bunch, i);
}

static void score_page(const struct stretch *stretch, const struct bunch *bunch, long page,
                       struct fetched *next_keys, struct fetched *own_values)
{
    switch (bunch->count) {
    case 1: page_scores(1, stretch, bunch, page, next_keys, own_values); break;
    case 2: page_scores(2, stretch, bunch, page, next_keys, own_values); break;
    case 3: page_scores(3, stretch, bunch, page, next_keys, own_values); break;
    default: page_scores(BUNCH, stretch, bunch, page, next_keys, own_values);
    }
}

static void add_values(const struct stretch *stretch, const struct bunch *bunch)
{
    switch (bunch->count) {
    case 1: values_of(1, stretch, bunch); break;
    case 2: values_of(2, stretch, bunch); break;
    case 3: values_of(3, stretch, bunch); break;
    default: values_of(BUNCH, stretch, bunch);
    }
}

static void attend_stretch(const struct stretch *stretch, struct query *queries, int has_more)
{
    const struct attention *given = stretch->given;
    const long group = given->group, count = stretch->heads * group, page = given->page;
    const long tokens = stretch->tokens, pages = (tokens + page - 1) / page;
    float weights[count][MOST_PAGE], kept[count];
    struct bunch bunches[count];
    long made = 0;
    for (long head = 0; head < stretch->heads; head++)
        for (long q = 0; q < group; q += BUNCH) {
            const long at = head * group + q, left = group - q;
            bunches[made++] = (struct bunch){queries + at, weights + at, kept + at, head,
                                             left < BUNCH ? left : BUNCH};
        }
    for (long number = 0; number < pages; number++) {
        const long steps = made * page / 4;
        struct fetched next_keys = {0}, own_values = rows_of(stretch, given->values, number, steps);
        if (number + 1 < pages || has_more)
            next_keys = rows_of(stretch, given->keys, number + 1, steps);
        for (long bunch = 0; bunch < made; bunch++)
            score_page(stretch, bunches + bunch, number, &next_keys, &own_values);
    }
    for (long q = 0; q < count; q++)
        kept[q] = weigh(queries + q, weights[q], tokens, (tokens + LANES - 1) / LANES);
    for (long bunch = 0; bunch < made; bunch++) add_values(stretch, bunches + bunch);
}

void attend_row(const struct attention *given, struct query *queries, const int64_t *table,
                long length, long head, long heads)
{
    const long most = stretch_of(given);
    for (long done = 0; done < length; done += most) {
        const long left = length - done, tokens = left < most ? left : most;
        const struct stretch stretch = {given, table + done / given->page, tokens, head, heads};
        attend_stretch(&stretch, queries, left > most);
    }
}
