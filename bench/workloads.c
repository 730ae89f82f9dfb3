/* The shapes of allocation that allocator benchmarks have, mimalloc-bench's foremost: the time of one operation.
 *
 * usage: workloads SHAPE THREADS OPERATIONS
 *   larson     each thread holds 1,000 blocks of 8 to 1,000 B and replaces a random one
 *   turnover   as larson, and after each 50,000 operations a new thread continues with the blocks of a thread that ends
 *   queue      pairs of threads: one allocates batches of 4,096 blocks of 16 to 528 B, the other frees them
 *   churn      each thread holds 100,000 blocks, most of them small, the largest 8 KiB, and replaces a random one
 *   scratch    each thread allocates 8 B, writes to them 100 times, and frees them
 *   paths      blocks of 16 to 144 B below 4,096 different stacks of 12 frames; 64 live
 * prints: nanoseconds for one operation of one thread
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_THREADS = 64, LARSON = 1000, TURN = 50000, BATCH = 4096, CHURN = 100000, PATHS = 64, LEVELS = 12 };

static long operations;

static inline uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static uint64_t seed(long index) { return 0x9E3779B97F4A7C15ull * ((uint64_t)index + 1); }

static char *touched(size_t size) {
    char *block = malloc(size);
    if (!block) abort();
    *block = 1;
    return block;
}

/* larson and turnover */

struct share {
    char *live[LARSON];
    uint64_t state;
    long left;
    int turns;
};

static void *larson(void *argument) {
    struct share *share = argument;
    for (long i = share->turns && share->left > TURN ? TURN : share->left; i > 0; i--, share->left--) {
        uint64_t random = next(&share->state);
        char **slot = &share->live[random % LARSON];
        free(*slot);
        *slot = touched(8 + (random >> 32) % 993);
    }
    if (share->left > 0) {
        /* Joining would keep the stacks of all threads before it. */
        pthread_t successor;
        if (pthread_create(&successor, NULL, larson, share)) abort();
        pthread_detach(pthread_self());
        return NULL;
    }
    for (int i = 0; i < LARSON; i++) free(share->live[i]);
    __atomic_store_n(&share->turns, -1, __ATOMIC_RELEASE);
    return NULL;
}

/* queue */

struct channel {
    char *batch[BATCH];
    sem_t full, empty;
};

static void *consume(void *argument) {
    struct channel *channel = argument;
    for (long i = 0; i < operations / BATCH; i++) {
        while (sem_wait(&channel->full)) {}
        for (int n = 0; n < BATCH; n++) free(channel->batch[n]);
        sem_post(&channel->empty);
    }
    return NULL;
}

static void *produce(void *argument) {
    struct channel *channel = argument;
    uint64_t state = seed((long)((uintptr_t)channel >> 12));
    for (long i = 0; i < operations / BATCH; i++) {
        for (int n = 0; n < BATCH; n++) channel->batch[n] = touched(16 + (next(&state) >> 32) % 512);
        sem_post(&channel->full);
        while (sem_wait(&channel->empty)) {}
    }
    return NULL;
}

/* churn, scratch, paths */

static void *churn(void *index) {
    uint64_t state = seed((long)(intptr_t)index);
    char **live = calloc(CHURN, sizeof *live);
    for (long i = 0; i < operations; i++) {
        uint64_t random = next(&state);
        char **slot = &live[random % CHURN];
        free(*slot);
        /* Each doubling of the size is half as frequent. */
        int doublings = __builtin_ctzll(random >> 20 | 1 << 9);
        *slot = touched((16 + (random >> 40) % 16) << doublings);
    }
    for (int i = 0; i < CHURN; i++) free(live[i]);
    free(live);
    return NULL;
}

static void *scratch(void *unused) {
    for (long i = 0; i < operations; i++) {
        volatile char *block = touched(8);
        for (int n = 0; n < 100; n++) block[n % 8] += n;
        free((void *)block);
    }
    return unused;
}

static char *path(uint64_t turns, int level, size_t size);

__attribute__((noinline)) static char *left(uint64_t turns, int level, size_t size) {
    char *block = path(turns, level, size);
    __asm__ volatile("" : "+r"(block)::"memory");
    return block;
}

__attribute__((noinline)) static char *right(uint64_t turns, int level, size_t size) {
    char *block = path(turns, level, size);
    __asm__ volatile("" : "+r"(block)::"memory");
    return block;
}

static inline char *path(uint64_t turns, int level, size_t size) {
    if (level == 0) return touched(size);
    return turns & 1 ? right(turns >> 1, level - 1, size) : left(turns >> 1, level - 1, size);
}

static void *paths(void *index) {
    uint64_t state = seed((long)(intptr_t)index);
    char *live[PATHS] = {0};
    for (long i = 0; i < operations; i++) {
        uint64_t random = next(&state);
        free(live[i % PATHS]);
        live[i % PATHS] = path(random, LEVELS, 16 + (random >> 32) % 129);
    }
    for (int i = 0; i < PATHS; i++) free(live[i]);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    const char *shape = arguments[1];
    long threads = atol(arguments[2]);
    operations = atol(arguments[3]);
    if (threads < 1 || threads > MOST_THREADS) return 2;
    int is_queue = !strcmp(shape, "queue"), turns = !strcmp(shape, "turnover");
    int is_larson = turns || !strcmp(shape, "larson");
    void *(*work)(void *) = !strcmp(shape, "churn") ? churn : !strcmp(shape, "scratch") ? scratch : paths;
    if (!is_queue && !is_larson && work == paths && strcmp(shape, "paths")) return 2;
    pthread_t ids[2 * MOST_THREADS];
    struct share *shares[MOST_THREADS];
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    long made = 0;
    for (long i = 0; i < threads; i++) {
        int failed = 0;
        if (is_queue) {
            struct channel *channel = calloc(1, sizeof *channel);
            failed = sem_init(&channel->full, 0, 0) || sem_init(&channel->empty, 0, 0) ||
                     pthread_create(&ids[made++], NULL, produce, channel) ||
                     pthread_create(&ids[made++], NULL, consume, channel);
        } else if (is_larson) {
            shares[i] = calloc(1, sizeof **shares);
            shares[i]->state = seed(i), shares[i]->left = operations, shares[i]->turns = turns;
            failed = pthread_create(&ids[made++], NULL, larson, shares[i]);
        } else {
            failed = pthread_create(&ids[made++], NULL, work, (void *)i);
        }
        if (failed) return 3;
    }
    struct timespec pause = {0, 100000};
    for (long i = 0; i < threads && turns; i++)
        while (__atomic_load_n(&shares[i]->turns, __ATOMIC_ACQUIRE) >= 0) nanosleep(&pause, NULL);
    for (long i = 0; i < made && !turns; i++) pthread_join(ids[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.3f\n", ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / operations);
    return 0;
}
