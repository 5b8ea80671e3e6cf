/* What the parts of the engine share: the model as the engine sees it, and small vector helpers.
 *
 * Every result is the same bits whatever rows are computed with it, whatever thread computes it and wherever its buffer
 * lies.  So each sum has one order, spelled in intrinsics: nothing is left to the compiler's vectoriser, and the build
 * asks for no fast-math.  Numbers are bf16 in weights, cache and inputs of products, float everywhere else.
 */
#ifndef SPECDEC_NATIVE_H
#define SPECDEC_NATIVE_H

#include <immintrin.h>
#include <stdint.h>

#ifndef __AVX512BF16__
#error "this processor has no AVX-512 bf16 instructions"
#endif

typedef uint16_t bf16;

enum { BLOCK = 32 };     /* outputs a block of packed weights, two vectors of floats */
enum { TILE = 4 };       /* heads of a row that `attend` takes at most */
enum { BREADTH = 64 };   /* rows that one pass through the layers takes at most; wider ones go in pieces */

/* Packed weights: blocks of 32 outputs, in a block 2 inputs of every output side by side, zeros behind the last of
 * either; of a `kind`.  `bias` (or null) is padded alike. */
enum { BF16, Q8_0, Q4_1 };
typedef struct {
    const uint8_t *weight;
    const float *bias;
    int64_t inputs, outputs, kind;
} Product;

typedef struct {
    Product qkv, o, gate, up, down;
    const float *attention_norm, *mlp_norm, *q_norm, *k_norm; /* the last two may be null */
} Layer;

typedef struct {
    int64_t hidden, heads, kv_heads, width; /* width: elements of a head */
    double eps;
} Shape;

/* Buffers of a pass, made once a model.  A thread normalises all rows into an `x` of its own, which is cheaper than
 * waiting for one another; `wide` is the most inputs of a product. */
typedef struct {
    float *hidden, *qkv, *gate, *up; /* [BREADTH, ...] */
    bf16 *mixed, *gated;            /* [BREADTH, ...] */
    bf16 *x;                        /* [threads, BREADTH, wide] */
    float *scratch;                 /* [threads, scratch_size] */
    int64_t wide, scratch_size;
} Work;

/* Where the rows of a pass stand.  Row i is stored in slot `slots[i]` of the cache of its own that begins at i *
 * row_stride (0: all share one), turns by the rotation of `positions[i]`, and sees slots below `prefix[i]`, then those of
 * its mask row, [rows, masked], slot `masked_from` first: a tree's ancestors, in the order of the path. */
typedef struct {
    int64_t rows;
    bf16 *keys, *values; /* [layers, kv_heads, capacity, width] */
    int64_t layer_stride, row_stride, capacity;
    const int32_t *slots, *positions, *prefix;
    const uint8_t *mask;
    int64_t masked, masked_from;
    const float *turns; /* [positions, width / 2] pairs (cos, sin) */
} Place;

/* A model, what a pass runs of it, and what it is asked for. */
typedef struct {
    Shape shape;
    Product head;
    const bf16 *embedding; /* [vocabulary, hidden] */
    const float *final_norm;
    const Layer *layers;
    int64_t count;
} Model;

typedef struct {
    int64_t index, attend, mlp;
} Step;

typedef struct {
    const int32_t *tokens; /* [rows] */
    const float *states;   /* [rows, hidden] to begin with in place of the tokens' embeddings, or null */
    float *left;           /* [rows, hidden]: what the plan's layers leave */
    const Step *plan;
    int64_t steps;
    const int64_t *taps; /* k is the input of layer k, the number of layers the output of the final norm */
    int64_t tapped;
    float *features; /* [rows, tapped, hidden] */
    float *logits;   /* [rows, outputs of the head] or null */
    double *seconds; /* null, or seconds by part and one place more */
} Asked;

/* An EAGLE head, and what a step of it is given and asked for. */
typedef struct {
    Shape shape;
    Product fc, head;
    const bf16 *embedding;
    const float *input_norm, *hidden_norm, *final_norm; /* null for EAGLE-1 */
    const Layer *layers;                                /* the first's input is normed in front of it */
    int64_t count, norm_before_residual;
} Head;

typedef struct {
    const int32_t *tokens; /* [rows] */
    const float *features; /* tapped states [rows, inputs of fc], EAGLE-3 only; null: `states` are given */
    const float *states;   /* [rows, hidden] */
    float *out;            /* [rows, hidden] */
    float *logits;         /* [scored, outputs of the head]: of the last rows */
    int64_t scored;
    double *seconds;
} Guess;

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t padded(int64_t count) { return (count + 31) / 32 * 32; }

static inline int64_t group_of(const Shape *shape) { return shape->heads / shape->kv_heads; } /* heads that share keys */

/* The share of `count` things that fall to thread `me` of `team`: [share(me), share(me + 1)). */
static inline int64_t share(int64_t count, int64_t me, int64_t team) { return count * me / team; }

/* Asks for the line of memory at an address, which may lie over an end: it never faults.  Always inlined, for GCC thinks
 * that a function which only does this does nothing, and leaves its calls out. */
static inline __attribute__((always_inline)) void ask(uintptr_t address) { _mm_prefetch((const char *)address, _MM_HINT_T0); }

/* Memory that is read soon, asked for by and by into the second cache. */
typedef struct {
    uintptr_t at, end;
} Soon;

static inline __attribute__((always_inline)) void ask_soon(Soon *soon, const int lines) {
#pragma GCC unroll 16
    for (int i = 0; i < lines; i++) _mm_prefetch((const char *)(soon->at + 64 * (uintptr_t)i), _MM_HINT_T1);
    soon->at += soon->at < soon->end ? 64 * (uintptr_t)lines : 0;
}

static inline __mmask16 first(int64_t count) {
    return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

static inline __m512 widened(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

static inline __m512 load_wide(const bf16 *at, __mmask16 mask) { return widened(_mm256_maskz_loadu_epi16(mask, at)); }

static inline void store_narrow(bf16 *at, __mmask16 mask, __m512 values) {
    _mm256_mask_storeu_epi16(at, mask, (__m256i)_mm512_cvtneps_pbh(values));
}

/* e^x to within two units in the last place (Cody and Waite's reduction, a polynomial of degree 6). */
static inline __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-88.0f), _mm512_min_ps(_mm512_set1_ps(88.0f), x));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    __m512 p = _mm512_set1_ps(1.0f / 720);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* products.c */
void pack(const bf16 *from, bf16 *to, int64_t inputs, int64_t outputs, int64_t threads);
void pack_groups(const uint8_t *numbers, const uint16_t *scales, const uint16_t *least, uint8_t *to, int64_t inputs,
                 int64_t outputs, int64_t kind, int64_t threads);
void product(const Product *p, const bf16 *x, const float *base, float *y, int64_t rows, int64_t me, int64_t team,
             const Product *next);
Soon share_of(const Product *p, int64_t me, int64_t team);
int64_t outputs_before(const Product *p, int64_t me, int64_t team);

/* rows.c */
void embed(const bf16 *table, const int32_t *tokens, float *out, int64_t rows, int64_t width);
void norm(const float *hidden, const float *weight, float *out, bf16 *narrow, int64_t rows, int64_t width, double eps);
void narrowed(const float *in, bf16 *out, int64_t count);
void turn(const float *x, const float *weight, double eps, const float *turns, bf16 *out, int64_t width);
void gated(const float *gate, const float *up, bf16 *out, int64_t rows, int64_t width, int64_t begin, int64_t end);

/* attention.c */
int64_t attention_scratch(const Shape *shape, int64_t slots);
void store_kv(const Shape *shape, const Layer *layer, const Place *place, int64_t index, const float *qkv, int64_t row,
              int64_t head);
void attend(const Shape *shape, const Layer *layer, const Place *place, int64_t index, const float *qkv, bf16 *out,
            float *scratch, int64_t row, int64_t head, int64_t heads, Soon *soon);

/* layer.c: called by every thread of a team */
void attention_block(const Shape *shape, const Layer *layer, const Place *place, int64_t index, const Work *work,
                     const bf16 *x, int64_t me, int64_t team, const Product *next, double *seconds);
void mlp_block(const Shape *shape, const Layer *layer, const Work *work, int64_t rows, int64_t me, int64_t team,
               const Product *next, double *seconds);
enum { PRODUCTS, ATTENTION, ROWS, PARTS };
void lap(double *seconds, int part);

/* The engine's calls: `place` holds at most BREADTH rows, `threads` threads work. */
void forward(const Model *model, const Work *work, const Place *place, const Asked *asked, int64_t threads);
void eagle(const Head *head, const Work *work, const Place *place, const Guess *guess, int64_t threads);
void multiply(const Product *p, const bf16 *x, float *y, int64_t rows, int64_t threads);

#endif
