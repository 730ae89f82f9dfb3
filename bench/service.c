/* A service at rest: threads that have all allocated. Waits until it is killed.
 *
 * usage: service THREADS PAIRS
 *   each thread makes PAIRS pairs of malloc and free of 16 to 528 B below 8 frames, and keeps the last 100 blocks
 * prints: "ready", once all have done so
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { KEPT = 100 };
static long pairs;
static pthread_barrier_t done;

__attribute__((noinline)) static char *allocate(int level, size_t size) {
    char *block = level > 0 ? allocate(level - 1, size) : malloc(size);
    __asm__ volatile("" : "+r"(block)::"memory");
    return block;
}

static void *work(void *index) {
    uint64_t state = 0x9E3779B97F4A7C15ull * ((uintptr_t)index + 1);
    char *live[KEPT] = {0};
    for (long i = 0; i < pairs; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        free(live[i % KEPT]);
        live[i % KEPT] = allocate(8, 16 + (state >> 32) % 513);
        *live[i % KEPT] = 1;
    }
    pthread_barrier_wait(&done);
    for (;;) pause();
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    long threads = atol(arguments[1]);
    pairs = atol(arguments[2]);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    if (pthread_barrier_init(&done, NULL, threads + 1)) return 3;
    for (long i = 0; i < threads; i++) {
        pthread_t id;
        if (pthread_create(&id, &attributes, work, (void *)i)) return 3;
    }
    pthread_barrier_wait(&done);
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
