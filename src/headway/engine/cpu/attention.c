// Attention over pages where they lie.
//
// Rows of one sequence that follow each other are a run. A thread takes some rows of a run at a time,
// for one head: each page is in the cache for all of them. A decode is a run of one row.

#include "attention.h"

#include <stdlib.h>

const int most_page = MOST_PAGE, most_features = MOST_FEATURES;  // for Python

enum { LEAST_ROWS = 8, MOST_ROWS = 32 };  // of a prompt, that a thread takes at a time

struct item {  // some rows of a run, for some heads
    long first, rows, head, heads;
};

struct sharing {
    struct attention attention;
    struct item *items;  // of work
    long count;          // of them
    long decodes;        // rows, before all others
    long next;           // the item that nobody has taken yet
};

// A row's sums have the same order however work is shared out, as a decode and as part of a prompt.
static void attend_item(const struct attention *given, const struct item *item, int is_decode)
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
    if (is_decode)
        attend_row(given, queries, table, start + 1, item->head, item->heads);
    else
        attend_rows(given, queries, table, start, item->rows, item->head);
    for (long q = 0; q < count; q++)
        for (long i = 0; i < features; i++) queries[q].to[i] /= queries[q].total;
}

static void attend_on_thread(void *work, long thread, long threads)
{
    struct sharing *given = work;  // whoever is free takes the next item
    (void)thread, (void)threads;
    for (;;) {
        const long next = __atomic_fetch_add(&given->next, 1, __ATOMIC_RELAXED);
        if (next >= given->count) return;
        const struct item *item = given->items + next;
        attend_item(&given->attention, item, item->first < given->decodes);
    }
}

// Rows of prompts, some at a time, and then decodes: short work last, so that the threads end
// together. No run may be empty.
static void share_out(struct sharing *given, const int64_t *runs, long count, long threads)
{
    const long heads = given->attention.heads;
    struct item *items = given->items;
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
    given->count = made;
}

void attend(const float *queries, const cell *keys, const cell *values, const int64_t *tables,
            const int64_t *slots, const int64_t *positions, const int64_t *runs, float *out,
            long count, long decodes, long heads, long group, long features, long page, long stride,
            long columns, float scale, long threads)
{
    struct attention attention = {queries, keys,  values,   tables, slots,  positions, out,
                                  heads,   group, features, page,   stride, columns,   scale};
    struct item *items = malloc((runs[count] - runs[0]) * heads * sizeof *items);
    if (!items) abort();
    struct sharing given = {attention, items, 0, decodes, 0};
    share_out(&given, runs, count, threads);
    long cost = 0;
    for (long row = runs[0]; row < runs[count]; row++)
        cost += (positions[row] + 1) * heads * group * features / 2;
    on_threads(attend_on_thread, &given, cost, threads);
    free(items);
}
