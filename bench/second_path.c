/* Pairs of malloc and free below a wrapper that a start-up has called before, at the same depth, from another place.
 *
 * usage: second_path PAIRS
 */
#include <stdlib.h>

static void *volatile block;

__attribute__((noipa)) static void *wrapper(size_t n) {
    void *p = malloc(n);
    __asm__ volatile("" : "+r"(p)::"memory");
    return p;
}

__attribute__((noipa)) static void start(long n) {
    for (long i = 0; i < n; i++) block = wrapper(100), free(block);
}

__attribute__((noipa)) static void work(long n) {
    for (long i = 0; i < n; i++) block = wrapper(100), free(block);
    __asm__ volatile("nop");
}

int main(int count, char **arguments) {
    start(10);
    work(count > 1 ? atol(arguments[1]) : 1);
    return 0;
}
