/* SPDX-License-Identifier: Apache-2.0 */
/* A signal returns through code of the program itself that has no CFI, as in programs of musl.  */

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stop.h"

#if defined __aarch64__
__asm__(".text\nnop\n.type restore, @function\nrestore: mov x8, #139\nsvc #0\n.size restore, . - restore\n");
#else
__asm__(".text\nnopr\n.type restore, @function\nrestore: svc 119\n.size restore, . - restore\n");
#endif

void restore(void);

static NOINLINE void handler(int number)
{
  stop_here();
  sink += number;
}

static NOINLINE long work(long depth)
{
  if (depth > 0)
    return work(depth - 1) + sink;
  raise(SIGUSR1);
  return sink;
}

int main(int argc, char **argv)
{
  /* The kernel's structure; the flag is SA_RESTORER. Without SA_SIGINFO, s390x returns by another system call.  */
  struct { void (*handler)(int); unsigned long flags; void (*restorer)(void); unsigned long mask; } action
    = {handler, 0x04000000, restore, 0};
  (void)argv;
  dies = argc > 1;
  syscall(SYS_rt_sigaction, SIGUSR1, &action, 0, 8);
  sink += work(4);
  return 0;
}
