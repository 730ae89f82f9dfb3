/* The least that any bookkeeper in the process must do for a pair of malloc and free over glibc: a library for
 * LD_PRELOAD.
 *
 * Without BOOKS it only passes the calls on. With BOOKS it books as Plimsoll does, but without stacks: a trailer of
 * 8 bytes names the owner and the requested size, and six counters of the thread grow. Plimsoll also compares the
 * stack, samples, keeps peaks, and books a block that another thread frees under the block's own caller.
 */
#include <stddef.h>
#include <stdint.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

#ifdef BOOKS

enum { TRAILER = 8, MOST = 64 << 10 };

static const uint64_t secret = 0x9E3779B97F4A7C15ull;
static __thread struct {
    uint64_t allocated, allocated_bytes, requested, freed, freed_bytes, freed_requested;
} row __attribute__((tls_model("initial-exec"), aligned(64)));

/* As malloc_usable_size(3) of glibc: the size in front of the block, without its three flags and the header. */
static inline size_t usable(char *block) { return (((size_t *)block)[-1] & ~(size_t)7) - 8; }

static void *booked(char *block, size_t size) {
    if (!block || size >= MOST) return block;
    size_t most = usable(block) - TRAILER;
    *(uint64_t *)(block + most) = (uint64_t)size << 48 ^ (uintptr_t)block ^ secret;
    row.allocated++, row.allocated_bytes += most, row.requested += size;
    return block;
}

static void released(char *block) {
    if (!block) return;
    size_t most = usable(block) - TRAILER;
    if (most >= MOST) return;
    uint64_t trailer = *(uint64_t *)(block + most) ^ (uintptr_t)block ^ secret;
    if (trailer << 16) return;
    *(uint64_t *)(block + most) = 0;
    row.freed++, row.freed_bytes += most, row.freed_requested += trailer >> 48;
}

#else
enum { TRAILER = 0 };
static void *booked(char *block, size_t size) { return (void)size, block; }
static void released(char *block) { (void)block; }
#endif

void *malloc(size_t size) { return booked(__libc_malloc(size + TRAILER), size); }

void free(void *block) {
    released(block);
    __libc_free(block);
}

void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
    return booked(__libc_calloc(1, bytes + TRAILER), bytes);
}

void *realloc(void *block, size_t size) {
    if (!block) return malloc(size);
    released(block);
    return booked(__libc_realloc(block, size + TRAILER), size);
}
