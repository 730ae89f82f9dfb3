// jit [DIRECTORY]: allocates from code that it has made itself, as a JIT compiler does. With a directory it writes and maps
// DIRECTORY/jit-PID.dump, which calls that code from_file. Prints its PID and the address of the code, and allocates on:
// one block lives at any time.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *volatile kept;

// malloc by the table of imports, which an attach changes. It jumps, so the made code is the caller of malloc.
void *allocate(size_t bytes);
__asm__(".text\n.globl allocate\n.type allocate, @function\nallocate: jmp *malloc@GOTPCREL(%rip)\n.size allocate, .-allocate\n");

static void dump(const char *directory, uint64_t code) {
    char path[4096];
    snprintf(path, sizeof path, "%s/jit-%d.dump", directory, getpid());
    int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0644);
    uint32_t header[10] = { 0x4A695444, 1, 40, 62, 0, getpid() };
    static const char name[] = "from_file";
    // id, total size, time (8 bytes); pid and tid, vma, address, size, index.
    uint32_t record[4] = { 0, 16 + 40 + sizeof name + 64 };
    uint64_t fields[5] = { getpid(), code, code, 64, 1 };
    int done = file >= 0 && write(file, header, sizeof header) > 0 && write(file, record, sizeof record) > 0 &&
               write(file, fields, sizeof fields) > 0 && write(file, name, sizeof name) > 0 &&
               write(file, (void *)code, 64) > 0;
    if (!done || mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED) exit(1);
}

int main(int count, char **words) {
    // push rbp; mov rbp, rsp; mov rax, allocate; call rax; pop rbp; ret
    unsigned char bytes[] = "\x55\x48\x89\xe5\x48\xb8........\xff\xd0\x5d\xc3";
    void *function = allocate;
    memcpy(bytes + 6, &function, 8);
    unsigned char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) return 1;
    memcpy(code, bytes, sizeof bytes - 1);
    if (count > 1) dump(words[1], (uint64_t)code);
    kept = ((void *(*)(size_t))code)(100000);
    printf("%d %lx\n", getpid(), (long)code);
    fflush(stdout);
    for (;;) {
        usleep(20000);
        void *before = kept;
        kept = ((void *(*)(size_t))code)(100000);
        free(before);
    }
}
