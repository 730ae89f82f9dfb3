/* fuse BACKING DIRECTORY NAME UID MILLISECONDS: serves one file by FUSE, in a mount namespace of its own, and maps it
 * as the user UID. Each read takes MILLISECONDS, or never ends if the number is negative. Prints its PID, then a line
 * for each read. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *name;
static int backing, milliseconds;
static struct stat of;

static struct fuse_attr attributes(unsigned long node) {
  struct fuse_attr a = {.ino = node, .nlink = 1, .blksize = 4096};
  a.mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0755;
  a.size = node == 1 ? 0 : of.st_size;
  a.blocks = (a.size + 511) / 512;
  return a;
}

static void answer(int fd, unsigned long unique, int error, const void *body, size_t bytes) {
  static char packet[sizeof(struct fuse_out_header) + (1 << 20)];
  struct fuse_out_header header = {.len = sizeof header + bytes, .error = -error, .unique = unique};
  memcpy(packet, &header, sizeof header);
  if (bytes) memcpy(packet + sizeof header, body, bytes);
  write(fd, packet, header.len);
}

static void serve(int fd) {
  static char request[1 << 18], data[1 << 20];
  while (read(fd, request, sizeof request) > 0) {
    struct fuse_in_header *in = (void *)request;
    void *body = in + 1;
    switch (in->opcode) {
      case FUSE_INIT: {
        struct fuse_init_in *asked = body;
        struct fuse_init_out out = {.major = 7, .minor = 31, .max_readahead = asked->max_readahead, .max_write = 4096};
        answer(fd, in->unique, 0, &out, sizeof out);
        break;
      }
      case FUSE_LOOKUP: {
        struct fuse_entry_out out = {.nodeid = 2, .attr_valid = 60, .entry_valid = 60, .attr = attributes(2)};
        int found = !strcmp(body, name);
        answer(fd, in->unique, found ? 0 : ENOENT, &out, found ? sizeof out : 0);
        break;
      }
      case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr_valid = 60, .attr = attributes(in->nodeid)};
        answer(fd, in->unique, 0, &out, sizeof out);
        break;
      }
      case FUSE_OPEN:
      case FUSE_OPENDIR: {
        struct fuse_open_out out = {0};
        answer(fd, in->unique, 0, &out, sizeof out);
        break;
      }
      case FUSE_READ: {
        struct fuse_read_in *asked = body;
        puts("a read");
        fflush(stdout);
        if (milliseconds < 0) continue;
        usleep(milliseconds * 1000);
        ssize_t n = pread(backing, data, asked->size, asked->offset);
        answer(fd, in->unique, 0, data, n < 0 ? 0 : n);
        break;
      }
      case FUSE_RELEASE:
      case FUSE_FLUSH:
        answer(fd, in->unique, 0, 0, 0);
        break;
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
      case FUSE_INTERRUPT:
        break;
      /* So fstatfs(2) fails. */
      default:
        answer(fd, in->unique, ENOSYS, 0, 0);
    }
  }
  _exit(0);
}

int main(int argc, char **argv) {
  char path[4096], options[100];
  backing = open(argv[1], O_RDONLY);
  name = argv[3];
  milliseconds = atoi(argv[5]);
  fstat(backing, &of);
  int fd = open("/dev/fuse", O_RDWR), user = atoi(argv[4]);
  snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other", fd, user, user);
  if (fd < 0 || unshare(CLONE_NEWNS) || mount("none", "/", 0, MS_REC | MS_PRIVATE, 0) ||
      mount("served", argv[2], "fuse", MS_NOSUID | MS_NODEV, options)) {
    printf("no FUSE: %s\n", strerror(errno));
    return 0;
  }
  int target = getpid();
  if (fork() == 0) {
    /* The kernel sends the signal at the parent's end only if both are the same user's. */
    if (setgid(user) || setuid(user) || prctl(PR_SET_PDEATHSIG, SIGKILL)) _exit(1);
    if (getppid() == target) serve(fd);
    _exit(0);
  }
  close(fd);
  snprintf(path, sizeof path, "%s/%s", argv[2], name);
  if (setgid(user) || setuid(user)) return 1;
  int served = open(path, O_RDONLY);
  if (served < 0 || mmap(0, of.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, served, 0) == MAP_FAILED) return 2;
  printf("%d\n", target);
  fflush(stdout);
  for (;;) pause();
}
