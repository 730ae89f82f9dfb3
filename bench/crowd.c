/* A crowd to report on: many threads and many mappings. Waits until it is killed.
 *
 * usage: crowd THREADS MAPPINGS
 * prints: "ready", once all exist
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void *rest(void *unused) {
    for (;;) pause();
    return unused;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    long threads = atol(arguments[1]), mappings = atol(arguments[2]);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    for (long i = 0; i < threads; i++) {
        pthread_t id;
        if (pthread_create(&id, &attributes, rest, NULL)) return fprintf(stderr, "thread %ld\n", i), 3;
    }
    for (long i = 0; i < mappings; i++)
        if (mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
            return fprintf(stderr, "mapping %ld\n", i), 4;
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
