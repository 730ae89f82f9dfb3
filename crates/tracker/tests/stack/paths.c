/* Call paths of the kinds that unwinders meet, each ending in a call of the probe. */
#define _GNU_SOURCE
#include <alloca.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define NI __attribute__((noinline, noclone))
#define KEEP(p) __asm__ volatile("" ::"r"(p) : "memory")

static void (*probe)(void);

NI static void leaf(void) { probe(); KEEP(0); }
NI static void callee(size_t k) { char *b = alloca(k); KEEP(b); leaf(); KEEP(b); }

/* Two callers of one callee whose alloca makes their stacks alike. */
NI static void a(size_t k) { callee(k); KEEP(0); }
NI static void b(size_t k) { volatile char pad[64]; pad[0] = 1; callee(k); KEEP(pad); }
NI static void alike(int n) {
  void (*volatile f[])(size_t) = {a, b};
  for (int i = 0; i < 4; i++) f[i & 1]((size_t)(256 + n % 7 * 16 - (i & 1) * 64));
  KEEP(f);
}

/* rbp used for data all along, and saved on the way. */
NI static int busy(int d, int x) {
  int c[6]; for (int i = 0; i < 6; i++) c[i] = x * (i + 3) ^ d;
  KEEP(c);
  int r = d ? busy(d - 1, x + c[d % 6]) : (leaf(), 1);
  return r + c[0] * c[1] - c[2] * c[3] + c[4] - c[5];
}

static int compare(const void *l, const void *r) {
  static int n; if (n++ % 5 == 0) leaf();
  return *(const int *)l - *(const int *)r;
}
NI static void sorted(int n) { int v[9]; for (int i = 0; i < 9; i++) v[i] = i * n % 7; qsort(v, 9, sizeof *v, compare); KEEP(v); }

/* Frames realigned to 32 bytes, with a variable part: the CFA lies in a slot. */
NI static void aligned(size_t n) {
  struct { char c[96]; } __attribute__((aligned(64))) s; memset(&s, (int)n, sizeof s);
  char *v = alloca(n * 24 + 1); KEEP(&s); KEEP(v); callee(n * 8 + 16); KEEP(&s); KEEP(v);
}

static void on_signal(int s) { (void)s; callee(40); }
NI static void raised(int d) { if (d) raised(d - 1); else raise(SIGUSR1); KEEP(0); }

/* Interrupted at the first instruction of a function without a frame, where pc - 1 is another's. */
__asm__(".text\n.type trap,@function\n.globl trap\n.hidden trap\n.cfi_startproc\n.cfi_def_cfa_offset 4096\n nop\n.cfi_endproc\n"
        ".cfi_startproc\ntrap: ud2\n ret\n.cfi_endproc\n.size trap,.-trap\n");
extern void trap(void) __attribute__((visibility("hidden")));
static void on_trap(int s, siginfo_t *i, void *c) {
  (void)s; (void)i; callee(24); ((ucontext_t *)c)->uc_mcontext.gregs[REG_RIP] += 2;
}
NI static void trapped(int d) { if (d) trapped(d - 1); else trap(); KEEP(0); }

/* A coroutine on a stack of its own. */
static ucontext_t here, there; static int turn;
static void body(void) { busy(turn % 5, turn); }
void coroutine(char *stack, size_t size, int n) {
  turn = n; getcontext(&there); there.uc_stack.ss_sp = stack; there.uc_stack.ss_size = size; there.uc_link = &here;
  makecontext(&there, body, 0); swapcontext(&here, &there);
}

/* A handler on a stack of its own. */
void alternate(char *stack, size_t size, int n) {
  stack_t s = {.ss_sp = stack, .ss_size = size}, off = {.ss_flags = SS_DISABLE};
  struct sigaction u = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
  sigaltstack(&s, 0); sigaction(SIGUSR2, &u, 0);
  raise(SIGUSR2);
  sigaltstack(&off, 0); KEEP(&u);
}

void run(void (*p)(void), unsigned path, int n) {
  probe = p;
  struct sigaction u = {.sa_handler = on_signal}, t = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
  switch (path) {
  case 0: alike(n); break;
  case 1: busy(n % 12, n); break;
  case 2: sorted(n); break;
  case 3: aligned((size_t)n % 9 + 1); break;
  case 4: sigaction(SIGUSR1, &u, 0); raised(n % 4); break;
  case 5: sigaction(SIGILL, &t, 0); trapped(n % 4); break;
  default: busy(90, n); break; /* deeper than any limit */
  }
  KEEP(&u); KEEP(&t);
}
