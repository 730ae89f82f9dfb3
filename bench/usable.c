/* The cost of malloc_usable_size(3), which Redis calls twice for each block.
 *
 * usage: usable CALLS
 */
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>

enum { BLOCKS = 1000 };

int main(int count, char **arguments) {
    if (count != 2) return 2;
    static char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(1 + i * 7 % 512);
        if (!blocks[i]) return 3;
    }
    size_t sum = 0;
    for (long i = atol(arguments[1]); i > 0; i--) sum += malloc_usable_size(blocks[i % BLOCKS]);
    return sum == 1;
}
