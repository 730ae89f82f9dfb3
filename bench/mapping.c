/* Mapping calls among many mappings, for callgrind, which counts what happens in user mode around the system call.
 *
 * usage: mapping MAPPINGS ROUNDS map|protect
 *   makes MAPPINGS separate mappings, then ROUNDS times: map one page and unmap it, or change the protection of one twice
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int count, char **arguments) {
    if (count != 4) return 2;
    long mappings = atol(arguments[1]), rounds = atol(arguments[2]);
    char **at = calloc(mappings, sizeof *at);
    for (long i = 0; i < mappings; i++) {
        /* Protections that alternate, so that the kernel can't merge neighbours. */
        at[i] = mmap(NULL, 8192, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at[i] == MAP_FAILED) return 3;
    }
    for (long i = 0; i < rounds; i++) {
        if (!strcmp(arguments[3], "map")) {
            void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (page == MAP_FAILED || munmap(page, 4096)) return 4;
        } else {
            char *page = at[i * 7919 % mappings];
            if (mprotect(page, 4096, PROT_NONE) || mprotect(page, 4096, PROT_READ)) return 5;
        }
    }
    return 0;
}
