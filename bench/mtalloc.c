/* Threads that each churn a set of live blocks: the time of one malloc+free pair.
 *
 * usage: mtalloc THREADS PAIRS SLOTS MAX_SIZE DEPTH
 *   PAIRS pairs by each thread; sizes 16 to 16 + MAX_SIZE; DEPTH frames between the loop and malloc.
 * prints: nanoseconds for one pair of one thread
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long pairs;
static unsigned slots, max_size;
static int depth;

static inline uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* The empty asm keeps the compiler from turning the recursion into a loop: each level is a frame to walk. */
__attribute__((noinline)) static char *allocate(int level, size_t size) {
    char *block = level > 0 ? allocate(level - 1, size) : malloc(size);
    __asm__ volatile("" : "+r"(block)::"memory");
    return block;
}

static void *churn(void *seed) {
    uint64_t state = 0x9E3779B97F4A7C15ull * ((uintptr_t)seed + 1);
    char **live = calloc(slots, sizeof *live);
    for (long i = 0; i < pairs; i++) {
        uint64_t random = next(&state);
        unsigned slot = random % slots;
        free(live[slot]);
        live[slot] = allocate(depth, 16 + (random >> 32) % max_size);
        *live[slot] = 1;
    }
    for (unsigned slot = 0; slot < slots; slot++) free(live[slot]);
    free(live);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 6) return 2;
    long threads = atol(arguments[1]);
    pairs = atol(arguments[2]), slots = atoi(arguments[3]), max_size = atoi(arguments[4]), depth = atoi(arguments[5]);
    if (threads < 1 || threads > 1024 || !slots || !max_size) return 2;
    pthread_t ids[1024];
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, churn, (void *)i)) return 3;
    for (long i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double nanoseconds = (end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec);
    printf("%.3f\n", nanoseconds / pairs);
    return 0;
}
