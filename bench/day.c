/* A day of a service, from noon to noon, played by the clock: what there is to do in each of its minutes depends on the
 * hour alone, and a minute lasts as long as SECONDS allow.
 *
 * usage: day SECONDS
 *   8 workers serve requests, at noon 600 each in a minute, at midnight a tenth of that. A request makes 40 blocks of
 *   16 to 1,024 B below 4,096 different stacks of 12 frames, and replaces a session of 64 B to 2 KiB; at noon each worker
 *   holds 4,000 sessions. After half an hour a new thread continues for a worker. In each minute 20 buffers of 64 KiB to
 *   1 MiB are mapped and unmapped, and a child process lives and ends; in each hour a library comes and goes.
 * prints: `ready`; after the day the number of requests, and of minutes of a worker that ended late
 */
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MINUTES = 1440, WORKERS = 8, REQUESTS = 600, BLOCKS = 40, SESSIONS = 4000, LEVELS = 12, TURN = 30, BUFFERS = 20 };

static struct timespec began;
static double minute_ns;
static long served, late;
static sem_t done;

struct worker {
    uint64_t state;
    int minute;
    char *sessions[SESSIONS];
};

static inline uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* Percent of noon's load. */
static long level(int minute) {
    int from_noon = minute < MINUTES / 2 ? minute : MINUTES - minute;
    return 100 - 90L * from_noon / (MINUTES / 2);
}

/* Sleeps until the end of a minute; 1 if that has passed. */
static int sleep_until_end(int minute) {
    long long ns = began.tv_nsec + (long long)(minute_ns * (minute + 1));
    struct timespec now, end = {began.tv_sec + ns / 1000000000, ns % 1000000000};
    clock_gettime(CLOCK_MONOTONIC, &now);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL)) {}
    return now.tv_sec > end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec > end.tv_nsec);
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
    if (level > 0) return turns & 1 ? right(turns >> 1, level - 1, size) : left(turns >> 1, level - 1, size);
    char *block = malloc(size);
    if (!block) abort();
    *block = 1;
    return block;
}

static void serve(struct worker *worker, long sessions) {
    char *held[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        uint64_t random = next(&worker->state);
        held[i] = path(random, LEVELS, 16 + (random >> 32) % 1009);
    }
    for (int i = 0; i < BLOCKS; i++) free(held[i]);
    uint64_t random = next(&worker->state);
    char **session = &worker->sessions[(random >> 16) % sessions];
    free(*session);
    *session = path(random, LEVELS, 64 + (random >> 40) % 1985);
}

static void *work(void *argument) {
    struct worker *worker = argument;
    pthread_detach(pthread_self());
    for (int turn = 0; turn < TURN && worker->minute < MINUTES; turn++, worker->minute++) {
        long requests = REQUESTS * level(worker->minute) / 100, sessions = SESSIONS * level(worker->minute) / 100;
        for (long i = 0; i < requests; i++) serve(worker, sessions);
        for (long i = sessions; i < SESSIONS; i++) {
            free(worker->sessions[i]);
            worker->sessions[i] = NULL;
        }
        __atomic_fetch_add(&served, requests, __ATOMIC_RELAXED);
        __atomic_fetch_add(&late, sleep_until_end(worker->minute), __ATOMIC_RELAXED);
    }
    pthread_t successor;
    if (worker->minute == MINUTES)
        sem_post(&done);
    else if (pthread_create(&successor, NULL, work, worker))
        abort();
    return NULL;
}

/* Buffers, a child, and on the hour a library. */
static void housekeeping(int minute, uint64_t *state) {
    for (int i = 0; i < BUFFERS; i++) {
        size_t size = (64 + next(state) % 961) << 10;
        char *buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (buffer == MAP_FAILED) abort();
        *buffer = 1;
        munmap(buffer, size);
    }
    pid_t child = fork();
    if (child < 0) abort();
    if (child == 0) {
        char *volatile block = malloc(1000);
        free(block);
        _exit(0);
    }
    while (waitpid(child, NULL, 0) < 0) {}
    if (minute % 60) return;
    void *library = dlopen("libm.so.6", RTLD_NOW);
    if (!library) abort();
    dlclose(library);
}

int main(int count, char **arguments) {
    if (count != 2 || atof(arguments[1]) <= 0) return 2;
    minute_ns = atof(arguments[1]) * 1e9 / MINUTES;
    sem_init(&done, 0, 0);
    uint64_t state = 0x9E3779B97F4A7C15ull;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int i = 0; i < WORKERS; i++) {
        struct worker *worker = calloc(1, sizeof *worker);
        pthread_t thread;
        worker->state = next(&state);
        if (pthread_create(&thread, NULL, work, worker)) return 3;
    }
    puts("ready");
    fflush(stdout);
    for (int minute = 0; minute < MINUTES; minute++) {
        housekeeping(minute, &state);
        sleep_until_end(minute);
    }
    for (int i = 0; i < WORKERS; i++)
        while (sem_wait(&done)) {}
    printf("%ld %ld\n", served, late);
    return 0;
}
