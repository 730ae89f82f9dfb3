// A library with one function that allocates, called NAME.
#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) void *NAME(void) {
    char *block = malloc(100000);
    memset(block, 1, 100000);
    return block + (block == NULL);
}
void *entry(void) { return (char *)NAME() + 0; }
