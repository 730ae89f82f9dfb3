/* What live blocks cost in resident memory.
 *
 * usage: blocks COUNT MIN_SIZE MAX_SIZE first|all
 *   allocates COUNT blocks of sizes in [MIN_SIZE, MAX_SIZE] and touches the first byte, or all bytes, of each
 * prints: the growth of RSS in bytes (/proc/self/statm, field 2, in pages) between the first block and the last
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long resident(void) {
    char text[128] = {0};
    int file = open("/proc/self/statm", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0) exit(3);
    close(file);
    return atol(strchr(text, ' ')) * sysconf(_SC_PAGESIZE);
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    long blocks = atol(arguments[1]), low = atol(arguments[2]), high = atol(arguments[3]);
    int all = !strcmp(arguments[4], "all");
    /* The warm-up lets the allocator and the tracker make their own tables first. */
    for (int i = 0; i < 100; i++) free(malloc(low + i % (high - low + 1)));
    long before = resident();
    uint64_t state = 88172645463325252ull;
    for (long i = 0; i < blocks; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        size_t size = low + state % (high - low + 1);
        char *block = malloc(size);
        if (!block) return 4;
        if (all) memset(block, 1, size);
        else *block = 1;
        __asm__ volatile("" : : "r"(block) : "memory");
    }
    printf("%ld\n", resident() - before);
    return 0;
}
