/* Plimsoll: what a program may say about its own memory.
 *
 * Nothing has to be linked. Under `plimsoll run` the functions are there; otherwise the macros below do nothing, at the
 * cost of one test of a pointer.
 *
 *     static plimsoll_category_t cache;
 *     cache = plimsoll_category("block cache");     once; the same name gives the same number
 *     plimsoll_category_push(cache);                what this thread allocates and maps from here on belongs to it
 *     ...
 *     plimsoll_category_pop();                      back to what was before
 *
 * Pushes nest, 14 deep; deeper ones are counted and keep the 14th. A block belongs to the category under which it was
 * allocated, whoever frees it. Both calls are async-signal-safe; inside a handler that interrupted the tracker itself
 * they do nothing. */
#ifndef PLIMSOLL_H
#define PLIMSOLL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Number of a category; 0 = not tracked. Valid until the process ends, in children of fork too. */
typedef uint32_t plimsoll_category_t;

__attribute__((weak)) plimsoll_category_t plimsoll_category(const char *name);
__attribute__((weak)) void plimsoll_category_push(plimsoll_category_t category);
__attribute__((weak)) void plimsoll_category_pop(void);

#define plimsoll_category(name) (plimsoll_category ? (plimsoll_category)(name) : 0)
#define plimsoll_category_push(category)                                                                              \
    do {                                                                                                              \
        if (plimsoll_category_push) (plimsoll_category_push)(category);                                               \
    } while (0)
#define plimsoll_category_pop()                                                                                       \
    do {                                                                                                              \
        if (plimsoll_category_pop) (plimsoll_category_pop)();                                                         \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
