// What attention over pages has in common, for a decode's one row and for a prompt's many.

#pragma once

#include <string.h>

#include "common.h"

enum { MOST_PAGE = 256, MOST_FEATURES = 256 };  // tokens, a multiple of four; and of a head
enum { STRETCH = 128 };                         // tokens; or a page, if it has more

struct attention {
    const float *queries;
    const cell *keys, *values;
    const int64_t *tables, *slots, *positions;  // of each row: its sequence's table, its place there
    float *out;
    long heads, group, features, page, stride, columns;
    float scale;
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
    const float top = max_of(tops), most = top > query->most ? top : query->most;
    for (long v = 0; v < vectors; v++) {
        const floats part = exponential(load(scores + LANES * v) - broadcast(most));
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
    return load(found) * broadcast(kept);
}

// So many tokens' scores become weights together: whole pages.
INLINE long stretch_of(const struct attention *given)
{
    return given->page < STRETCH ? STRETCH / given->page * given->page : given->page;
}

// Where a token's key or value begins, of that head.
INLINE size_t place_of(const struct attention *given, const int64_t *table, long token, long head)
{
    const size_t page = (size_t)table[token / given->page];
    return ((page * given->page + token % given->page) * given->heads + head) * given->features;
}

INLINE void fetch(const cell *row, long cells)
{
    for (long i = 0; i < cells; i += 64 / sizeof(cell))
        _mm_prefetch((const char *)(row + i), _MM_HINT_T0);
}

// One row's queries of some heads: what they find in the first `length` tokens of a sequence.
__attribute__((visibility("hidden"))) void attend_row(const struct attention *given,
                                                      struct query *queries, const int64_t *table,
                                                      long length, long head, long heads);

// Several rows' queries of one head, of which the first is at `start`.
__attribute__((visibility("hidden"))) void attend_rows(const struct attention *given,
                                                       struct query *queries, const int64_t *table,
                                                       long start, long rows, long head);
