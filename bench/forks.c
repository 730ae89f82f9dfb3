/* forks N WHAT: N forks of a program with 1,000 live blocks, one after the other; the child exits at once (exit), runs true (exec),
 * or allocates and frees one block first (block). */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 1000;
  const char *what = argc > 2 ? argv[2] : "exit";
  for (int i = 0; i < 2000; i++) {
    void *volatile p = malloc(i);
    if (i % 2) free(p);
  }
  for (int i = 0; i < n; i++) {
    pid_t child = fork();
    if (child == 0) {
      if (!strcmp(what, "exec")) execl("/bin/true", "true", (char *)0);
      if (!strcmp(what, "block")) {
        void *volatile p = malloc(100);
        free(p);
      }
      _exit(0);
    }
    if (child < 0 || waitpid(child, 0, 0) != child) return 1;
  }
  return 0;
}
