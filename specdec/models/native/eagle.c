/* One step of an EAGLE head in one call: states and embeddings in, the next states and their logits out.
 *
 * EAGLE-3 (`hidden_norm` is there) normalises embedding and state apart and attends over both side by side; EAGLE-1 merges
 * them in the product `fc`.  The layers behind are a decoder's.
 */
#include <omp.h>
#include <string.h>

#include "native.h"

/* [embedding, state] of every row, normalised apart where there are norms, to x [rows, 2 hidden]. */
static void side_by_side(const Head *head, const Guess *guess, const float *states, float *embedded, bf16 *x,
                         int64_t rows) {
    const int64_t hidden = head->shape.hidden;
    for (int64_t row = 0; row < rows; row++, x += 2 * hidden, states += hidden) {
        embed(head->embedding, guess->tokens + row, embedded, 1, hidden);
        if (head->hidden_norm) {
            norm(embedded, head->input_norm, 0, x, 1, hidden, head->shape.eps);
            norm(states, head->hidden_norm, 0, x + hidden, 1, hidden, head->shape.eps);
        } else {
            narrowed(embedded, x, hidden);
            narrowed(states, x + hidden, hidden);
        }
    }
}

static void member(const Head *head, const Work *work, const Place *place, const Guess *guess, int64_t me,
                   int64_t team) {
    const Shape *shape = &head->shape;
    const int64_t rows = place->rows, hidden = shape->hidden;
    bf16 *x = work->x + me * BREADTH * work->wide;
    float *scratch = work->scratch + me * work->scratch_size;
    double *seconds = me ? 0 : guess->seconds;
    lap(seconds, PARTS);
    if (head->hidden_norm) {
        if (guess->features) {
            narrowed(guess->features, x, rows * head->fc.inputs);
            product(&head->fc, x, 0, work->hidden, rows, me, team, &head->layers->qkv);
        } else if (!me)
            memcpy(work->hidden, guess->states, (size_t)(rows * hidden) * sizeof(float));
#pragma omp barrier
        lap(seconds, PRODUCTS);
        side_by_side(head, guess, work->hidden, scratch, x, rows);
        if (head->norm_before_residual) {
#pragma omp barrier
            if (!me) norm(work->hidden, head->hidden_norm, work->hidden, 0, rows, hidden, shape->eps);
        }
    } else {
        side_by_side(head, guess, guess->states, scratch, x, rows);
        lap(seconds, ROWS);
        product(&head->fc, x, 0, work->hidden, rows, me, team, &head->layers->qkv);
#pragma omp barrier
        lap(seconds, PRODUCTS);
        narrowed(work->hidden, x, rows * hidden);
    }
    lap(seconds, ROWS);
    for (int64_t index = 0; index < head->count; index++) {
        const Layer *layer = head->layers + index;
        const Product *next = index + 1 < head->count ? &layer[1].qkv : guess->scored ? &head->head : 0;
        if (index) {
            norm(work->hidden, layer->attention_norm, 0, x, rows, hidden, shape->eps);
            lap(seconds, ROWS);
        }
        attention_block(shape, layer, place, index, work, x, me, team, &layer->gate, seconds);
        mlp_block(shape, layer, work, rows, me, team, next, seconds);
    }
    if (!me) memcpy(guess->out, work->hidden, (size_t)(rows * hidden) * sizeof(float));
    if (guess->scored) {
        const float *last = work->hidden + (rows - guess->scored) * hidden;
        if (head->final_norm)
            norm(last, head->final_norm, 0, x, guess->scored, hidden, shape->eps);
        else
            narrowed(last, x, guess->scored * hidden);
        lap(seconds, ROWS);
        product(&head->head, x, 0, guess->logits, guess->scored, me, team, 0);
        lap(seconds, PRODUCTS);
    }
}

void eagle(const Head *head, const Work *work, const Place *place, const Guess *guess, int64_t threads) {
#pragma omp parallel num_threads((int)threads)
    member(head, work, place, guess, omp_get_thread_num(), omp_get_num_threads());
}
