/* One thread that knows how long it was kept from running: how an attach delays a borrowed thread.
 *
 * usage: gaps computes|allocates|waits, and on standard input the milliseconds of one window a line
 *   computes   reads the clock, nothing else
 *   allocates  frees and allocates one of 1,000 blocks between two readings of the clock
 *   waits      poll(2) with a timeout of 1 ms; the time of a wait beyond that is its gap
 * Each window answers a line: the longest gap, and the sum of all gaps above 0.2 ms, in microseconds. The heap is filled before the
 * first window, so that the thread itself has nothing left to wait for.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCKS = 1000, SHORTEST = 200000 };

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    int allocates = !strcmp(arguments[1], "allocates"), waits = !strcmp(arguments[1], "waits");
    if (!allocates && !waits && strcmp(arguments[1], "computes")) return 2;
    static char *blocks[BLOCKS];
    unsigned random = 1;
    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(16 + i % 512);
    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        long last = now(), end = last + atol(line) * 1000000L, longest = 0, all = 0;
        while (last < end) {
            if (allocates) {
                random = random * 1664525 + 1013904223;
                char **block = &blocks[(random >> 8) % BLOCKS];
                free(*block);
                if (!(*block = malloc(16 + random % 512))) return 3;
                **block = 1;
            }
            if (waits) poll(NULL, 0, 1);
            long then = now(), gap = then - last - (waits ? 1000000L : 0);
            if (gap > longest) longest = gap;
            if (gap > SHORTEST) all += gap;
            last = then;
        }
        printf("%ld %ld\n", longest / 1000, all / 1000);
        fflush(stdout);
    }
    return 0;
}
