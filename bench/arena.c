/* A heap to walk: blocks of 16 to 1,040 B until MEBIBYTES are live, every third freed on the way. Waits until it is killed.
 *
 * usage: arena MEBIBYTES
 * prints: "ready"
 */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count != 2) return 2;
    size_t wanted = (size_t)atol(arguments[1]) << 20, used = 0;
    uint64_t state = 88172645463325252ull;
    void *dropped = NULL;
    for (long i = 0; used < wanted; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        void *block = malloc(16 + state % 1025);
        if (!block) return 4;
        size_t usable = malloc_usable_size(block);
        memset(block, 1, usable);
        used += usable + 8;
        /* Frees the block that was chosen last time, so that free blocks don't join. */
        if (i % 3 == 0) {
            if (dropped) used -= malloc_usable_size(dropped) + 8;
            free(dropped), dropped = block;
        }
    }
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
