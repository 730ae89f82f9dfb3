/* Pairs of malloc and free below a wrapper that is called at one depth from two places.
 *
 * usage: second_path PAIRS EVERY
 *   the first ten pairs come from one place; later each EVERY-th pair does, and the others come from another place
 */
#include <stdlib.h>

static void *volatile block;

__attribute__((noipa)) static void *wrapper(size_t n) {
    void *p = malloc(n);
    __asm__ volatile("" : "+r"(p)::"memory");
    return p;
}

__attribute__((noipa)) static void first(void) {
    block = wrapper(100);
    free(block);
}

__attribute__((noipa)) static void second(void) {
    block = wrapper(100);
    free(block);
    __asm__ volatile("nop");
}

int main(int count, char **arguments) {
    long pairs = count > 1 ? atol(arguments[1]) : 1, every = count > 2 ? atol(arguments[2]) : 2;
    for (long i = 0; i < pairs; i++) {
        if (i < 10 || i % every == 0) first();
        else second();
    }
    return 0;
}
