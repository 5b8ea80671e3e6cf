/* y = x W^T (+ bias) (+ base) for a few rows, reading every weight once.
 *
 * Weights lie in blocks of 16 outputs by 2 inputs, so that one vector holds two inputs' weights of sixteen outputs: a
 * thread reads one straight stream, a row's two inputs are broadcast, and no sum crosses a vector.  Several blocks are
 * in flight to cover the latency of memory and of the dot products; up to eight rows share each load.  Each row of each
 * block has a sum of its own that runs over the inputs in order, so that a result does not depend on how many rows,
 * blocks or threads there are.
 */
#include "native.h"

enum { MOST_ROWS = 8, AHEAD = 1024 }; /* AHEAD: elements of each block's stream */

int64_t blocks(const Product *p) { return (p->outputs + BLOCK - 1) / BLOCK; }

static inline __attribute__((always_inline)) __m512bh both(const bf16 *x, int64_t left) {
    int32_t two = 0;
    __builtin_memcpy(&two, x, left >= 2 ? 4 : 2);
    return (__m512bh)_mm512_set1_epi32(two);
}

static inline __attribute__((always_inline)) void tile(const Product *p, const bf16 *x, const float *base, float *y,
                                                       int64_t block, const int rows, const int count) {
    const int64_t inputs = p->inputs, outputs = p->outputs, size = (inputs + 1) / 2 * 2 * BLOCK;
    const bf16 *w = p->weight + block * size;
    __m512 sums[MOST_ROWS][6];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int b = 0; b < count; b++) sums[r][b] = _mm512_setzero_ps();
    for (int64_t k = 0; k + 2 <= inputs; k += 2) {
        __m512bh weights[6];
#pragma GCC unroll 8
        for (int b = 0; b < count; b++) {
            const bf16 *at = w + b * size + k * BLOCK;
            ask(at, AHEAD);
            weights[b] = (__m512bh)_mm512_loadu_si512(at);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const __m512bh two = both(x + r * inputs + k, 2);
#pragma GCC unroll 8
            for (int b = 0; b < count; b++) sums[r][b] = _mm512_dpbf16_ps(sums[r][b], weights[b], two);
        }
    }
    if (inputs % 2) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const __m512bh one = both(x + r * inputs + inputs - 1, 1);
#pragma GCC unroll 8
            for (int b = 0; b < count; b++) {
                const __m512bh weights = (__m512bh)_mm512_loadu_si512(w + (b + 1) * size - 2 * BLOCK);
                sums[r][b] = _mm512_dpbf16_ps(sums[r][b], weights, one);
            }
        }
    }
#pragma GCC unroll 8
    for (int b = 0; b < count; b++) {
        const int64_t at = (block + b) * BLOCK;
        const __mmask16 mask = first(outputs - at);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            __m512 sum = sums[r][b];
            if (p->bias) sum = _mm512_add_ps(sum, _mm512_loadu_ps(p->bias + at));
            if (base) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, base + r * outputs + at), sum);
            _mm512_mask_storeu_ps(y + r * outputs + at, mask, sum);
        }
    }
}

/* The widest run of blocks that keeps all sums of `rows` rows in registers, then what is left one by one. */
#define WIDTH(rows, most)                                                                                              \
    case rows:                                                                                                         \
        for (; block + most <= end; block += most) tile(p, x, base, y, block, rows, most);                             \
        for (; block < end; block++) tile(p, x, base, y, block, rows, 1);                                              \
        break;

static void few(const Product *p, const bf16 *x, const float *base, float *y, int64_t rows, int64_t block,
                int64_t end) {
    switch (rows) {
        WIDTH(1, 6)
        WIDTH(2, 6)
        WIDTH(3, 6)
        WIDTH(4, 6)
        WIDTH(5, 3)
        WIDTH(6, 3)
        WIDTH(7, 3)
        WIDTH(8, 3)
    }
}

/* Outputs of the blocks [begin, end) for x [rows, inputs], to y [rows, outputs]; `base` (or null) has the layout of y, and
 * may be y.  More than eight rows go through a group of blocks eight at a time, while its weights are in the cache. */
void product(const Product *p, const bf16 *x, const float *base, float *y, int64_t rows, int64_t begin, int64_t end) {
    const int64_t step = rows > MOST_ROWS ? 6 : end - begin;
    for (int64_t block = begin; block < end; block += step)
        for (int64_t row = 0; row < rows; row += MOST_ROWS)
            few(p, x + row * p->inputs, base ? base + row * p->outputs : 0, y + row * p->outputs,
                smaller(rows - row, MOST_ROWS), block, smaller(block + step, end));
}
