/* Threads allocate and free at random, then all wait: malloc_info(3) and mallinfo2(3) on stdout are the expected result.
 * arenas THREADS ROUNDS SEED [BIG_BYTES]: each thread keeps about half of its blocks; main allocates BIG_BYTES. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_barrier_t done;
static int rounds;
static char out[1 << 16];

static size_t some_size(unsigned *seed) {
    switch (rand_r(seed) % 8) {
    case 0: return 1 + rand_r(seed) % 24;
    case 1: return 1 + rand_r(seed) % 100;
    case 2: return 1 + rand_r(seed) % 1032;
    case 3: return 600;
    case 4: return 1 + rand_r(seed) % 20000;
    case 5: return rand_r(seed) % 64 ? 48 : 200000 + rand_r(seed) % 400000;
    default: return 1 + rand_r(seed) % 300;
    }
}

static void churn(unsigned seed, int n) {
    void **kept = malloc(n * sizeof *kept);
    for (int i = 0; i < n; i++) {
        size_t size = some_size(&seed);
        kept[i] = rand_r(&seed) % 16 ? malloc(size) : memalign(64 << rand_r(&seed) % 4, size);
        memset(kept[i], 0x41, size);
        if (rand_r(&seed) % 2) {
            int j = rand_r(&seed) % (i + 1);
            free(kept[j]);
            kept[j] = NULL;
        }
    }
}

static void *worker(void *argument) {
    churn((unsigned)(size_t)argument, rounds);
    pthread_barrier_wait(&done);
    for (;;) pause();
}

int main(int argc, char **argv) {
    (void)argc;
    int threads = atoi(argv[1]);
    rounds = atoi(argv[2]);
    unsigned seed = (unsigned)atoi(argv[3]);
    setvbuf(stdout, out, _IOFBF, sizeof out);
    pthread_barrier_init(&done, NULL, threads + 1);
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, worker, (void *)(size_t)(seed * 1000 + i));
    }
    churn(seed, rounds);
    if (argc > 4)
        for (long left = atol(argv[4]); left > 0;) {
            size_t size = 1 + rand_r(&seed) % 4000;
            char *block = malloc(size);
            memset(block, 1, size);
            left -= size;
            if (rand_r(&seed) % 3 == 0) free(block);
        }
    pthread_barrier_wait(&done);
    usleep(50000);
    malloc_info(0, stdout);
#if __GLIBC_PREREQ(2, 33)
    struct mallinfo2 all = mallinfo2();
#else
    struct mallinfo all = mallinfo();
#endif
    printf("fordblks %zu fsmblks %zu arena %zu\n", (size_t)all.fordblks, (size_t)all.fsmblks, (size_t)all.arena);
    printf("READY\n");
    fflush(stdout);
    for (;;) pause();
}
