/* System calls by number, for callgrind, which counts what happens in user mode around them.
 *
 * usage: calls COUNT
 *   calls FUTEX_WAKE without a waiter, COUNT times
 */
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count != 2) return 2;
    static int word;
    for (long i = atol(arguments[1]); i > 0; i--)
        if (syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) != 0) return 3;
    return 0;
}
