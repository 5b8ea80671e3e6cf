/* The small operations between a decoder layer's matrix products, each in one pass over its rows.
 *
 * PyTorch runs them as some thirty kernels a layer, whose launches cost more than their arithmetic when there are few
 * rows.  Every row is computed by itself, so that a result does not depend on how many rows come with it; `restrict`
 * and contraction off keep the compiler from choosing between loops that round differently by where a buffer lies.
 * Numbers are bf16 in memory and float in registers; rounding is to nearest, ties to even.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

static inline float wide(bf16 value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static inline bf16 narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* out = norm(hidden + update) * weight, with the sum left in `sum`; without an update `sum` is `hidden` itself. */
void add_norm(const float *hidden, const bf16 *restrict update, const float *restrict weight, float *sum,
              bf16 *restrict out, long rows, long width, float eps) {
    for (long row = 0; row < rows; row++) {
        const float *h = hidden + row * width;
        float *s = sum + row * width, squares = 0.0f;
        if (update) {
            const bf16 *restrict u = update + row * width;
#pragma omp simd
            for (long i = 0; i < width; i++) s[i] = h[i] + wide(u[i]);
        }
#pragma omp simd reduction(+ : squares)
        for (long i = 0; i < width; i++) squares += s[i] * s[i];
        const float scale = 1.0f / sqrtf(squares / (float)width + eps);
#pragma omp simd
        for (long i = 0; i < width; i++) out[row * width + i] = narrow(s[i] * scale * weight[i]);
    }
}

/* One head: normalised where there is a weight, then neighbouring pairs turned; `turns` holds (cos, sin) pairs. */
static inline void turn(const bf16 *restrict x, const float *restrict weight, float eps, const float *restrict turns,
                        bf16 *restrict out, long width) {
    float scale = 1.0f;
    if (weight) {
        float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
        for (long i = 0; i < width; i++) squares += wide(x[i]) * wide(x[i]);
        scale = 1.0f / sqrtf(squares / (float)width + eps);
    }
#pragma omp simd
    for (long i = 0; i < width / 2; i++) {
        float a = wide(x[2 * i]) * scale, b = wide(x[2 * i + 1]) * scale;
        if (weight) a *= weight[2 * i], b *= weight[2 * i + 1];
        const float c = turns[2 * i], s = turns[2 * i + 1];
        out[2 * i] = narrow(a * c - b * s);
        out[2 * i + 1] = narrow(a * s + b * c);
    }
}

/* From the fused product [rows, heads + 2 kv_heads, d]: turned queries to `q`, turned keys and values to their slots in
 * the cache [kv_heads, capacity, d].  The norms' weights may be null. */
void place(const bf16 *restrict qkv, const float *restrict turns, const float *restrict q_norm,
           const float *restrict k_norm, float eps, bf16 *restrict q, bf16 *restrict keys, bf16 *restrict values, long rows, long heads, long kv_heads, long width, long capacity, long start) {
    for (long row = 0; row < rows; row++) {
        const bf16 *x = qkv + row * (heads + 2 * kv_heads) * width;
        const float *angle = turns + row * width;
        for (long h = 0; h < heads; h++) turn(x + h * width, q_norm, eps, angle, q + (row * heads + h) * width, width);
        for (long h = 0; h < kv_heads; h++) {
            const long slot = (h * capacity + start + row) * width;
            turn(x + (heads + h) * width, k_norm, eps, angle, keys + slot, width);
            memcpy(values + slot, x + (heads + kv_heads + h) * width, (size_t)width * sizeof(bf16));
        }
    }
}

/* out = silu(gate) * up for rows of [gate, up]. */
void gated(const bf16 *restrict gate_up, bf16 *restrict out, long rows, long width) {
    for (long row = 0; row < rows; row++) {
        const bf16 *restrict gate = gate_up + 2 * row * width, *restrict up = gate + width;
        bf16 *restrict o = out + row * width;
#pragma omp simd
        for (long i = 0; i < width; i++) {
            const float g = wide(gate[i]);
            o[i] = narrow(g / (1.0f + expf(-g)) * wide(up[i]));
        }
    }
}

/* Dot products of `group` queries with one key. */
static inline void dots(const float *restrict q, const bf16 *restrict key, float *restrict scores, long stride, long group,
                        long width) {
    for (long g = 0; g < group; g++) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (long i = 0; i < width; i++) sum += q[g * width + i] * wide(key[i]);
        scores[g * stride] = sum;
    }
}

static inline void attend_row(const bf16 *restrict q, const bf16 *restrict keys, const bf16 *restrict values,
                              bf16 *restrict out, float *restrict work, const long *restrict extra, long prefix, long extras,
                              long group, long width, float scale) {
    const long count = prefix + extras;
    /* One list of slots for both parts: a loop that chose between them could be split in two by the compiler, and the two
     * could round differently. */
    int32_t *restrict slots = (int32_t *)work;
    float *restrict wideq = work + count, *restrict sums = wideq + group * width, *restrict scores = sums + group * width;
    for (long j = 0; j < prefix; j++) slots[j] = (int32_t)j;
    for (long j = 0; j < extras; j++) slots[prefix + j] = (int32_t)extra[j];
    for (long i = 0; i < group * width; i++) wideq[i] = wide(q[i]) * scale, sums[i] = 0.0f;
    for (long j = 0; j < count; j++)
        dots(wideq, keys + slots[j] * width, scores + j, count, group, width);
    for (long g = 0; g < group; g++) {
        float *restrict s = scores + g * count, largest = s[0], total = 0.0f;
        for (long j = 1; j < count; j++) largest = s[j] > largest ? s[j] : largest;
#pragma omp simd
        for (long j = 0; j < count; j++) s[j] = expf(s[j] - largest);
        for (long j = 0; j < count; j++) total += s[j];
        const float inverse = 1.0f / total;
        for (long j = 0; j < count; j++) s[j] *= inverse;
    }
    for (long j = 0; j < count; j++) {
        const bf16 *restrict value = values + slots[j] * width;
        for (long g = 0; g < group; g++) {
            const float weight = scores[g * count + j];
#pragma omp simd
            for (long i = 0; i < width; i++) sums[g * width + i] += weight * wide(value[i]);
        }
    }
    for (long i = 0; i < group * width; i++) out[i] = narrow(sums[i]);
}

/* Attention of each row over the first `prefix[row]` slots of the cache [kv_heads, capacity, d], then over the
 * `extras[row]` slots listed in `extra` [rows, most]: a tree's ancestors, in the order of the path.  A row's sums run in
 * that order whatever else is computed, so that they are those of the same text decoded one by one.  `work` holds
 * group * (2 d + slots) + slots floats. */
void attend(const bf16 *restrict q, const bf16 *restrict keys, const bf16 *restrict values, bf16 *restrict out,
            float *restrict work, const long *restrict prefix, const long *restrict extra, const long *restrict extras,
            long rows, long heads, long kv_heads, long width, long capacity, long most, float scale) {
    const long group = heads / kv_heads;
    for (long head = 0; head < kv_heads; head++)
        for (long row = 0; row < rows; row++) {
            const long at = (row * heads + head * group) * width, side = head * capacity * width;
            const long *restrict more = extra + row * most;
            const bf16 *restrict k = keys + side, *restrict v = values + side;
            switch (width) { /* known widths let the compiler keep a head in registers */
            case 64: attend_row(q + at, k, v, out + at, work, more, prefix[row], extras[row], group, 64, scale); break;
            case 128: attend_row(q + at, k, v, out + at, work, more, prefix[row], extras[row], group, 128, scale); break;
            default: attend_row(q + at, k, v, out + at, work, more, prefix[row], extras[row], group, width, scale);
            }
        }
}

/* Attention of one query a row, each over the first `lengths[row]` slots of a cache of its own, [rows, kv_heads,
 * capacity, d].  `work` holds group * (2 d + capacity) + capacity floats. */
void attend_apart(const bf16 *restrict q, const bf16 *restrict keys, const bf16 *restrict values, bf16 *restrict out,
                  float *restrict work, const long *restrict lengths, long rows, long heads, long kv_heads, long width,
                  long capacity, float scale) {
    const long group = heads / kv_heads;
    for (long row = 0; row < rows; row++)
        for (long head = 0; head < kv_heads; head++) {
            const long at = (row * heads + head * group) * width, side = (row * kv_heads + head) * capacity * width;
            const bf16 *restrict k = keys + side, *restrict v = values + side;
            switch (width) {
            case 64: attend_row(q + at, k, v, out + at, work, 0, lengths[row], 0, group, 64, scale); break;
            case 128: attend_row(q + at, k, v, out + at, work, 0, lengths[row], 0, group, 128, scale); break;
            default: attend_row(q + at, k, v, out + at, work, 0, lengths[row], 0, group, width, scale);
            }
        }
}
