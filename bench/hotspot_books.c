/* HotSpot's books of virtual memory alone, without a VM and without mappings: reserve, commit and release are booked
 * among MAPPINGS regions that are in the books already.
 *
 * usage: hotspot_books LIBJVM MAPPINGS ROUNDS
 *   prints the bytes that the regions take. callgrind counts what the three functions cost.
 *
 * The functions are local symbols of libjvm.so: .symtab has their values. The tracking level is set to summary, so
 * the VM's malloc books the list's nodes too, as in a VM with -XX:NativeMemoryTracking=summary.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUMMARY 2
#define REGION 0x10000ul
#define STRIDE 0x20000ul
#define BASE 0x100000000000ul

static const char *file, *names;
static const Elf64_Sym *symbols;
static size_t count;
static char *bias;

/* The only symbol with this beginning; clones (".constprop") don't count. */
static void *function(const char *begins) {
    for (size_t i = 0; i < count; i++) {
        const char *name = names + symbols[i].st_name;
        if (!strncmp(name, begins, strlen(begins)) && !strchr(name, '.')) return bias + symbols[i].st_value;
    }
    fprintf(stderr, "%s: no symbol %s\n", file, begins);
    exit(3);
}

static void load(void) {
    void *library = dlopen(file, RTLD_NOW);
    if (!library) exit((fprintf(stderr, "%s\n", dlerror()), 3));
    int fd = open(file, O_RDONLY);
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat)) exit(3);
    const char *bytes = mmap(NULL, stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) exit(3);
    const Elf64_Ehdr *head = (const void *)bytes;
    const Elf64_Shdr *sections = (const void *)(bytes + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++)
        if (sections[i].sh_type == SHT_SYMTAB) {
            symbols = (const void *)(bytes + sections[i].sh_offset);
            count = sections[i].sh_size / sizeof *symbols;
            names = bytes + sections[sections[i].sh_link].sh_offset;
        }
    char *known = dlsym(library, "JNI_CreateJavaVM");
    bias = 0;
    bias = known - (size_t)(char *)function("JNI_CreateJavaVM");
}

static int walked;
static char each(void *walker, const void *region) {
    (void)walker, (void)region;
    walked++;
    return 1;
}

/* A VirtualMemoryWalker: an object with one virtual function. */
static void *table[] = {(void *)each, (void *)each};
static void **walker = table;

typedef char Reserve(char *, size_t, const void *, int);
typedef char Commit(char *, size_t, const void *);
typedef char Release(char *, size_t);

/* callgrind counts the calls from here. */
__attribute__((noinline)) static int rounds_of(long mappings, long rounds, Reserve *reserve, Commit *commit, Release *release) {
    static char stack[64];
    for (long i = 0; i < rounds; i++) {
        /* The gap behind a region. The rounds use gaps that are spread over the whole list. */
        char *at = (char *)(BASE + i * mappings / rounds * STRIDE + REGION + 0x4000);
        if (!reserve(at, REGION / 4, stack, 1) || !commit(at, REGION / 8, stack) || !release(at, REGION / 4)) return 0;
    }
    return 1;
}

int main(int arguments, char **argument) {
    if (arguments != 4) return 2;
    file = argument[1];
    long mappings = atol(argument[2]), rounds = atol(argument[3]);
    load();
    *(int *)function("_ZN10MemTracker15_tracking_levelE") = SUMMARY;
    char (*initialize)(int) = function("_ZN20VirtualMemoryTracker10initializeE");
    Reserve *reserve = function("_ZN20VirtualMemoryTracker19add_reserved_regionE");
    Commit *commit = function("_ZN20VirtualMemoryTracker20add_committed_regionE");
    Release *release = function("_ZN20VirtualMemoryTracker22remove_released_regionEPhm");
    char (*walk)(void *) = function("_ZN20VirtualMemoryTracker19walk_virtual_memoryE");
    if (!initialize(SUMMARY)) return 4;
    size_t before = mallinfo2().uordblks;
    char stack[64] = {0};
    /* From the highest address down, so that the sorted list inserts each region at its head. */
    for (long i = mappings - 1; i >= 0; i--) {
        char *at = (char *)(BASE + i * STRIDE);
        if (!reserve(at, REGION, stack, 1) || !commit(at, REGION / 2, stack)) return 5;
    }
    printf("%zu\n", mallinfo2().uordblks - before);
    if (!rounds_of(mappings, rounds, reserve, commit, release)) return 6;
    if (!walk(&walker) || walked != mappings) return 7;
    return 0;
}
