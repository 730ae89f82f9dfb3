// mapped NAME: maps the file as a loader would, then puts a FIFO in its place. Prints a line and waits.
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int count, char **words) {
    int file = open(words[1], O_RDONLY);
    if (count < 2 || file < 0) return 1;
    for (int i = 0; i < 4; i++) {
        int how = i == 1 ? PROT_READ | PROT_WRITE : PROT_READ | PROT_EXEC;
        if (mmap(0, 1 << 20, how, MAP_PRIVATE, file, (off_t)i << 20) == MAP_FAILED) return 2;
    }
    close(file);
    if (unlink(words[1]) || mkfifo(words[1], 0666)) return 3;
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
