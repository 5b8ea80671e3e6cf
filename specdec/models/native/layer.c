/* A decoder layer's two blocks, as a team runs them: every function here is called by all threads of a parallel region.
 *
 * Work is cut so that threads meet as seldom as possible: by a product's outputs, by an attention's (row, head) pairs.
 */
#include <time.h>

#include "native.h"

/* Where times are asked for, adds the seconds since the last lap to `part`; `seconds`[PARTS] holds when that was.  Only
 * the first thread of a team keeps time. */
void lap(double *seconds, int part) {
    if (!seconds) return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double moment = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (part < PARTS) seconds[part] += moment - seconds[PARTS];
    seconds[PARTS] = moment;
}

/* hidden += o(attention(qkv(x))); ends with the team together.  `next` is the product behind it. */
void attention_block(const Shape *shape, const Layer *layer, const Place *place, int64_t index, const Work *work,
                     const bf16 *x, int64_t me, int64_t team, const Product *next, double *seconds) {
    const int64_t rows = place->rows, pairs = rows * shape->kv_heads, units = rows * shape->heads, group = group_of(shape);
    product(&layer->qkv, x, 0, work->qkv, rows, me, team, &layer->o);
#pragma omp barrier
    lap(seconds, PRODUCTS);
    for (int64_t i = share(pairs, me, team); i < share(pairs, me + 1, team); i++)
        store_kv(shape, layer, place, index, work->qkv, i / shape->kv_heads, i % shape->kv_heads);
#pragma omp barrier
    Soon soon = share_of(&layer->o, me, team);
    for (int64_t i = share(units, me, team), end = share(units, me + 1, team), count; i < end; i += count) {
        count = smaller(smaller(TILE, end - i), group - i % group);
        attend(shape, layer, place, index, work->qkv, work->mixed, work->scratch + me * work->scratch_size,
               i / shape->heads, i % shape->heads, count, &soon);
    }
#pragma omp barrier
    lap(seconds, ATTENTION);
    product(&layer->o, work->mixed, work->hidden, work->hidden, rows, me, team, next);
#pragma omp barrier
    lap(seconds, PRODUCTS);
}

/* hidden += down(silu(gate(n)) * up(n)), n the norm of hidden; ends with the team together.  `next` is the product behind it. */
void mlp_block(const Shape *shape, const Layer *layer, const Work *work, int64_t rows, int64_t me, int64_t team,
               const Product *next, double *seconds) {
    bf16 *x = work->x + me * BREADTH * work->wide;
    norm(work->hidden, layer->mlp_norm, 0, x, rows, shape->hidden, shape->eps);
    lap(seconds, ROWS);
    product(&layer->gate, x, 0, work->gate, rows, me, team, &layer->up);
    product(&layer->up, x, 0, work->up, rows, me, team, &layer->down);
    lap(seconds, PRODUCTS);
    gated(work->gate, work->up, work->gated, rows, layer->gate.outputs, outputs_before(&layer->gate, me, team),
          outputs_before(&layer->gate, me + 1, team));
#pragma omp barrier
    lap(seconds, ROWS);
    product(&layer->down, work->gated, work->hidden, work->hidden, rows, me, team, next);
#pragma omp barrier
    lap(seconds, PRODUCTS);
}
