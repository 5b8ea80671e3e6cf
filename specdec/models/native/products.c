/* y = x W^T (+ bias) (+ base) for a few rows, reading every weight once, while the memory never waits.
 *
 * Weights lie in blocks of 32 outputs by 2 inputs: two vectors hold two inputs' weights of all outputs, a row's two inputs
 * are broadcast, and no sum crosses a vector.  Blocks follow one another, so that a thread reads one straight stream; it
 * asks for what lies a fixed way ahead, over a block's end into the next, over its last block's end into the product that
 * it computes next.  So the arithmetic of several rows hides behind the reading: on two Zen 5 cores a layer's products take
 * 1.02 times as long for 12 rows as for one.  Each row of each output has a sum of its own that runs over the inputs in
 * order, so that a result does not depend on how many rows, blocks or threads there are.
 *
 * Weights held in 8 or 4 bits (`quantised.py` has the formats) are less to read.  They become the bf16 numbers that they
 * stand for in registers, a pair of inputs at a time, and go through the same sums: the result is, bit for bit, that of a
 * product over those numbers.
 */
#include "native.h"

enum { VECTORS = BLOCK / 16, PAIR = 2 * BLOCK }; /* elements that two inputs take in a block */
enum { MOST_ROWS = 12 };     /* whose sums, with a pair's weights and one row's inputs, fit the 32 registers */
enum { MOST_UNPACKING = 8 }; /* the same, with scales and least values beside them */
enum { AHEAD = 8192 };       /* bytes */
enum { GROUP = 32 };         /* inputs of an output that share a scale */
enum { HALVES = BLOCK * 2 }; /* bytes of a scale for every output of a block, in half precision */

/* Bytes of a block that are asked for together, a pair of inputs or a group, and of them those before the weights. */
static inline __attribute__((always_inline)) int64_t head_of(const int64_t kind) {
    return kind == BF16 ? 0 : kind == Q8_0 ? HALVES : 2 * HALVES;
}

static inline __attribute__((always_inline)) int64_t part_of(const int64_t kind) {
    return kind == BF16 ? PAIR * 2 : head_of(kind) + GROUP * BLOCK / (kind == Q8_0 ? 1 : 2);
}

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

/* Numbers [outputs, inputs] of 8 bits, or of 4 in the lower half of 8, with scales and least values (null: none)
 * [outputs, inputs / GROUP] in half precision, into the blocks of a product, which are zeros before.  A group begins with
 * its outputs' scales and least values.  Behind them the numbers, a pair of inputs after the other, lie where `numbers_8`
 * and `numbers_4` find them. */
void pack_groups(const uint8_t *numbers, const uint16_t *scales, const uint16_t *least, uint8_t *to, int64_t inputs,
                 int64_t outputs, int64_t kind, int64_t threads) {
    const int64_t blocks = (outputs + BLOCK - 1) / BLOCK, groups = inputs / GROUP;
#pragma omp parallel for num_threads(threads)
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t group = 0; group < groups; group++) {
            uint8_t *at = to + (block * groups + group) * part_of(kind);
            for (int64_t i = 0, there = smaller(BLOCK, outputs - block * BLOCK); i < there; i++) {
                const int64_t output = block * BLOCK + i, v = i / 16, half = i / 8 % 2;
                const uint8_t *row = numbers + output * inputs + group * GROUP;
                __builtin_memcpy(at + 2 * i, scales + output * groups + group, 2);
                if (least) __builtin_memcpy(at + HALVES + 2 * i, least + output * groups + group, 2);
                for (int64_t k = 0; k < GROUP; k++) {
                    uint8_t *pair = at + head_of(kind) + k / 2 * (kind == Q8_0 ? PAIR : PAIR / 2);
                    const int64_t place = 2 * (i % 8) + k % 2;
                    if (kind == Q8_0) pair[16 * (place / 4) + 8 * v + 4 * half + place % 4] = row[k] ^ 128;
                    else pair[16 * v + place] |= (uint8_t)(row[k] << 4 * half);
                }
            }
        }
}

static inline int64_t size_of(const Product *p) { /* of a block, in bytes */
    return (p->kind == BF16 ? (p->inputs + 1) / 2 : p->inputs / GROUP) * part_of(p->kind);
}

/* The block that thread `me` of `team` begins with, and that it ends before as `me` + 1. */
static inline int64_t block_of(const Product *p, int64_t me, int64_t team) {
    return share((p->outputs + BLOCK - 1) / BLOCK, me, team);
}

int64_t outputs_before(const Product *p, int64_t me, int64_t team) {
    return smaller(block_of(p, me, team) * BLOCK, p->outputs);
}

/* The weights that this thread reads. */
Soon share_of(const Product *p, int64_t me, int64_t team) {
    return (Soon){(uintptr_t)p->weight + (uintptr_t)(block_of(p, me, team) * size_of(p)),
                  (uintptr_t)p->weight + (uintptr_t)(block_of(p, me + 1, team) * size_of(p))};
}

/* What to ask for: `at`, which goes on by `pace` bytes at a time, and after `left` times from `next`. */
typedef struct {
    uintptr_t at, next;
    int64_t left, pace;
} Ahead;

static inline Ahead look(uintptr_t at, uintptr_t end, uintptr_t next, int64_t pace) {
    if (at < end) return (Ahead){at, next, ((int64_t)(end - at) + pace - 1) / pace, pace};
    return (Ahead){next + (at - end), next, INT64_MAX, pace};
}

/* Asks for a line of the part that is looked at; after its last, `go_on`. */
static inline __attribute__((always_inline)) void ask_line(const Ahead *ahead, uintptr_t line) { ask(ahead->at + 64 * line); }

static inline __attribute__((always_inline)) void go_on(Ahead *ahead) {
    ahead->at += (uintptr_t)ahead->pace;
    if (--ahead->left == 0) ahead->at = ahead->next;
}

static inline __attribute__((always_inline)) __m512bh both(const bf16 *x, int64_t left) {
    int32_t two = 0;
    __builtin_memcpy(&two, x, left >= 2 ? 4 : 2);
    return (__m512bh)_mm512_set1_epi32(two);
}

/* Two inputs (one, where `left` is one) of every row into the sums of a block. */
static inline __attribute__((always_inline)) void add_pair(const __m512bh weights[VECTORS], const bf16 *x, int64_t inputs,
                                                           int64_t left, const int rows, __m512 sums[][VECTORS]) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        const __m512bh two = both(x + r * inputs, left);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], weights[v], two);
    }
}

static inline __attribute__((always_inline)) void load_bf16(const uint8_t *at, __m512bh weights[VECTORS]) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) weights[v] = (__m512bh)_mm512_loadu_si512(at + 64 * v);
}

static inline __attribute__((always_inline)) void add_bf16(const Product *p, const uint8_t *at, const bf16 *x, Ahead *ahead,
                                                           const int rows, __m512 sums[][VECTORS]) {
    __m512bh weights[VECTORS];
    for (int64_t k = 0; k + 2 <= p->inputs; k += 2, at += 2 * PAIR) {
#pragma GCC unroll 4
        for (uintptr_t v = 0; v < VECTORS; v++) ask_line(ahead, v);
        go_on(ahead);
        load_bf16(at, weights);
        add_pair(weights, x + k, p->inputs, 2, rows, sums);
    }
    if (p->inputs % 2) {
        load_bf16(at, weights);
        add_pair(weights, x + p->inputs - 1, p->inputs, 1, rows, sums);
    }
}

/* Sixteen numbers in half precision, each twice: those of a vector's first or last eight outputs. */
static inline __attribute__((always_inline)) __m512 twice(const uint8_t *at, const int last) {
    const __m512i places = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    return _mm512_permutexvar_ps(_mm512_add_epi32(places, _mm512_set1_epi32(8 * last)),
                                 _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at)));
}

/* The numbers of a pair, of 8 bits with 128 added, as floats with 32768 added: the byte is put into the middle of such a
 * float's fraction.  Unpacking goes by quarters of a vector, in which the bytes of each of the four results stand by four. */
static inline __attribute__((always_inline)) void numbers_8(const uint8_t *at, __m512 found[VECTORS][2]) {
    const __m512i bytes = _mm512_loadu_si512(at), zero = _mm512_setzero_si512(), upper = _mm512_set1_epi16(0x4700);
    const __m512i words[VECTORS] = {_mm512_unpacklo_epi8(zero, bytes), _mm512_unpackhi_epi8(zero, bytes)};
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        found[v][0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(words[v], upper));
        found[v][1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(words[v], upper));
    }
}

/* The numbers of a pair, of 4 bits: of each sixteen outputs, those of the last eight in the upper halves. */
static inline __attribute__((always_inline)) void numbers_4(const uint8_t *at, __m512 found[VECTORS][2]) {
    const __m512 sixteen = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        const __m512i two = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(at + 16 * v)));
        found[v][0] = _mm512_permutexvar_ps(two, sixteen);
        found[v][1] = _mm512_permutexvar_ps(_mm512_srli_epi32(two, 4), sixteen);
    }
}

/* A scale times a number, or times what was added to it, has at most 20 bits, so that both are exact and their sum is;
 * with the least value it is rounded once. */
static inline __attribute__((always_inline)) void add_groups(const Product *p, const uint8_t *at, const bf16 *x, Ahead *ahead,
                                                             const int rows, const int64_t kind, __m512 sums[][VECTORS]) {
    const int lines = (int)(part_of(kind) / 64);
    for (int64_t k = 0; k < p->inputs; k += GROUP) {
        __m512 scales[VECTORS][2], least[VECTORS][2];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                scales[v][half] = twice(at + 32 * v, half);
                least[v][half] = kind == Q8_0 ? _mm512_mul_ps(scales[v][half], _mm512_set1_ps(-32768 - 128))
                                              : twice(at + HALVES + 32 * v, half);
            }
        at += head_of(kind);
        for (int line = GROUP / 2; line < lines; line++) ask_line(ahead, (uintptr_t)line);
#pragma GCC unroll 2
        for (int i = 0; i < GROUP; i += 2) {
            __m512 numbers[VECTORS][2];
            __m512bh weights[VECTORS];
            if (i / 2 < lines) ask_line(ahead, (uintptr_t)i / 2);
            if (kind == Q8_0) numbers_8(at, numbers);
            else numbers_4(at, numbers);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                weights[v] = _mm512_cvtne2ps_pbh(_mm512_fmadd_ps(numbers[v][1], scales[v][1], least[v][1]),
                                                 _mm512_fmadd_ps(numbers[v][0], scales[v][0], least[v][0]));
            at += kind == Q8_0 ? PAIR : PAIR / 2;
            add_pair(weights, x + k + i, p->inputs, 2, rows, sums);
        }
        go_on(ahead);
    }
}

static inline __attribute__((always_inline)) void tile(const Product *p, const bf16 *x, const float *base, float *y,
                                                       int64_t block, Ahead *shared, const int rows, const int64_t kind) {
    const int64_t outputs = p->outputs;
    const uint8_t *w = p->weight + block * size_of(p);
    Ahead ahead = *shared;
    __m512 sums[MOST_ROWS][VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[r][v] = _mm512_setzero_ps();
    if (kind == BF16) add_bf16(p, w, x, &ahead, rows, sums);
    else add_groups(p, w, x, &ahead, rows, kind, sums);
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

#define ROWS_ARE(rows, kind)                                                                                           \
    case rows: tile(p, x, base, y, block, ahead, rows, kind); break;
#define UP_TO_8(kind)                                                                                                  \
    ROWS_ARE(1, kind)                                                                                                  \
    ROWS_ARE(2, kind)                                                                                                  \
    ROWS_ARE(3, kind)                                                                                                  \
    ROWS_ARE(4, kind)                                                                                                  \
    ROWS_ARE(5, kind)                                                                                                  \
    ROWS_ARE(6, kind)                                                                                                  \
    ROWS_ARE(7, kind)                                                                                                  \
    ROWS_ARE(8, kind)

static void few(const Product *p, const bf16 *x, const float *base, float *y, int64_t rows, int64_t block,
                Ahead *ahead) {
    if (p->kind == Q8_0) switch (rows) { UP_TO_8(Q8_0) }
    else if (p->kind == Q4_1) switch (rows) { UP_TO_8(Q4_1) }
    else switch (rows) {
        UP_TO_8(BF16)
        ROWS_ARE(9, BF16)
        ROWS_ARE(10, BF16)
        ROWS_ARE(11, BF16)
        ROWS_ARE(12, BF16)
    }
}

/* This thread's outputs for x [rows, inputs], to y [rows, outputs]; `base` (or null) has the layout of y, and may be y.
 * `next` (or null) is the product that it computes next.  Many rows go over a block in several turns, in all of which, bit
 * by bit, the block behind it is asked for. */
void product(const Product *p, const bf16 *x, const float *base, float *y, int64_t rows, int64_t me, int64_t team,
             const Product *next) {
    const int64_t most = p->kind == BF16 ? MOST_ROWS : MOST_UNPACKING, turns = (rows + most - 1) / most;
    const int64_t size = size_of(p), end = block_of(p, me + 1, team);
    const int64_t far = turns > 1 ? size : AHEAD, pace = (part_of(p->kind) + turns - 1) / turns;
    const uintptr_t last = share_of(p, me, team).end, behind = next ? share_of(next, me, team).at : last;
    for (int64_t block = block_of(p, me, team); block < end; block++) {
        Ahead ahead = look((uintptr_t)(p->weight + block * size + far), last, behind, pace);
        for (int64_t turn = 0; turn < turns; turn++) {
            const int64_t row = share(rows, turn, turns);
            few(p, x + row * p->inputs, base ? base + row * p->outputs : 0, y + row * p->outputs,
                share(rows, turn + 1, turns) - row, block, &ahead);
        }
    }
}
