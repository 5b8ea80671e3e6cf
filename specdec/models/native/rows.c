/* The small operations between products, each over rows that do not know of one another. */
#include <math.h>

#include "native.h"

void embed(const bf16 *table, const int32_t *tokens, float *out, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < width; i += 16) {
            const __mmask16 mask = first(width - i);
            _mm512_mask_storeu_ps(out + row * width + i, mask, load_wide(table + tokens[row] * width + i, mask));
        }
}

/* 1 / root mean square; the vector's lanes are summed apart first. */
static float scale_of(const float *x, int64_t width, double eps) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += 16) {
        const __m512 v = _mm512_maskz_loadu_ps(first(width - i), x + i);
        squares = _mm512_fmadd_ps(v, v, squares);
    }
    return 1.0f / sqrtf(_mm512_reduce_add_ps(squares) / (float)width + (float)eps);
}

/* Root-mean-square norm of rows [rows, width], as float to `out` (which may be `hidden`) or as bf16 to `narrow`;
 * either may be null. */
void norm(const float *hidden, const float *weight, float *out, bf16 *narrow, int64_t rows, int64_t width, double eps) {
    for (int64_t row = 0; row < rows; row++) {
        const float *x = hidden + row * width;
        const __m512 scale = _mm512_set1_ps(scale_of(x, width, eps));
        for (int64_t i = 0; i < width; i += 16) {
            const __mmask16 mask = first(width - i);
            const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), scale);
            const __m512 normed = _mm512_mul_ps(scaled, _mm512_maskz_loadu_ps(mask, weight + i));
            if (out) _mm512_mask_storeu_ps(out + row * width + i, mask, normed);
            if (narrow) store_narrow(narrow + row * width + i, mask, normed);
        }
    }
}

void narrowed(const float *in, bf16 *out, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) {
        const __mmask16 mask = first(count - i);
        store_narrow(out + i, mask, _mm512_maskz_loadu_ps(mask, in + i));
    }
}

/* One head: normalised where there is a weight, then neighbouring pairs turned; `turns` holds (cos, sin) pairs. */
void turn(const float *x, const float *weight, double eps, const float *turns, bf16 *out, int64_t width) {
    const __m512 scale = _mm512_set1_ps(weight ? scale_of(x, width, eps) : 1.0f);
    for (int64_t i = 0; i < width; i += 16) {
        const __mmask16 mask = first(width - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), scale);
        if (weight) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, weight + i));
        const __m512 t = _mm512_maskz_loadu_ps(mask, turns + i);
        const __m512 crossed = _mm512_mul_ps(_mm512_permute_ps(v, 0xb1), _mm512_movehdup_ps(t));
        /* even lanes: a c - b s, odd lanes: b c + a s */
        store_narrow(out + i, mask, _mm512_fmaddsub_ps(v, _mm512_moveldup_ps(t), crossed));
    }
}

/* out = silu(gate) * up [rows, width], in the columns [begin, end). */
void gated(const float *gate, const float *up, bf16 *out, int64_t rows, int64_t width, int64_t begin, int64_t end) {
    const __m512 one = _mm512_set1_ps(1.0f), zero = _mm512_setzero_ps();
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = begin; i < end; i += 16) {
            const __mmask16 mask = first(end - i);
            const __m512 g = _mm512_maskz_loadu_ps(mask, gate + row * width + i);
            const __m512 sigmoid = _mm512_div_ps(one, _mm512_add_ps(one, exponential(_mm512_sub_ps(zero, g))));
            const __m512 u = _mm512_maskz_loadu_ps(mask, up + row * width + i);
            store_narrow(out + row * width + i, mask, _mm512_mul_ps(_mm512_mul_ps(g, sigmoid), u));
        }
}
