/* Reads memory as fast as one thread can: eight running sums of eight 64-bit words, which the compiler turns into vector
 * loads that wait for none of the others, and prefetches far enough ahead to bridge the memory's latency.  The sum is
 * returned so that no read can be left out; words behind the last whole group are. */
#include <stdint.h>

enum { SUMS = 8, WORDS = 8, GROUP = SUMS * WORDS, AHEAD = 8 * GROUP };

uint64_t read_words(const uint64_t *restrict words, long count) {
    uint64_t sums[SUMS][WORDS] = {{0}}, total = 0;
    for (long i = 0; i + GROUP <= count; i += GROUP) {
        for (long j = 0; j < GROUP; j += WORDS) __builtin_prefetch(words + i + AHEAD + j);
        for (int k = 0; k < SUMS; k++)
            for (int j = 0; j < WORDS; j++) sums[k][j] += words[i + WORDS * k + j];
    }
    for (int k = 0; k < SUMS; k++)
        for (int j = 0; j < WORDS; j++) total += sums[k][j];
    return total;
}
