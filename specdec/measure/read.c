/* Reads memory as fast as one thread can: four running sums over 64-bit words, which the compiler turns into vector loads.
 * The sum is returned so that no read can be left out. */
#include <stdint.h>

uint64_t read_words(const uint64_t *restrict words, long count) {
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (long i = 0; i + 32 <= count; i += 32) {
        for (long j = 0; j < 8; j++) {
            a += words[i + j];
            b += words[i + 8 + j];
            c += words[i + 16 + j];
            d += words[i + 24 + j];
        }
    }
    return a + b + c + d;
}
