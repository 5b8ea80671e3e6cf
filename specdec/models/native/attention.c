/* One query's attention over the slots it sees, in the order of the text.
 *
 * A row's slots are one list, prefix first and then a tree's ancestors, so that a node's sums run as they would had its
 * path been decoded one by one.  Scores of sixteen keys are summed together: sixteen vectors of partial sums are folded
 * into one by shuffles that treat every key alike.
 */
#include <math.h>
#include <string.h>

#include "native.h"

/* Floats that `attend` needs: the list of slots, each head's scores, a turned query. */
int64_t attention_scratch(const Shape *shape, int64_t slots) {
    return (TILE + 1) * (slots + 16) + padded(shape->width);
}

static inline int64_t begin_of(const Shape *shape, const Place *place, int64_t index, int64_t row, int64_t head) {
    return index * place->layer_stride + row * place->row_stride + head * place->capacity * shape->width;
}

/* Turns a row's key and copies its value into their slot of one head. */
void store_kv(const Shape *shape, const Layer *layer, const Place *place, int64_t index, const float *qkv,
              int64_t row, int64_t head) {
    const int64_t width = shape->width;
    const int64_t at = begin_of(shape, place, index, row, head) + place->slots[row] * width;
    const float *key = qkv + row * layer->qkv.outputs + (shape->heads + head) * width, *value = key + shape->kv_heads * width;
    turn(key, layer->k_norm, shape->eps, place->turns + place->positions[row] * width, place->keys + at, width);
    narrowed(value, place->values + at, width);
}

enum { AHEAD = 16 }; /* slots */

static inline __mmask32 below(int64_t count) {
    return count >= 32 ? 0xffffffffu : count <= 0 ? 0 : (__mmask32)((1u << count) - 1);
}

/* Sixteen bf16, each in the lower half of a word. */
static inline __m512i narrowed_words(__m512 values) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(values)); }

static inline __m512 fold(__m512 sums[16]) {
    __m512 a[8], b[4];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(sums[i], sums[i + 8], 0x44),
                             _mm512_shuffle_f32x4(sums[i], sums[i + 8], 0xee));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
    const __m512 even = _mm512_add_ps(_mm512_unpacklo_ps(b[0], b[2]), _mm512_unpackhi_ps(b[0], b[2]));
    const __m512 odd = _mm512_add_ps(_mm512_unpacklo_ps(b[1], b[3]), _mm512_unpackhi_ps(b[1], b[3]));
    const __m512 all = _mm512_add_ps(_mm512_unpacklo_ps(even, odd), _mm512_unpackhi_ps(even, odd));
    return _mm512_shuffle_f32x4(all, all, 0xd8); /* the second and third quarter changed places on the way */
}

/* Dot products of a query with sixteen keys; where `straight`, those from slots[0] on, of whole vectors. */
static inline __attribute__((always_inline)) __m512 dots(const bf16 *q, const bf16 *keys, const int32_t *slots,
                                                         int64_t width, const int straight) {
    __m512 sums[16];
    const bf16 *begin = keys + slots[0] * width;
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) sums[j] = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += 32) {
        const __mmask32 mask = straight ? 0xffffffffu : below(width - i);
        const __m512bh query = (__m512bh)_mm512_maskz_loadu_epi16(mask, q + i);
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) {
            const bf16 *at = straight ? begin + j * width + i : keys + slots[j] * width + i;
            sums[j] = _mm512_dpbf16_ps(sums[j], (__m512bh)_mm512_maskz_loadu_epi16(mask, at), query);
        }
    }
    return fold(sums);
}

/* The row's slots, in order; the list is filled up to whole sixteens with its last. */
static int64_t list_slots(const Place *place, int64_t row, int32_t *slots) {
    int64_t count = place->prefix[row];
    for (int64_t j = 0; j < count; j++) slots[j] = (int32_t)j;
    if (place->mask)
        for (int64_t j = 0; j < place->masked; j++)
            if (place->mask[row * place->masked + j]) slots[count++] = (int32_t)(place->masked_from + j);
    for (int64_t j = count; j % 16; j++) slots[j] = slots[count - 1];
    return count;
}

/* Sixty-four elements of values, from element `i` on, mixed by the weights of each head [heads, stride] and scaled.
 * Elements at even and odd places have sums of their own: a bf16 in the upper half of a word is a float as it stands. */
static inline __attribute__((always_inline)) void mix(const bf16 *values, const int32_t *slots, const float *weights,
                                                      int64_t stride, int64_t count, const float *scales, bf16 *out,
                                                      int64_t i, int64_t width, Soon *soon, const int heads) {
    __m512 sums[TILE][2][2];
    __mmask32 masks[2];
#pragma GCC unroll 2
    for (int c = 0; c < 2; c++) {
        masks[c] = below(width - i - 32 * c);
#pragma GCC unroll 4
        for (int h = 0; h < heads; h++) sums[h][c][0] = sums[h][c][1] = _mm512_setzero_ps();
    }
    for (int64_t j = 0; j < count; j++) {
        const bf16 *value = values + slots[j] * width + i;
        ask((uintptr_t)(value + AHEAD * width));
        ask((uintptr_t)(value + AHEAD * width + 32));
        ask_soon(soon, 1);
#pragma GCC unroll 2
        for (int c = 0; c < 2; c++) {
            const __m512i both = _mm512_maskz_loadu_epi16(masks[c], value + 32 * c);
            const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
            const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000)));
#pragma GCC unroll 4
            for (int h = 0; h < heads; h++) {
                const __m512 weight = _mm512_set1_ps(weights[h * stride + j]);
                sums[h][c][0] = _mm512_fmadd_ps(weight, even, sums[h][c][0]);
                sums[h][c][1] = _mm512_fmadd_ps(weight, odd, sums[h][c][1]);
            }
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 2
        for (int c = 0; c < 2; c++) {
            const __m512 scale = _mm512_set1_ps(scales[h]);
            const __m512i even = narrowed_words(_mm512_mul_ps(sums[h][c][0], scale));
            const __m512i odd = narrowed_words(_mm512_mul_ps(sums[h][c][1], scale));
            _mm512_mask_storeu_epi16(out + h * width + i + 32 * c, masks[c],
                                     _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
        }
}

/* The weights of a query's slots, not yet divided by their sum, to `scores`; one over the sum. */
static float weigh(const bf16 *q, const bf16 *keys, const int32_t *slots, int64_t count, int64_t prefix, float *scores,
                   int64_t width, Soon *soon) {
    const int64_t straight = width % 32 ? 0 : prefix;
    const __m512 scale = _mm512_set1_ps(1.0f / sqrtf((float)width));
    __m512 largest = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
    for (int64_t j = 0; j < count; j += 16) {
        const __m512 sums = j + 16 <= straight ? dots(q, keys, slots + j, width, 1) : dots(q, keys, slots + j, width, 0);
        const __m512 found = _mm512_mul_ps(sums, scale);
        ask_soon(soon, 4); /* few at a time: the keys' own reads queue behind them */
        largest = _mm512_mask_max_ps(largest, first(count - j), largest, found);
        _mm512_storeu_ps(scores + j, found);
    }
    largest = _mm512_set1_ps(_mm512_reduce_max_ps(largest));
    for (int64_t j = 0; j < count; j += 16) {
        const __m512 weight = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + j), largest));
        total = _mm512_mask_add_ps(total, first(count - j), total, weight);
        _mm512_storeu_ps(scores + j, weight);
    }
    return 1.0f / _mm512_reduce_add_ps(total);
}

#define HEADS_ARE(heads)                                                                                               \
    case heads:                                                                                                        \
        for (int64_t i = 0; i < width; i += 64)                                                                        \
            mix(values, slots, scores, stride, count, scales, out, i, width, soon, heads);                                   \
        break;

/* Values mixed for some heads of a row, at most TILE of those that share keys and values, to their place in `out`
 * [rows, heads, width].  Each value is widened once for all of them, and their sums hide each other's latency.  `soon` is asked for
 * meanwhile: what is attended to lies in the caches, and memory has nothing else to do. */
void attend(const Shape *shape, const Layer *layer, const Place *place, int64_t index, const float *qkv, bf16 *out,
            float *scratch, int64_t row, int64_t head, int64_t heads, Soon *soon) {
    const int64_t width = shape->width, stride = place->capacity + 16;
    const int64_t side = begin_of(shape, place, index, row, head / group_of(shape));
    const bf16 *keys = place->keys + side, *values = place->values + side;
    bf16 *q = (bf16 *)scratch;
    float *scores = scratch + padded(width), scales[TILE];
    int32_t *slots = (int32_t *)(scores + TILE * stride);
    const int64_t count = list_slots(place, row, slots);
    for (int64_t h = 0; h < heads; h++) {
        const float *turns = place->turns + place->positions[row] * width;
        turn(qkv + row * layer->qkv.outputs + (head + h) * width, layer->q_norm, shape->eps, turns, q, width);
        scales[h] = weigh(q, keys, slots, count, place->prefix[row], scores + h * stride, width,
                          soon);
    }
    out += (row * shape->heads + head) * width;
    switch (heads) {
        HEADS_ARE(1)
        HEADS_ARE(2)
        HEADS_ARE(3)
        HEADS_ARE(4)
    }
}
