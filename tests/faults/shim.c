/* Watches the operations that change files below one folder, and interferes at a chosen one.
 *
 * Preload this library (LD_PRELOAD), then call `fault_arm`. It sees the operations of Python, TensorFlow and every other
 * library in the process, and of forked children, which share the counter. Only changes count: opening for writing,
 * writing, flushing, renaming, linking, removing, and creating folders. Each is traced as a line `operation<TAB>path`;
 * changes of other folders are traced as `outside<TAB>path`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Keep in the order of `KINDS` in harness.py. */
enum { COUNT, KILL, FULL, READ_ONLY, PAUSE, SNAPSHOT };

struct state {
  char root[PATH_MAX], target[2 * PATH_MAX], copies[PATH_MAX];
  long at;
  int kind;
  int trace;
  long count;
  pthread_mutex_t lock;
};

static struct state *state; /* shared with forked children; NULL until armed */
static __thread int inside; /* the shim's own calls do not count */
extern char **environ;

/* Interfere at operation number `at` (from 1) below `root`.
 *
 * target: FULL and READ_ONLY affect only this path in `root` and those below it; empty for all. They last to the end.
 * trace: file that gets a line per operation.
 * copies: folder where SNAPSHOT copies `root` as 1, 2, ... before each operation. */
void fault_arm(const char *root, const char *target, long at, int kind, const char *trace, const char *copies) {
  inside = 1;
  struct state *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED || !realpath(root, made->root)) abort();
  snprintf(made->target, sizeof made->target, "%s%s%s", made->root, *target ? "/" : "", target);
  snprintf(made->copies, PATH_MAX, "%s", copies);
  int descriptor = open(trace, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
  made->trace = fcntl(descriptor, F_DUPFD_CLOEXEC, 900);
  if (made->trace < 0) abort();
  close(descriptor);
  pthread_mutexattr_t shared;
  pthread_mutexattr_init(&shared);
  pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&made->lock, &shared);
  made->at = at;
  made->kind = kind;
  inside = 0;
  state = made;
}

static int is_below(const char *path, const char *folder) {
  size_t length = strlen(folder);
  return !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

/* Write the absolute path, without links in its folder, to `resolved`. Return 0 if the folder does not exist. */
static int resolve(int folder, const char *path, char *resolved) {
  char absolute[PATH_MAX], parent[PATH_MAX] = "", link[64];
  if (path[0] != '/' && folder != AT_FDCWD) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, parent, sizeof parent - 2);
    if (length <= 0) return 0;
    strcpy(parent + length, "/");
  }
  if ((size_t)snprintf(absolute, sizeof absolute, "%s%s", parent, path) >= sizeof absolute) return 0;
  for (size_t end = strlen(absolute); end > 1 && absolute[end - 1] == '/'; end--) absolute[end - 1] = 0;
  char *slash = strrchr(absolute, '/');
  const char *name = slash ? slash + 1 : absolute;
  if (slash) *slash = 0;
  if (!realpath(slash ? (*absolute ? absolute : "/") : ".", resolved)) return 0;
  size_t length = strlen(resolved);
  return (size_t)snprintf(resolved + length, PATH_MAX - length, "/%s", name) < PATH_MAX - length;
}

static int wants_space_for(const char *path, int flags) {
  struct stat found;
  return (flags & O_CREAT) && lstat(path, &found);
}

static void write_trace(const char *operation, const char *path) {
  char line[PATH_MAX + 64];
  int length = snprintf(line, sizeof line, "%s\t%s\n", operation, path);
  syscall(SYS_write, state->trace, line, length);
}

static void copy_root(long number) {
  char copy[PATH_MAX + 32];
  snprintf(copy, sizeof copy, "%s/%ld", state->copies, number);
  char *arguments[] = {"cp", "-a", state->root, copy, NULL};
  pid_t process;
  int status;
  if (posix_spawnp(&process, "cp", NULL, NULL, arguments, environ)) abort();
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) continue;
}

/* Count a change below the root. Return 0 to let it happen, or -1 with errno set. `needs_space`: fails on a full disk. */
static int strike(const char *operation, const char *path, int needs_space) {
  int error = errno, result = 0;
  inside = 1;
  pthread_mutex_lock(&state->lock);
  long number = ++state->count;
  write_trace(operation, path + strlen(state->root));
  if (state->kind == SNAPSHOT) copy_root(number);
  if (number == state->at && state->kind == KILL) kill(0, SIGKILL);
  pthread_mutex_unlock(&state->lock);
  if (number == state->at && state->kind == PAUSE) kill(0, SIGSTOP);
  int due = state->at && number >= state->at && is_below(path, state->target);
  if (due && ((state->kind == FULL && needs_space) || state->kind == READ_ONLY)) {
    error = state->kind == FULL ? ENOSPC : EROFS;
    result = -1;
  }
  inside = 0;
  errno = error;
  return result;
}

static int strike_path(const char *operation, int folder, const char *path, int needs_space) {
  char resolved[PATH_MAX];
  if (!state || inside || !path) return 0;
  int error = errno;
  inside = 1;
  int found = resolve(folder, path, resolved);
  inside = 0;
  errno = error;
  if (!found) return 0;
  if (is_below(resolved, state->root)) return strike(operation, resolved, needs_space);
  if (!is_below(resolved, "/dev") && !is_below(resolved, "/proc")) write_trace("outside", resolved);
  return 0;
}

static int strike_descriptor(const char *operation, int descriptor, int needs_space) {
  char link[64], path[PATH_MAX];
  if (!state || inside || descriptor < 0) return 0;
  int error = errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  errno = error;
  if (length <= 0) return 0;
  path[length] = 0;
  return is_below(path, state->root) ? strike(operation, path, needs_space) : 0;
}

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static const int CHANGES = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(int, #name, const char *, int, ...); \
    va_list arguments; \
    va_start(arguments, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0; \
    va_end(arguments); \
    if ((flags & CHANGES) && strike_path("open", AT_FDCWD, path, wants_space_for(path, flags))) return -1; \
    return real(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
  int name(int folder, const char *path, int flags, ...) { \
    REAL(int, #name, int, const char *, int, ...); \
    va_list arguments; \
    va_start(arguments, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0; \
    va_end(arguments); \
    if ((flags & CHANGES) && strike_path("open", folder, path, flags & O_CREAT)) return -1; \
    return real(folder, path, flags, mode); \
  }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name) \
  FILE *name(const char *path, const char *mode) { \
    REAL(FILE *, #name, const char *, const char *); \
    if (strpbrk(mode, "wa+") && strike_path("fopen", AT_FDCWD, path, wants_space_for(path, O_CREAT))) return NULL; \
    return real(path, mode); \
  }
FOPEN(fopen)
FOPEN(fopen64)

size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
  REAL(size_t, "fwrite", const void *, size_t, size_t, FILE *);
  if (strike_descriptor("fwrite", fileno(file), 1)) return 0;
  return real(data, size, count, file);
}

/* Buffered data reaches the file in `fflush` and `fclose`; if that fails, it is lost. */
static int strike_buffer(const char *operation, FILE *file) {
  if (!file || !__fwriting(file) || !__fpending(file) || !strike_descriptor(operation, fileno(file), 1)) return 0;
  __fpurge(file);
  return -1;
}

int fflush(FILE *file) {
  REAL(int, "fflush", FILE *);
  return strike_buffer("fflush", file) ? EOF : real(file);
}

int fclose(FILE *file) {
  REAL(int, "fclose", FILE *);
  int failed = strike_buffer("fclose", file), error = errno;
  int result = real(file);
  if (!failed) return result;
  errno = error;
  return EOF;
}

#define ON_DESCRIPTOR(type, name, parameters, types, ...) \
  type name parameters { \
    REAL(type, #name, types); \
    if (strike_descriptor(#name, descriptor, 1)) return -1; \
    return real(__VA_ARGS__); \
  }
#define TYPES(...) __VA_ARGS__
ON_DESCRIPTOR(ssize_t, write, (int descriptor, const void *data, size_t size), TYPES(int, const void *, size_t),
              descriptor, data, size)
ON_DESCRIPTOR(ssize_t, writev, (int descriptor, const struct iovec *parts, int count),
              TYPES(int, const struct iovec *, int), descriptor, parts, count)
ON_DESCRIPTOR(ssize_t, pwrite, (int descriptor, const void *data, size_t size, off_t offset),
              TYPES(int, const void *, size_t, off_t), descriptor, data, size, offset)
ON_DESCRIPTOR(ssize_t, pwrite64, (int descriptor, const void *data, size_t size, off_t offset),
              TYPES(int, const void *, size_t, off_t), descriptor, data, size, offset)
ON_DESCRIPTOR(ssize_t, sendfile, (int descriptor, int source, off_t *offset, size_t size),
              TYPES(int, int, off_t *, size_t), descriptor, source, offset, size)
ON_DESCRIPTOR(ssize_t, sendfile64, (int descriptor, int source, off_t *offset, size_t size),
              TYPES(int, int, off_t *, size_t), descriptor, source, offset, size)
ON_DESCRIPTOR(int, ftruncate, (int descriptor, off_t size), TYPES(int, off_t), descriptor, size)
ON_DESCRIPTOR(int, ftruncate64, (int descriptor, off_t size), TYPES(int, off_t), descriptor, size)

ssize_t copy_file_range(int source, off_t *from, int descriptor, off_t *to, size_t size, unsigned int flags) {
  REAL(ssize_t, "copy_file_range", int, off_t *, int, off_t *, size_t, unsigned int);
  if (strike_descriptor("copy_file_range", descriptor, 1)) return -1;
  return real(source, from, descriptor, to, size, flags);
}

#define ON_PATH(name, needs_space, parameters, types, folder, ...) \
  int name parameters { \
    REAL(int, #name, types); \
    struct stat found; \
    /* A missing or existing file is reported before a full disk. */ \
    int fails = fstatat(folder, path, &found, AT_SYMLINK_NOFOLLOW) == 0 ? needs_space : !needs_space; \
    if (!fails && strike_path(#name, folder, path, needs_space)) return -1; \
    return real(__VA_ARGS__); \
  }
ON_PATH(unlink, 0, (const char *path), TYPES(const char *), AT_FDCWD, path)
ON_PATH(rmdir, 0, (const char *path), TYPES(const char *), AT_FDCWD, path)
ON_PATH(remove, 0, (const char *path), TYPES(const char *), AT_FDCWD, path)
ON_PATH(mkdir, 1, (const char *path, mode_t mode), TYPES(const char *, mode_t), AT_FDCWD, path, mode)
ON_PATH(unlinkat, 0, (int folder, const char *path, int flags), TYPES(int, const char *, int), folder, folder, path, flags)
ON_PATH(mkdirat, 1, (int folder, const char *path, mode_t mode), TYPES(int, const char *, mode_t), folder, folder, path,
        mode)

#define ON_TWO_PATHS(name, needs_space) \
  int name(const char *source, const char *target) { \
    REAL(int, #name, const char *, const char *); \
    if (strike_path(#name, AT_FDCWD, target, needs_space)) return -1; \
    return real(source, target); \
  }
ON_TWO_PATHS(rename, 0)
ON_TWO_PATHS(link, 1)
ON_TWO_PATHS(symlink, 1)

int linkat(int old_folder, const char *source, int folder, const char *target, int flags) {
  REAL(int, "linkat", int, const char *, int, const char *, int);
  if (strike_path("link", folder, target, 1)) return -1;
  return real(old_folder, source, folder, target, flags);
}

int renameat(int old_folder, const char *source, int folder, const char *target) {
  REAL(int, "renameat", int, const char *, int, const char *);
  if (strike_path("rename", folder, target, 0)) return -1;
  return real(old_folder, source, folder, target);
}

int renameat2(int old_folder, const char *source, int folder, const char *target, unsigned int flags) {
  REAL(int, "renameat2", int, const char *, int, const char *, unsigned int);
  if (strike_path("rename", folder, target, 0)) return -1;
  return real(old_folder, source, folder, target, flags);
}
