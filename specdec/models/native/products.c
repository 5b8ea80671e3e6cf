/* y = x W^T (+ bias) (+ base) for a few rows, reading every weight once, while the memory never waits.
 *
 * Weights lie in blocks of 32 outputs by 2 inputs: two vectors hold two inputs' weights of all outputs, a row's two inputs
 * are broadcast, and no sum crosses a vector.  Blocks follow one another, so that a thread reads one straight stream; it
 * asks for what lies a fixed way ahead, over a block's end into the next, over its last block's end into the product that
 * it computes next.  So the arithmetic of several rows hides behind the reading: on two Zen 5 cores a layer's products take
 * 1.02 times as long for 12 rows as for one.  Each row of each output has a sum of its own that runs over the inputs in
 * order, so that a result does not depend on how many rows, blocks or threads there are.
 */
#include "native.h"

enum { VECTORS = BLOCK / 16, PAIR = 2 * BLOCK }; /* elements that two inputs take in a block */
enum { MOST_ROWS = 12 }; /* whose sums, with a pair's weights and one row's inputs, fit the 32 registers */
enum { AHEAD = 4096 };   /* elements: 8 KB */

/* Weights [outputs, inputs] into the blocks of a product, which are zeros before. */
void pack(const bf16 *from, bf16 *to, int64_t inputs, int64_t outputs, int64_t threads) {
    const int64_t blocks = (outputs + BLOCK - 1) / BLOCK, pairs = (inputs + 1) / 2;
#pragma omp parallel for num_threads(threads)
    for (int64_t block = 0; block < blocks; block++) {
        const bf16 *rows = from + block * BLOCK * inputs;
        const int64_t there = smaller(BLOCK, outputs - block * BLOCK);
        bf16 *at = to + block * pairs * PAIR;
        for (int64_t k = 0; k < inputs; k += 2, at += PAIR) {
            const size_t both = sizeof(bf16) * (size_t)smaller(2, inputs - k);
            for (int64_t row = 0; row < there; row++) __builtin_memcpy(at + 2 * row, rows + row * inputs + k, both);
        }
    }
}

static inline int64_t size_of(const Product *p) { return (p->inputs + 1) / 2 * PAIR; } /* of a block */

/* The block that thread `me` of `team` begins with, and that it ends before as `me` + 1. */
static inline int64_t block_of(const Product *p, int64_t me, int64_t team) {
    return share((p->outputs + BLOCK - 1) / BLOCK, me, team);
}

int64_t outputs_before(const Product *p, int64_t me, int64_t team) {
    return smaller(block_of(p, me, team) * BLOCK, p->outputs);
}

/* The weights that this thread reads. */
Soon share_of(const Product *p, int64_t me, int64_t team) {
    return (Soon){(uintptr_t)(p->weight + block_of(p, me, team) * size_of(p)),
                  (uintptr_t)(p->weight + block_of(p, me + 1, team) * size_of(p))};
}

/* What to ask for: `at`, which goes on by `pace` bytes at a time, and after `left` times from `next`. */
typedef struct {
    uintptr_t at, next;
    int64_t left, pace;
} Ahead;

static inline Ahead look(uintptr_t at, uintptr_t end, uintptr_t next, int64_t pace) {
    if (at < end) return (Ahead){at, next, (int64_t)(end - at) / pace, pace};
    return (Ahead){next + (at - end), next, INT64_MAX, pace};
}

static inline __attribute__((always_inline)) void go_on(Ahead *ahead) {
    if (ahead->left-- == 0) ahead->at = ahead->next;
#pragma GCC unroll 4
    for (uintptr_t v = 0; v < VECTORS; v++) ask(ahead->at + 64 * v);
    ahead->at += (uintptr_t)ahead->pace;
}

static inline __attribute__((always_inline)) __m512bh both(const bf16 *x, int64_t left) {
    int32_t two = 0;
    __builtin_memcpy(&two, x, left >= 2 ? 4 : 2);
    return (__m512bh)_mm512_set1_epi32(two);
}

/* Two inputs (one, where `left` is one) of every row into the sums of a block. */
static inline __attribute__((always_inline)) void pair(const bf16 *w, const bf16 *x, int64_t inputs, int64_t left,
                                                       const int rows, __m512 sums[MOST_ROWS][VECTORS]) {
    __m512bh weights[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) weights[v] = (__m512bh)_mm512_loadu_si512(w + 32 * v);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        const __m512bh two = both(x + r * inputs, left);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], weights[v], two);
    }
}

static inline __attribute__((always_inline)) void tile(const Product *p, const bf16 *x, const float *base, float *y,
                                                       int64_t block, Ahead *shared, const int rows) {
    const int64_t inputs = p->inputs, outputs = p->outputs;
    const bf16 *w = p->weight + block * size_of(p);
    Ahead ahead = *shared;
    __m512 sums[MOST_ROWS][VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[r][v] = _mm512_setzero_ps();
    for (int64_t k = 0; k + 2 <= inputs; k += 2) {
        go_on(&ahead);
        pair(w + k * BLOCK, x + k, inputs, 2, rows, sums);
    }
    if (inputs % 2) pair(w + (inputs - 1) * BLOCK, x + inputs - 1, inputs, 1, rows, sums);
    *shared = ahead;
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        const int64_t at = block * BLOCK + 16 * v;
        const __mmask16 mask = first(outputs - at);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            __m512 sum = sums[r][v];
            if (p->bias) sum = _mm512_add_ps(sum, _mm512_loadu_ps(p->bias + at));
            if (base) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, base + r * outputs + at), sum);
            _mm512_mask_storeu_ps(y + r * outputs + at, mask, sum);
        }
    }
}

#define ROWS_ARE(rows)                                                                                                 \
    case rows: tile(p, x, base, y, block, ahead, rows); break;

static void few(const Product *p, const bf16 *x, const float *base, float *y, int64_t rows, int64_t block,
                Ahead *ahead) {
    switch (rows) {
        ROWS_ARE(1)
        ROWS_ARE(2)
        ROWS_ARE(3)
        ROWS_ARE(4)
        ROWS_ARE(5)
        ROWS_ARE(6)
        ROWS_ARE(7)
        ROWS_ARE(8)
        ROWS_ARE(9)
        ROWS_ARE(10)
        ROWS_ARE(11)
        ROWS_ARE(12)
    }
}

/* This thread's outputs for x [rows, inputs], to y [rows, outputs]; `base` (or null) has the layout of y, and may be y.
 * `next` (or null) is the product that it computes next.  Many rows go over a block in several turns, in all of which, bit
 * by bit, the block behind it is asked for. */
void product(const Product *p, const bf16 *x, const float *base, float *y, int64_t rows, int64_t me, int64_t team,
             const Product *next) {
    const int64_t turns = (rows + MOST_ROWS - 1) / MOST_ROWS, size = size_of(p), end = block_of(p, me + 1, team);
    const int64_t far = turns > 1 ? size : AHEAD, pace = (PAIR * sizeof(bf16) + turns - 1) / turns;
    const uintptr_t last = share_of(p, me, team).end, behind = next ? share_of(next, me, team).at : last;
    for (int64_t block = block_of(p, me, team); block < end; block++) {
        Ahead ahead = look((uintptr_t)(p->weight + block * size) + far * sizeof(bf16), last, behind, pace);
        for (int64_t turn = 0; turn < turns; turn++) {
            const int64_t row = share(rows, turn, turns);
            few(p, x + row * p->inputs, base ? base + row * p->outputs : 0, y + row * p->outputs,
                share(rows, turn + 1, turns) - row, block, &ahead);
        }
    }
}
