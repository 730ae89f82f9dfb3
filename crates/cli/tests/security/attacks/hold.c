// hold PID: stops the first thread of a process, and no other, until the process is gone. Prints a line once it has
// stopped.
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

int main(int count, char **words) {
    int pid = count > 1 ? atoi(words[1]) : 0, status;
    if (ptrace(PTRACE_SEIZE, pid, 0, 0) || ptrace(PTRACE_INTERRUPT, pid, 0, 0)) return 1;
    if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status)) return 2;
    puts("held");
    fflush(stdout);
    while (waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status)) {}
    return 0;
}
