// Products with weights.
//
// Weights lie in panels of WIDTH outputs: [panel][input][WIDTH]. They are widened to float32 as they
// are multiplied. Where the processor multiplies bf16 by itself, they lie as it takes them, two
// inputs at a time, and so do the rows: [panel][input / 2][WIDTH][2]. Either way a step takes four
// bytes of a row. Sums run over some steps at a time, for which a panel stays in the cache.

#include <stdlib.h>

#include "common.h"

enum { WIDTH = 16, VECTORS = WIDTH / LANES };  // outputs of a panel; vectors of them
const int panel_width = WIDTH;                 // for Python
enum { TALLEST = 6, ABREAST = LANES == 16 ? 4 : 1 };  // rows by panels: whose sums fit into registers
enum { WIDEST = 4 };                                  // panels, of few rows
enum { DEEPEST = 640, HEIGHT = 96, AHEAD = 1536 };
enum { FEW = 3 };                             // rows, for which weights only pass through
enum { PIECES = 4, PIECES_OF_FEW_ROWS = 2 };  // of a product, for each thread

struct product {
    const char *weights;
    const float *scales;  // of each output; NULL: none
    const float *x;       // or pairs of bf16
    float *y;
    long rows, outputs, steps;
    enum kind kind;
    long next;  // the piece that nobody has taken yet
};

// Of a weight, or of a pair of them.
INLINE size_t size_of(enum kind kind) { return kind == INT8 ? 1 : kind == BF16_PAIRS ? 4 : 2; }

INLINE floats widened(enum kind kind, const char *at)
{
    if (kind == HALF) return from_half(at);
    if (kind == INT8) return from_int8(at);
    if (kind == BF16_WIDENED) return from_bf16(at);
    return load((const float *)at);
}

INLINE floats added(enum kind kind, floats value, floats weights, floats sum)
{
#ifdef __AVX512BF16__
    if (kind == BF16_PAIRS) return add_pairs(weights, value, sum);
#endif
    (void)kind;
    return fma_of(value, weights, sum);
}

// As many steps as are summed at a time: about the same number each time.
INLINE long depth_of(const struct product *given)
{
    const long times = (given->steps + DEEPEST - 1) / DEEPEST;
    return (given->steps + times - 1) / times;
}

// Weights that are fetched while others are multiplied: `bytes` in each step.
struct ahead {
    const char *from;
    size_t bytes;
};

// Some rows by some panels, over `depth` steps from `start` on.
INLINE void tile(const enum kind kind, const int rows, const int panels,
                 const struct product *given, long row, long panel, long start, long depth,
                 struct ahead ahead)
{
    const size_t size = size_of(kind) * WIDTH, stride = size * given->steps;
    const char *weights = given->weights + panel * stride + start * size;
    const float *x = given->x + row * given->steps + start;
    floats sums[TALLEST][VECTORS * WIDEST];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS * panels; v++) sums[r][v] = zeros();
    for (long i = 0; i < depth; i++) {
        floats wide[VECTORS * WIDEST];
        for (int p = 0; p < panels; p++) {
            const char *at = weights + p * stride + i * size;
            _mm_prefetch(ahead.from + p * stride + i * ahead.bytes, _MM_HINT_T0);
            for (int v = 0; v < VECTORS; v++)
                wide[VECTORS * p + v] = widened(kind, at + v * size / VECTORS);
        }
        for (int r = 0; r < rows; r++) {
            const floats value = broadcast(x[r * given->steps + i]);
            for (int v = 0; v < VECTORS * panels; v++)
                sums[r][v] = added(kind, value, wide[v], sums[r][v]);
        }
    }
    const int is_last = start + depth == given->steps;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS * panels; v++) {
            long output = panel * WIDTH + LANES * v;
            float *to = given->y + (row + r) * given->outputs + output;
            floats sum = sums[r][v];
            if (start) sum += load(to);
            if (kind == INT8 && is_last) sum *= load(given->scales + output);
            store(to, sum);
        }
}

INLINE const char *weights_at(const enum kind kind, const struct product *given, long panel,
                              long start)
{
    return given->weights + (panel * given->steps + start) * size_of(kind) * WIDTH;
}

// Few rows: the weights come from memory, once, and several panels at a time keep it busy.
INLINE void few_rows(const enum kind kind, const int rows, const int panels,
                     const struct product *given, long begin, long end)
{
    const long most = depth_of(given);
    for (long panel = begin; panel < end;) {
        const int is_wide = panel + panels <= end;
        for (long start = 0; start < given->steps; start += most) {
            const long left = given->steps - start, depth = left < most ? left : most;
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

// Rows from `row` to `bottom` by some panels: in tiles of about the same height, for a low one takes
// as long as a higher one. Meanwhile the next panels come from memory, a part with each tile.
INLINE void many_rows_by_panels(const enum kind kind, const int panels, const struct product *given,
                                long row, long bottom, long panel, long start, long depth,
                                const char *next)
{
    const long tiles = (bottom - row + TALLEST - 1) / TALLEST;
    const size_t bytes = (size_of(kind) * WIDTH + tiles - 1) / tiles;
    for (long left = tiles; left; left--) {
        const long rows = (bottom - row + left - 1) / left;
        const struct ahead ahead = {next, bytes};
        switch (rows) {
        case 6: tile(kind, 6, panels, given, row, panel, start, depth, ahead); break;
        case 5: tile(kind, 5, panels, given, row, panel, start, depth, ahead); break;
        case 4: tile(kind, 4, panels, given, row, panel, start, depth, ahead); break;
        case 3: tile(kind, 3, panels, given, row, panel, start, depth, ahead); break;
        case 2: tile(kind, 2, panels, given, row, panel, start, depth, ahead); break;
        case 1: tile(kind, 1, panels, given, row, panel, start, depth, ahead); break;
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
        for (long start = 0; start < given->steps; start += most) {
            const long left = given->steps - start, depth = left < most ? left : most;
            for (long panel = begin; panel < end;) {
                const int is_wide = panel + ABREAST <= end;
                const long then = panel + (is_wide ? ABREAST : 1);
                const char *next = then < end ? weights_at(kind, given, then, start)
                                              : weights_at(kind, given, begin, start + depth);
                if (is_wide)
                    many_rows_by_panels(kind, ABREAST, given, top, bottom, panel, start, depth,
                                        next);
                else
                    many_rows_by_panels(kind, 1, given, top, bottom, panel, start, depth, next);
                panel = then;
            }
        }
    }
}

INLINE void multiply_panels(const enum kind kind, const struct product *given, long begin, long end)
{
    switch (given->rows) {
    case 1: few_rows(kind, 1, 4, given, begin, end); break;
    case 2: few_rows(kind, 2, LANES == 16 ? 4 : 2, given, begin, end); break;
    case 3: few_rows(kind, 3, LANES == 16 ? 4 : 2, given, begin, end); break;
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
    const long panels = given->outputs / WIDTH, groups = (panels + ABREAST - 1) / ABREAST;
    (void)thread;
    for (;;) {
        const long piece = __atomic_fetch_add(&given->next, 1, __ATOMIC_RELAXED);
        if (piece >= pieces) return;
        long begin, end;
        share(groups, piece, pieces, &begin, &end);
        begin *= ABREAST;
        end = end * ABREAST < panels ? end * ABREAST : panels;
        switch (given->kind) {
        case HALF: multiply_panels(HALF, given, begin, end); break;
        case BF16_WIDENED: multiply_panels(BF16_WIDENED, given, begin, end); break;
        case INT8: multiply_panels(INT8, given, begin, end); break;
#ifdef __AVX512BF16__
        case BF16_PAIRS: multiply_panels(BF16_PAIRS, given, begin, end); break;
#else
        case BF16_PAIRS: abort();  // Python asks for none
#endif
        }
    }
}

void multiply(const char *weights, const float *scales, const void *x, float *y, long rows,
              long outputs, long inputs, int kind, long threads)
{
    const long steps = kind == BF16_PAIRS ? inputs / 2 : inputs;
    struct product given = {weights, scales, x, y, rows, outputs, steps, kind, 0};
    on_threads(multiply_on_thread, &given, rows * outputs * steps, threads);
}
