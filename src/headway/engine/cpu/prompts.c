// A prompt's rows: a stretch of the sequence at a time, for all their queries.
//
// As products of matrices: keys are turned so that a vector holds one feature of LANES tokens. Every
// sum has the order that it has in a decode's row. So a token is the same to the bit wherever its
// prompt is cut, and when an answer is computed again as part of a prompt.

#include "attention.h"

enum { ACROSS = 4, BLOCK = ACROSS * LANES, ABREAST = LANES == 16 ? 6 : 3 };
enum { IS_FOLDED = LANES == 16, VECTORS = IS_FOLDED ? ACROSS / 2 : ACROSS };  // of tokens, abreast

struct gathered {  // a stretch of one head
    const cell *keys[MOST_PAGE], *values[MOST_PAGE];  // of each token
    long tokens;
    float turned[MOST_PAGE / BLOCK][MOST_FEATURES][BLOCK] __attribute__((aligned(64)));
};

// Eight tokens' eight features from `i` on.
INLINE void turn(struct gathered *found, long token, long i)
{
    float (*turned)[BLOCK] = found->turned[token / BLOCK];
    __m256 rows[8], pairs[8], fours[8];
    for (int t = 0; t < 8; t++)
        rows[t] = token + t < found->tokens ? load_eight_cells(found->keys[token + t] + i)
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
        _mm256_store_ps(turned[i + f] + token % BLOCK,
                        _mm256_permute2f128_ps(fours[f], fours[f + 4], 0x20));
        _mm256_store_ps(turned[i + f + 4] + token % BLOCK,
                        _mm256_permute2f128_ps(fours[f], fours[f + 4], 0x31));
    }
}

INLINE void gather(struct gathered *found, const struct attention *given, const int64_t *table,
                   long first, long tokens, long head)
{
    found->tokens = tokens;
    for (long t = 0; t < tokens; t++) {
        const size_t at = place_of(given, table, first + t, head);
        found->keys[t] = given->keys + at, found->values[t] = given->values + at;
    }
    for (long block = 0; block < tokens; block += BLOCK)
        for (long i = 0; i < given->features; i += 8)
            for (long t = 0; t < BLOCK; t += 8) turn(found, block + t, i);
}

// Some queries' products with some tokens' keys: of the features that lie in one lane of a decode's
// vectors or, of sixteen lanes, in the two that `folded` adds.
INLINE void lane_sums(const int count, const float (*turned)[BLOCK], const struct query *queries,
                      long features, long lane, floats sums[ABREAST][VECTORS])
{
    const long other = IS_FOLDED ? lane + 8 : lane;
    floats others[ABREAST][VECTORS];
    for (int q = 0; q < count; q++)
        for (int v = 0; v < VECTORS; v++) sums[q][v] = others[q][v] = zeros();
    for (long i = 0; i < features; i += LANES) {
        const float *keys = turned[i + lane], *other_keys = turned[i + other];
        for (int q = 0; q < count; q++) {
            const floats x = broadcast(queries[q].from[i + lane]);
            const floats y = broadcast(queries[q].from[i + other]);
            for (int v = 0; v < VECTORS; v++) {
                sums[q][v] = fma_of(x, load(keys + LANES * v), sums[q][v]);
                if (IS_FOLDED)
                    others[q][v] = fma_of(y, load(other_keys + LANES * v), others[q][v]);
            }
        }
    }
    for (int q = 0; q < count && IS_FOLDED; q++)
        for (int v = 0; v < VECTORS; v++) sums[q][v] += others[q][v];
}

// Some queries' scores of some vectors of tokens. Lanes' sums are added as `four_sums_of` adds them:
// neighbours, then pairs of them, then the two halves.
INLINE void scores_of(const int count, const struct gathered *found, const struct query *queries,
                      const struct attention *given, float scores[][MOST_PAGE], long first)
{
    const float *from = found->turned[first / BLOCK][0] + first % BLOCK;
    floats parts[3][ABREAST][VECTORS];  // of one lane, of two, of four
    for (int lane = 0; lane < 8; lane++) {
        floats sums[ABREAST][VECTORS];
        int level = 0;
        lane_sums(count, (const float (*)[BLOCK])from, queries, given->features, lane, sums);
        for (; lane >> level & 1; level++)
            for (int q = 0; q < count; q++)
                for (int v = 0; v < VECTORS; v++) sums[q][v] += parts[level][q][v];
        for (int q = 0; q < count; q++)
            for (int v = 0; v < VECTORS; v++)
                if (level < 3)
                    parts[level][q][v] = sums[q][v];
                else
                    store(scores[q] + first + LANES * v, sums[q][v] * broadcast(given->scale));
    }
}

// The values' sums by some queries' weights, of some vectors of features from `i` on.
INLINE void values_at(const int count, const int vectors, const struct gathered *found,
                      struct query *queries, const float *kept, float weights[][MOST_PAGE],
                      long tokens, long i)
{
    floats sums[ABREAST][ACROSS];
    for (int q = 0; q < count; q++)
        for (int v = 0; v < vectors; v++)
            sums[q][v] = kept_of(queries[q].to + i + LANES * v, kept[q]);
    for (long t = 0; t < tokens; t++) {
        floats weight[ABREAST];
        for (int q = 0; q < count; q++) weight[q] = broadcast(weights[q][t]);
        for (int v = 0; v < vectors; v++) {
            const floats values = load_cells(found->values[t] + i + LANES * v);
            for (int q = 0; q < count; q++) sums[q][v] = fma_of(weight[q], values, sums[q][v]);
        }
    }
    for (int q = 0; q < count; q++)
        for (int v = 0; v < vectors; v++) store(queries[q].to + i + LANES * v, sums[q][v]);
}

// What some queries find in a stretch: query q attends to its first tokens[q], the last to most.
INLINE void attend_some(const int count, const struct attention *given,
                        const struct gathered *found, struct query *queries, const long *tokens)
{
    const long most = tokens[count - 1], features = given->features;
    float kept[ABREAST], scores[ABREAST][MOST_PAGE];
    for (long first = 0; first < most; first += VECTORS * LANES)
        scores_of(count, found, queries, given, scores, first);
    for (int q = 0; q < count; q++) {
        kept[q] = 1.0f;
        if (tokens[q] > 0)
            kept[q] = weigh(queries + q, scores[q], tokens[q], (most + LANES - 1) / LANES);
        else
            memset(scores[q], 0, most * sizeof(float));
    }
    long i = 0;
    for (; i + LANES * ACROSS <= features; i += LANES * ACROSS)
        values_at(count, ACROSS, found, queries, kept, scores, most, i);
    for (; i < features; i += LANES) values_at(count, 1, found, queries, kept, scores, most, i);
}

void attend_rows(const struct attention *given, struct query *queries, const int64_t *table,
                 long start, long rows, long head)
{
    struct gathered found;
    const long count = rows * given->group, end = start + rows, stretch = stretch_of(given);
    for (long done = 0, fetched = stretch; done < end; done += stretch) {
        const long left = end - done;
        gather(&found, given, table, done, left < stretch ? left : stretch, head);
        for (long q = 0, taken; q < count; q += taken) {
            long tokens[ABREAST];
            // As many as registers hold sums for; of those left over, 3 are usual: they share a head.
            taken = count - q >= ABREAST ? ABREAST : count - q > 3 ? 3 : count - q;
            for (long each = 0; each < taken; each++) {
                long own = start + (q + each) / given->group + 1 - done;
                tokens[each] = own < stretch ? own : stretch;
            }
            // A part of the next stretch is fetched with each group of queries.
            const long due = done + stretch + (q + taken) * stretch / count;
            for (; fetched < due && fetched < done + 2 * stretch && fetched < end; fetched++) {
                const size_t at = place_of(given, table, fetched, head);
                fetch(given->keys + at, given->features);
                fetch(given->values + at, given->features);
            }
            if (tokens[taken - 1] <= 0) continue;  // the stretch begins after their rows
            switch (taken) {
            case 1: attend_some(1, given, &found, queries + q, tokens); break;
            case 2: attend_some(2, given, &found, queries + q, tokens); break;
            case 3: attend_some(3, given, &found, queries + q, tokens); break;
            default: attend_some(ABREAST, given, &found, queries + q, tokens);
            }
        }
    }
}
