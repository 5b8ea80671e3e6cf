/* One query's attention over the slots it sees, in the order of the text.
 *
 * A row's slots are one list, prefix first and then a tree's ancestors, so that a node's sums run as they would had its
 * path been decoded one by one.  Scores of sixteen keys are summed together: sixteen vectors of partial sums are folded
 * into one by shuffles that treat every key alike.
 */
#include <math.h>
#include <string.h>

#include "native.h"

/* Floats that `attend` needs: the list of slots, their scores, the turned query. */
int64_t attention_scratch(const Shape *shape, int64_t slots) { return 2 * (slots + 16) + padded(shape->width); }

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

/* Dot products of a query with sixteen keys. */
static inline __m512 dots(const bf16 *q, const bf16 *keys, const int32_t *slots, int64_t width) {
    __m512 sums[16];
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) sums[j] = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += 32) {
        const __mmask32 mask = width - i >= 32 ? 0xffffffffu : (1u << (width - i)) - 1;
        const __m512bh query = (__m512bh)_mm512_maskz_loadu_epi16(mask, q + i);
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) {
            const bf16 *at = keys + slots[j] * width + i;
            ask((uintptr_t)(at + AHEAD * width));
            const __m512bh key = (__m512bh)_mm512_maskz_loadu_epi16(mask, at);
            sums[j] = _mm512_dpbf16_ps(sums[j], key, query);
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

/* Values of sixty-four elements of a head, from element `i` on, mixed by weights and scaled. */
static inline void mix(const bf16 *values, const int32_t *slots, const float *weights, int64_t count, float scale,
                       bf16 *out, int64_t i, int64_t width) {
    __m512 sums[4];
    __mmask16 masks[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const int64_t left = width - i - 16 * c;
        masks[c] = left <= 0 ? 0 : first(left);
        sums[c] = _mm512_setzero_ps();
    }
    for (int64_t j = 0; j < count; j++) {
        const bf16 *value = values + slots[j] * width + i;
        ask((uintptr_t)(value + AHEAD * width));
        ask((uintptr_t)(value + AHEAD * width + 32));
        const __m512 weight = _mm512_set1_ps(weights[j]);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) sums[c] = _mm512_fmadd_ps(weight, load_wide(value + 16 * c, masks[c]), sums[c]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++)
        store_narrow(out + i + 16 * c, masks[c], _mm512_mul_ps(sums[c], _mm512_set1_ps(scale)));
}

/* Values mixed for one head of one row, to its place in `out` [rows, heads, width]. */
void attend(const Shape *shape, const Layer *layer, const Place *place, int64_t index, const float *qkv, bf16 *out,
            float *scratch, int64_t row, int64_t head) {
    const int64_t width = shape->width, group = shape->heads / shape->kv_heads;
    const int64_t side = begin_of(shape, place, index, row, head / group);
    const bf16 *keys = place->keys + side, *values = place->values + side;
    bf16 *q = (bf16 *)scratch;
    float *scores = scratch + padded(width);
    const float *turns = place->turns + place->positions[row] * width;
    turn(qkv + row * layer->qkv.outputs + head * width, layer->q_norm, shape->eps, turns, q, width);
    int32_t *slots = (int32_t *)(scores + place->capacity + 16);
    const int64_t count = list_slots(place, row, slots);

    const __m512 scale = _mm512_set1_ps(1.0f / sqrtf((float)width));
    __m512 largest = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
    for (int64_t j = 0; j < count; j += 16) {
        const __m512 found = _mm512_mul_ps(dots(q, keys, slots + j, width), scale);
        largest = _mm512_mask_max_ps(largest, first(count - j), largest, found);
        _mm512_storeu_ps(scores + j, found);
    }
    largest = _mm512_set1_ps(_mm512_reduce_max_ps(largest));
    for (int64_t j = 0; j < count; j += 16) {
        const __m512 weight = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + j), largest));
        total = _mm512_mask_add_ps(total, first(count - j), total, weight);
        _mm512_storeu_ps(scores + j, weight);
    }
    const float inverse = 1.0f / _mm512_reduce_add_ps(total);
    for (int64_t i = 0; i < width; i += 64)
        mix(values, slots, scores, count, inverse, out + (row * shape->heads + head) * width, i, width);
}
