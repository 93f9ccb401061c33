/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into the program under test: makes one system call of its writing fail, or lets something happen right
   before or after it.

   FAULTS is a list, separated by commas, of CALL:ACTION:NUMBER. The first call of that kind is meant.
     error   fails with errno NUMBER instead of being made
     before  sends signal NUMBER to the process, then makes the call
     after   makes the call, then sends the signal
     cut     truncates the file that FAULTS_FILE names to NUMBER bytes, then makes the call
     swap    renames FAULTS_FILE.other to FAULTS_FILE, then makes the call
     wait    creates the file FAULTS_MARK, waits until the file FAULTS_GO is there, then makes the call
   Any of them creates the file that FAULTS_MARK names: a test whose fault never comes has to fail.
   FAULTS_NAMED: the file system has no O_TMPFILE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char done[64];

static void mark(void)
{
  const char *path = getenv("FAULTS_MARK");
  if (path)
    syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT, 0600));
}

static void wait_for_word(void)
{
  const char *path = getenv("FAULTS_GO");
  struct timespec pause = {0, 5000000};
  struct stat status;
  while (path && stat(path, &status) != 0)
    nanosleep(&pause, NULL);
}

static void swap(const char *path)
{
  char other[4096];
  snprintf(other, sizeof other, "%s.other", path);
  syscall(SYS_renameat2, AT_FDCWD, other, AT_FDCWD, path, 0);
}

/* Do what is requested at a call; return the signal to send after it, or -errno if it must not be made. */
static int at(const char *call)
{
  const char *entry = getenv("FAULTS");
  const char *file = getenv("FAULTS_FILE");
  int later = 0;
  for (int index = 0; entry && *entry && index < (int)sizeof done; index++) {
    char name[16], action[16];
    int number;
    if (sscanf(entry, "%15[^:]:%15[^:]:%d", name, action, &number) == 3 && !done[index] && !strcmp(name, call)) {
      done[index] = 1;
      mark();
      if (!strcmp(action, "error"))
        return -number;
      if (!strcmp(action, "before"))
        kill(getpid(), number);
      if (!strcmp(action, "after"))
        later = number;
      if (!strcmp(action, "cut") && file)
        syscall(SYS_truncate, file, (long)number);
      if (!strcmp(action, "swap") && file)
        swap(file);
      if (!strcmp(action, "wait"))
        wait_for_word();
    }
    entry = strchr(entry, ',');
    entry = entry ? entry + 1 : NULL;
  }
  return later;
}

static int is_output(int fd)
{
  struct stat status;
  return fd > 2 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
}

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))
#define AROUND(call, type, expression)        \
  do {                                        \
    int later = at(call);                     \
    if (later < 0) {                          \
      errno = -later;                         \
      return -1;                              \
    }                                         \
    type result = (expression);               \
    int kept = errno;                         \
    if (later > 0)                            \
      kill(getpid(), later);                  \
    errno = kept;                             \
    return result;                            \
  } while (0)

static int open_file(__typeof__(openat) *real, int folder, const char *path, int flags, mode_t mode)
{
  int is_unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  if (is_unnamed && getenv("FAULTS_NAMED")) {
    errno = EOPNOTSUPP;
    return -1;
  }
  if (is_unnamed || (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL))
    AROUND("create", int, real(folder, path, flags, mode));
  return real(folder, path, flags, mode);
}

static mode_t mode_of(int flags, va_list list)
{
  return flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
}

int openat(int folder, const char *path, int flags, ...)
{
  va_list list;
  va_start(list, flags);
  mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_file(REAL(openat), folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...)
{
  va_list list;
  va_start(list, flags);
  mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_file(REAL(openat64), folder, path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t size)
{
  if (!is_output(fd))
    return REAL(write)(fd, data, size);
  AROUND("write", ssize_t, REAL(write)(fd, data, size));
}

int fsync(int fd)
{
  AROUND("fsync", int, REAL(fsync)(fd));
}

int fchmod(int fd, mode_t mode)
{
  AROUND("fchmod", int, REAL(fchmod)(fd, mode));
}

int fchown(int fd, uid_t user, gid_t group)
{
  AROUND("fchown", int, REAL(fchown)(fd, user, group));
}

int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags);
int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags)
{
  AROUND("fsetxattr", int, REAL(fsetxattr)(fd, name, value, size, flags));
}

int linkat(int old_folder, const char *old, int new_folder, const char *new, int flags)
{
  AROUND("link", int, REAL(linkat)(old_folder, old, new_folder, new, flags));
}

int renameat(int old_folder, const char *old, int new_folder, const char *new)
{
  AROUND("rename", int, REAL(renameat)(old_folder, old, new_folder, new));
}

int unlinkat(int folder, const char *path, int flags)
{
  AROUND(flags & AT_REMOVEDIR ? "rmdir" : "unlink", int, REAL(unlinkat)(folder, path, flags));
}
