// strings BYTES: shows as many bytes of untouched memory as its arguments and as its environment. Prints a line and
// waits.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **words) {
    uint64_t bytes = count > 1 ? strtoull(words[1], 0, 10) : 0, heap = (uint64_t)sbrk(0);
    void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return 1;
    uint64_t start = (uint64_t)at, end = start + bytes;
    struct prctl_mm_map map = {
        .start_code = start, .end_code = end, .start_data = start, .end_data = start, .start_brk = heap, .brk = heap,
        .start_stack = (uint64_t)&bytes, .arg_start = start, .arg_end = end, .env_start = start, .env_end = end,
        .exe_fd = -1,
    };
    int done = prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0);
    puts(done ? strerror(errno) : "ready");
    fflush(stdout);
    for (;;) pause();
}
