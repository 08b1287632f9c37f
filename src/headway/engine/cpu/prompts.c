// A prompt's rows: a block of tokens at a time, for all their queries.
//
// As products of matrices: a block's keys are turned so that a vector holds one feature of LANES
// tokens. A row's sums have the same order however the prompt is cut.

#include "attention.h"

enum { ACROSS = 4, BLOCK = ACROSS * LANES, ABREAST = LANES == 16 ? 6 : 3 };

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
        for (int q = 0; q < count; q++) value[q] = broadcast(queries[q].from[i]);
        for (int v = 0; v < ACROSS; v++) {
            const floats keys = load(block->turned[i] + LANES * v);
            for (int q = 0; q < count; q++) sums[q][v] = fma_of(value[q], keys, sums[q][v]);
        }
    }
    for (int q = 0; q < count; q++)
        for (int v = 0; v < ACROSS; v++) store(scores[q] + LANES * v, sums[q][v] * broadcast(scale));
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
        for (int q = 0; q < count; q++) weight[q] = broadcast(weights[q][t]);
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

void attend_rows(const struct attention *given, struct query *queries, const int64_t *table,
                 long start, long rows, long head)
{
    struct block block;
    const long count = rows * given->group, end = start + rows;
    for (long done = 0, fetched = BLOCK; done < end; done += BLOCK) {
        const long left = end - done;
        gather(&block, given, table, done, left < BLOCK ? left : BLOCK, head);
        for (long q = 0, taken; q < count; q += taken) {
            long tokens[ABREAST];
            // As many as registers hold sums for; of those left over, 3 are usual: they share a head.
            taken = count - q >= ABREAST ? ABREAST : count - q > 3 ? 3 : count - q;
            for (long each = 0; each < taken; each++) {
                long own = start + (q + each) / given->group + 1 - done;
                tokens[each] = own < BLOCK ? own : BLOCK;
            }
            // A part of the next block is fetched with each group of queries.
            const long due = done + BLOCK + (q + taken) * BLOCK / count;
            for (; fetched < due && fetched < done + 2 * BLOCK && fetched < end; fetched++) {
                const size_t at = place_of(given, table, fetched, head);
                fetch(given->keys + at, given->features);
                fetch(given->values + at, given->features);
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
