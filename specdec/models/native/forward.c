/* A whole forward over a few rows in one call: embedding, the layers of a plan, taps, head.
 *
 * One parallel region holds it all, so that threads are woken once.
 */
#include <omp.h>
#include <string.h>

#include "native.h"

static void tap(const Asked *asked, int64_t which, const float *state, int64_t rows, int64_t hidden) {
    for (int64_t i = 0; i < asked->tapped; i++)
        if (asked->taps[i] == which)
            for (int64_t row = 0; row < rows; row++)
                memcpy(asked->features + (row * asked->tapped + i) * hidden, state + row * hidden,
                       (size_t)hidden * sizeof(float));
}

/* What is multiplied first from a step of the plan on, or null. */
static const Product *product_from(const Model *model, const Asked *asked, const Step *step) {
    for (; step < asked->plan + asked->steps; step++) {
        const Layer *layer = model->layers + step->index;
        if (step->attend) return &layer->qkv;
        if (step->mlp) return &layer->gate;
    }
    return asked->logits ? &model->head : 0;
}

static void member(const Model *model, const Work *work, const Place *place, const Asked *asked, int64_t me,
                   int64_t team) {
    const Shape *shape = &model->shape;
    const int64_t rows = place->rows, hidden = shape->hidden;
    bf16 *x = work->x + me * BREADTH * work->wide;
    double *seconds = me ? 0 : asked->seconds;
    lap(seconds, PARTS);
    if (!me && asked->states)
        memcpy(work->hidden, asked->states, (size_t)(rows * hidden) * sizeof(float));
    else if (!me)
        embed(model->embedding, asked->tokens, work->hidden, rows, hidden);
#pragma omp barrier
    for (const Step *step = asked->plan; step < asked->plan + asked->steps; step++) {
        const Layer *layer = model->layers + step->index;
        const Product *next = product_from(model, asked, step + 1);
        if (!me) tap(asked, step->index, work->hidden, rows, hidden);
        if (step->attend) {
            norm(work->hidden, layer->attention_norm, 0, x, rows, hidden, shape->eps);
            lap(seconds, ROWS);
            attention_block(shape, layer, place, step->index, work, x, me, team, step->mlp ? &layer->gate : next, seconds);
        }
        if (step->mlp) mlp_block(shape, layer, work, rows, me, team, next, seconds);
    }
    if (!me) memcpy(asked->left, work->hidden, (size_t)(rows * hidden) * sizeof(float));
    if (asked->logits) {
        norm(work->hidden, model->final_norm, 0, x, rows, hidden, shape->eps);
        lap(seconds, ROWS);
        product(&model->head, x, 0, asked->logits, rows, me, team, 0);
        lap(seconds, PRODUCTS);
    }
#pragma omp barrier
    if (!me && asked->tapped) {
        norm(work->hidden, model->final_norm, work->hidden, 0, rows, hidden, shape->eps);
        tap(asked, model->count, work->hidden, rows, hidden);
        lap(seconds, ROWS);
    }
}

void forward(const Model *model, const Work *work, const Place *place, const Asked *asked, int64_t threads) {
#pragma omp parallel num_threads((int)threads)
    member(model, work, place, asked, omp_get_thread_num(), omp_get_num_threads());
}

/* y [rows, outputs] = x [rows, inputs] W^T. */
void multiply(const Product *p, const bf16 *x, float *y, int64_t rows, int64_t threads) {
#pragma omp parallel num_threads((int)threads)
    product(p, x, 0, y, rows, omp_get_thread_num(), omp_get_num_threads(), 0);
}

/* What the caller's idea of the structs is checked against. */
const int64_t sizes[] = {sizeof(Product), sizeof(Layer), sizeof(Shape), sizeof(Work),
                         sizeof(Place),   sizeof(Model), sizeof(Step),  sizeof(Asked),
                         sizeof(Head),    sizeof(Guess), BLOCK,         BREADTH};
