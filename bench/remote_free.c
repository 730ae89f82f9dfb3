/* Blocks that one thread allocates and another frees, as in a queue: for counting instructions.
 *
 * usage: remote_free BLOCKS
 *   sizes 16 to 528, in batches of 4,096; 4 frames between the loop and malloc
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>

enum { BATCH = 4096 };
static char *batch[BATCH];
static sem_t full, empty;
static long batches;

__attribute__((noinline)) static char *allocate(int level, size_t size) {
    char *block = level > 0 ? allocate(level - 1, size) : malloc(size);
    __asm__ volatile("" : "+r"(block)::"memory");
    return block;
}

static void *releases(void *none) {
    for (long i = 0; i < batches; i++) {
        while (sem_wait(&full)) {}
        for (int n = 0; n < BATCH; n++) free(batch[n]);
        sem_post(&empty);
    }
    return none;
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    batches = atol(arguments[1]) / BATCH;
    pthread_t other;
    if (sem_init(&full, 0, 0) || sem_init(&empty, 0, 0) || pthread_create(&other, NULL, releases, NULL)) return 3;
    uint64_t state = 88172645463325252ull;
    for (long i = 0; i < batches; i++) {
        for (int n = 0; n < BATCH; n++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            batch[n] = allocate(4, 16 + (state >> 32) % 512);
            *batch[n] = 1;
        }
        sem_post(&full);
        while (sem_wait(&empty)) {}
    }
    return pthread_join(other, NULL) ? 3 : 0;
}
