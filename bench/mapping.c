/* Mapping calls among many mappings, for callgrind, which counts what happens in user mode around the system call.
 *
 * usage: mapping MAPPINGS ROUNDS map|keep|unmap|protect|grow|commit
 *   makes MAPPINGS separate mappings, then ROUNDS times:
 *   map      maps one page and unmaps it
 *   keep     maps one page
 *   unmap    unmaps one of 300 pages that were mapped besides, however many rounds there are
 *   protect  changes the protection of the first half of a mapping twice
 *   grow     makes the next page of a reservation accessible by mprotect, as glibc's arenas grow
 *   commit   maps the next page over a reservation, as a JVM commits memory, and every 16th round reserves 16 pages again
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SPARE = 300 };

static char *spare[SPARE];

int main(int count, char **arguments) {
    if (count != 4) return 2;
    long mappings = atol(arguments[1]), rounds = atol(arguments[2]);
    char **at = calloc(mappings, sizeof *at);
    for (long i = 0; i < mappings; i++) {
        /* Protections that alternate, so that the kernel can't merge neighbours. */
        at[i] = mmap(NULL, 8192, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at[i] == MAP_FAILED) return 3;
    }
    int is_unmap = !strcmp(arguments[3], "unmap"), is_keep = !strcmp(arguments[3], "keep");
    if (is_unmap && rounds > SPARE) return 2;
    for (long i = 0; is_unmap && i < SPARE; i++) {
        spare[i] = mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (spare[i] == MAP_FAILED) return 10;
    }
    int is_map = !strcmp(arguments[3], "map"), is_grow = !strcmp(arguments[3], "grow");
    int is_commit = !strcmp(arguments[3], "commit");
    char *reserved = mmap(NULL, 4096 * (rounds + 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return 6;
    for (long i = 0; i < rounds; i++) {
        if (is_grow) {
            if (mprotect(reserved + 4096 * i, 4096, PROT_READ | PROT_WRITE)) return 7;
        } else if (is_commit) {
            int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
            char *page = reserved + 4096 * (i % 16);
            if (mmap(page, 4096, PROT_READ | PROT_WRITE, fixed, -1, 0) != page) return 8;
            if (i % 16 == 15 && mmap(reserved, 4096 * 16, PROT_NONE, fixed, -1, 0) != reserved) return 9;
        } else if (is_map) {
            void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (page == MAP_FAILED || munmap(page, 4096)) return 4;
        } else if (is_unmap) {
            if (munmap(spare[i * 7919 % SPARE], 4096)) return 11;
        } else if (is_keep) {
            int protection = i % 2 ? PROT_READ : PROT_READ | PROT_WRITE;
            if (mmap(NULL, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) return 12;
        } else {
            char *page = at[i * 7919 % mappings];
            if (mprotect(page, 4096, PROT_NONE) || mprotect(page, 4096, PROT_READ)) return 5;
        }
    }
    return 0;
}
