/* Runs the engine over small odd shapes with buffers of exactly the size it may touch, for the compiler's sanitizers to
 * watch: every family's weights, chains and trees, one row and many, plans, taps, both EAGLE heads of one and two layers,
 * weights in 8 and 4 bits, one to three threads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "native.h"

enum { HIDDEN = 39, HEADS = 3, KV = 1, WIDTH = 6, INNER = 51, LAYERS = 2, VOCABULARY = 97, CAPACITY = 150 };
enum { QKV = (HEADS + 2 * KV) * WIDTH, MIXED = HEADS * WIDTH, TAPS = 3 };

static void *kept[4096];
static int count;

static void *fresh(size_t size) {
    void *found = malloc(size);
    if (!found || count == 4096) exit(2);
    return kept[count++] = found;
}

static float noise(void) { return (float)rand() / (float)RAND_MAX - 0.5f; }

static float *floats(int64_t size) {
    float *found = fresh((size_t)size * sizeof(float));
    for (int64_t i = 0; i < size; i++) found[i] = noise();
    return found;
}

static bf16 *narrows(int64_t size) {
    float *wide = floats(size);
    bf16 *found = fresh((size_t)size * sizeof(bf16));
    narrowed(wide, found, size);
    return found;
}

static Product product_of(int64_t inputs, int64_t outputs, int biased) {
    const int64_t filled = (outputs + BLOCK - 1) / BLOCK * BLOCK;
    Product made = {(uint8_t *)narrows(filled * ((inputs + 1) / 2 * 2)), biased ? floats(filled) : 0, inputs, outputs, BF16};
    return made;
}

static void all_finite(const float *values, int64_t size) {
    for (int64_t i = 0; i < size; i++)
        if (!isfinite(values[i])) exit(3);
}

/* A product of weights in 8 or 4 bits over whole groups; many rows or one. */
static void run_groups(int64_t inputs, int64_t outputs, int64_t kind, int64_t rows, int64_t threads) {
    const int64_t groups = inputs / 32, blocks = (outputs + BLOCK - 1) / BLOCK, part = kind == Q8_0 ? 64 + 1024 : 128 + 512;
    uint8_t *bytes = fresh((size_t)(outputs * inputs)), *packed = fresh((size_t)(blocks * groups * part));
    uint16_t *halves = fresh((size_t)(2 * outputs * groups) * sizeof(uint16_t));
    for (int64_t i = 0; i < outputs * inputs; i++) bytes[i] = (uint8_t)(rand() % (kind == Q8_0 ? 256 : 16));
    for (int64_t i = 0; i < 2 * outputs * groups; i++) halves[i] = (uint16_t)(0x2000 + rand() % 0x400);
    for (int64_t i = 0; i < blocks * groups * part; i++) packed[i] = 0;
    pack_groups(bytes, halves, kind == Q8_0 ? 0 : halves + outputs * groups, packed, inputs, outputs, kind, threads);
    const Product made = {packed, rows % 2 ? floats(blocks * BLOCK) : 0, inputs, outputs, kind};
    float *y = floats(rows * outputs);
    multiply(&made, narrows(rows * inputs), y, rows, threads);
    all_finite(y, rows * outputs);
}

static Layer layer_of(int64_t wide, int biased, int normed) {
    Layer made = {product_of(wide, QKV, biased),   product_of(MIXED, HIDDEN, biased), product_of(HIDDEN, INNER, biased),
                  product_of(HIDDEN, INNER, biased), product_of(INNER, HIDDEN, biased), floats(HIDDEN), floats(HIDDEN),
                  normed ? floats(WIDTH) : 0,        normed ? floats(WIDTH) : 0};
    return made;
}

static Work work_of(const Shape *shape, int64_t threads) {
    const int64_t wide = TAPS * HIDDEN, attention = attention_scratch(shape, CAPACITY);
    const int64_t scratch = attention > HIDDEN ? attention : HIDDEN;
    Work made = {floats(BREADTH * HIDDEN), floats(BREADTH * QKV),         floats(BREADTH * INNER), floats(BREADTH * INNER),
                 narrows(BREADTH * MIXED), narrows(BREADTH * INNER),      narrows(threads * BREADTH * wide),
                 floats(threads * scratch), wide,                         scratch};
    return made;
}

static int32_t *numbers(int64_t size, int64_t begin, int64_t step) {
    int32_t *found = fresh((size_t)size * sizeof(int32_t));
    for (int64_t i = 0; i < size; i++) found[i] = (int32_t)(begin + step * i);
    return found;
}

/* Rows behind `start` slots: a chain, or a tree in which every row sees the first, itself and some between. */
static Place place_of(int64_t rows, int64_t start, int tree) {
    Place made = {.rows = rows, .keys = narrows(LAYERS * KV * CAPACITY * WIDTH), .capacity = CAPACITY};
    made.values = narrows(LAYERS * KV * CAPACITY * WIDTH);
    made.layer_stride = KV * CAPACITY * WIDTH;
    made.slots = made.positions = numbers(rows, start, 1);
    made.prefix = numbers(rows, tree ? start : start + 1, tree ? 0 : 1);
    made.turns = floats((start + rows) * WIDTH);
    if (tree) {
        uint8_t *mask = fresh((size_t)(rows * rows));
        for (int64_t i = 0; i < rows * rows; i++) {
            const int64_t row = i / rows, slot = i % rows;
            mask[i] = slot == 0 || slot == row || (slot < row && noise() > 0);
        }
        made.mask = mask, made.masked = rows, made.masked_from = start;
    }
    return made;
}

static void run_model(const Shape *shape, int biased, int normed, int64_t rows, int64_t start, int tree,
                      int64_t threads) {
    Layer *layers = fresh(LAYERS * sizeof(Layer));
    for (int i = 0; i < LAYERS; i++) layers[i] = layer_of(HIDDEN, biased, normed);
    const Model model = {*shape, product_of(HIDDEN, VOCABULARY, 0), narrows(VOCABULARY * HIDDEN), floats(HIDDEN), layers,
                         LAYERS};
    const Step plan[] = {{0, 1, rows != 2}, {1, rows != 3, 1}};
    const int64_t taps[TAPS] = {0, 1, LAYERS};
    double seconds[PARTS + 1] = {0};
    const Asked asked = {numbers(rows, 3, 1), 0, floats(rows * HIDDEN), plan, LAYERS, taps, TAPS, floats(rows * TAPS * HIDDEN),
                         floats(rows * VOCABULARY), seconds};
    const Work work = work_of(shape, threads);
    const Place place = place_of(rows, start, tree);
    forward(&model, &work, &place, &asked, threads);
    all_finite(asked.logits, rows * VOCABULARY);
    all_finite(asked.features, rows * TAPS * HIDDEN);
    float *again = floats(rows * VOCABULARY);
    multiply(&model.head, narrows(rows * HIDDEN), again, rows, threads);
    all_finite(again, rows * VOCABULARY);
}

static void run_head(const Shape *shape, int version, int from_features, int64_t rows, int64_t start, int tree,
                     int64_t threads) {
    Layer *layers = fresh(LAYERS * sizeof(Layer));
    for (int i = 0; i < LAYERS; i++) layers[i] = layer_of(version == 3 && i == 0 ? 2 * HIDDEN : HIDDEN, 0, 0);
    const Head head = {*shape,
                       product_of(version == 3 ? TAPS * HIDDEN : 2 * HIDDEN, HIDDEN, 1),
                       product_of(HIDDEN, 33, 0),
                       narrows(VOCABULARY * HIDDEN),
                       version == 3 ? floats(HIDDEN) : 0,
                       version == 3 ? floats(HIDDEN) : 0,
                       version == 3 ? floats(HIDDEN) : 0,
                       layers,
                       version == 3 ? 1 + rows % 2 : 1,
                       rows / 2 % 2};
    const int64_t scored = rows / 2;
    const Guess guess = {numbers(rows, 3, 1), from_features ? floats(rows * TAPS * HIDDEN) : 0,
                         from_features ? 0 : floats(rows * HIDDEN), floats(rows * HIDDEN), floats(scored * 33), scored, 0};
    const Work work = work_of(shape, threads);
    const Place place = place_of(rows, start, tree);
    eagle(&head, &work, &place, &guess, threads);
    all_finite(guess.out, rows * HIDDEN);
    all_finite(guess.logits, scored * 33);
}

int main(void) {
    const Shape shape = {HIDDEN, HEADS, KV, WIDTH, 1e-5};
    const int64_t widths[] = {1, 2, 3, 5, 8, 9, 17, 33, BREADTH};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int tree = 0; tree < 2; tree++) {
            const int64_t rows = widths[i], threads = 1 + (int64_t)(i + (size_t)tree) % 3;
            run_model(&shape, tree, (int)i % 2, rows, i ? CAPACITY - rows : 0, tree, threads);
            run_head(&shape, 3, (int)i % 2, rows, CAPACITY - rows, tree, threads);
            run_head(&shape, 1, 0, rows, 7, tree, threads);
            run_groups(32 * (1 + (int64_t)i % 3), 31 + 17 * (int64_t)i, tree ? Q4_1 : Q8_0, rows, threads);
            while (count) free(kept[--count]);
        }
    puts("clean");
    return 0;
}
