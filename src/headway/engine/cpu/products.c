// Products with weights.
//
// Weights lie in panels of WIDTH outputs: [panel][input][WIDTH]. They are widened to float32 as
// they are multiplied. Sums run over some inputs at a time, for which a panel stays in the cache.

#include "common.h"

enum { WIDTH = 16, DEEPEST = 640, HEIGHT = 96, TALLEST = 6, WIDEST = 4, AHEAD = 1536 };
enum { FEW = 3 };                           // rows, for which weights only pass through
enum { PIECES = 4, PIECES_OF_FEW_ROWS = 2 };  // of a product, for each thread
enum kind { HALF, BRAIN, INT8 };

struct product {
    const char *weights;
    const float *scales;  // of each output; NULL: none
    const float *x;
    float *y;
    long rows, outputs, inputs;
    enum kind kind;
    long next;  // the piece that nobody has taken yet
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

// Of the inputs, as many as are summed at a time: about the same number each time.
INLINE long depth_of(const struct product *given)
{
    const long times = (given->inputs + DEEPEST - 1) / DEEPEST;
    return (given->inputs + times - 1) / times;
}

// Weights that are fetched while others are multiplied: so many bytes for each input.
struct ahead {
    const char *from;
    size_t bytes;
};

// Some rows by some panels, over `depth` inputs from `start` on.
INLINE void tile(const enum kind kind, const int rows, const int panels,
                 const struct product *given, long row, long panel, long start, long depth,
                 struct ahead ahead)
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
            _mm_prefetch(ahead.from + p * stride + i * ahead.bytes, _MM_HINT_T0);
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

INLINE const char *weights_at(const enum kind kind, const struct product *given, long panel,
                              long start)
{
    return given->weights + (panel * given->inputs + start) * size_of(kind) * WIDTH;
}

// Few rows: the weights come from memory, once, and several panels at a time keep it busy.
INLINE void few_rows(const enum kind kind, const int rows, const int panels,
                     const struct product *given, long begin, long end)
{
    const long most = depth_of(given);
    for (long panel = begin; panel < end;) {
        const int is_wide = panel + panels <= end;
        for (long start = 0; start < given->inputs; start += most) {
            const long left = given->inputs - start, depth = left < most ? left : most;
            const struct ahead ahead = {weights_at(kind, given, panel, start) + AHEAD,
                                        size_of(kind) * WIDTH};
            if (is_wide)
                tile(kind, rows, panels, given, 0, panel, start, depth, ahead);
            else
                tile(kind, rows, 1, given, 0, panel, start, depth, ahead);
        }
        panel += is_wide ? panels : 1;
    }
}

// Rows from `row` to `bottom` by one panel: in tiles of about the same height, for a low one takes
// as long as a higher one. Meanwhile the next panel comes from memory, a part with each tile.
INLINE void many_rows_by_panel(const enum kind kind, const struct product *given, long row,
                               long bottom, long panel, long start, long depth, const char *next)
{
    const long tiles = (bottom - row + TALLEST - 1) / TALLEST;
    const size_t bytes = (size_of(kind) * WIDTH + tiles - 1) / tiles;
    for (long left = tiles; left; left--) {
        const long rows = (bottom - row + left - 1) / left;
        const struct ahead ahead = {next, bytes};
        switch (rows) {
        case 6: tile(kind, 6, 1, given, row, panel, start, depth, ahead); break;
        case 5: tile(kind, 5, 1, given, row, panel, start, depth, ahead); break;
        case 4: tile(kind, 4, 1, given, row, panel, start, depth, ahead); break;
        case 3: tile(kind, 3, 1, given, row, panel, start, depth, ahead); break;
        case 2: tile(kind, 2, 1, given, row, panel, start, depth, ahead); break;
        case 1: tile(kind, 1, 1, given, row, panel, start, depth, ahead); break;
        }
        row += rows;
        next += bytes * depth;
    }
}

// Many rows: a panel's part is used for HEIGHT rows while it is in the cache.
INLINE void many_rows(const enum kind kind, const struct product *given, long begin, long end)
{
    const long most = depth_of(given);
    for (long top = 0; top < given->rows; top += HEIGHT) {
        const long bottom = top + HEIGHT < given->rows ? top + HEIGHT : given->rows;
        for (long start = 0; start < given->inputs; start += most) {
            const long left = given->inputs - start, depth = left < most ? left : most;
            for (long panel = begin; panel < end; panel++) {
                const char *next = panel + 1 < end ? weights_at(kind, given, panel + 1, start)
                                                   : weights_at(kind, given, begin, start + depth);
                many_rows_by_panel(kind, given, top, bottom, panel, start, depth, next);
            }
        }
    }
}

INLINE void multiply_panels(const enum kind kind, const struct product *given, long begin, long end)
{
    switch (given->rows) {
    case 1: few_rows(kind, 1, 4, given, begin, end); break;
    case 2: few_rows(kind, 2, 2, given, begin, end); break;
    case 3: few_rows(kind, 3, 2, given, begin, end); break;
    default: many_rows(kind, given, begin, end);
    }
}

// Whoever is free takes the next panels: a thread that has to leave its core for a moment, to another
// process or another machine's guest, holds up one piece, not half of the product.
static void multiply_on_thread(void *work, long thread, long threads)
{
    struct product *given = work;
    const long each = given->rows <= FEW ? PIECES_OF_FEW_ROWS : PIECES;
    const long pieces = threads > 1 ? each * threads : 1;
    (void)thread;
    for (;;) {
        const long piece = __atomic_fetch_add(&given->next, 1, __ATOMIC_RELAXED);
        if (piece >= pieces) return;
        long begin, end;
        share(given->outputs / WIDTH, piece, pieces, &begin, &end);
        switch (given->kind) {
        case HALF: multiply_panels(HALF, given, begin, end); break;
        case BRAIN: multiply_panels(BRAIN, given, begin, end); break;
        case INT8: multiply_panels(INT8, given, begin, end); break;
        }
    }
}

void multiply(const char *weights, const float *scales, const float *x, float *y, long rows,
              long outputs, long inputs, int kind, long threads)
{
    struct product given = {weights, scales, x, y, rows, outputs, inputs, kind, 0};
    on_threads(multiply_on_thread, &given, rows * outputs * inputs, threads);
}
