/* SPDX-License-Identifier: Apache-2.0 */
/* `stepper [EVERY] PROGRAM [ARGUMENT]...` runs a program that the sampler is
   loaded into, and from the first SIGUSR1 on it delivers a SIGPROF at every
   instruction (or at every EVERYth), so that no place is left to chance.  It
   stops doing so when the program gets SIGUSR2, and has the program's exit
   status.  AMD64 only.  */

#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t child;

static void fail(const char *what)
{
  perror(what);
  if (child > 0)
    kill(child, SIGKILL);
  exit(99);
}

/* Lets the program go on and returns the status of its next stop; exits with
   the program.  */
static int go_on(enum __ptrace_request request, int signal_number)
{
  int status;

  if (ptrace(request, child, NULL, (long)signal_number) != 0)
    fail("stepper: ptrace");
  if (waitpid(child, &status, 0) != child)
    fail("stepper: waitpid");
  if (WIFEXITED(status))
    exit(WEXITSTATUS(status));
  if (WIFSIGNALED(status))
    exit(128 + WTERMSIG(status));
  return status;
}

static bool is_trap(int status)
{
  return WSTOPSIG(status) == SIGTRAP;
}

static bool enters_sigreturn(int status)
{
  struct user_regs_struct registers;

  if (WSTOPSIG(status) != (SIGTRAP | 0x80))
    return false;
  if (ptrace(PTRACE_GETREGS, child, NULL, &registers) != 0)
    fail("stepper: PTRACE_GETREGS");
  return registers.orig_rax == SYS_rt_sigreturn
         && (long)registers.rax == -38; /* ENOSYS: not back yet */
}

/* The program is stopped between two instructions: lets the sampler's handler
   run there and stops at the same place again.  The signal is sent, not
   injected: not every stop of a single step takes one.  */
static void sample(void)
{
  int status;

  if (kill(child, SIGPROF) != 0)
    fail("stepper: kill");
  status = go_on(PTRACE_SYSCALL, 0);
  while (!enters_sigreturn(status)) {
    int number = WSTOPSIG(status);
    bool passes_on = number != SIGTRAP && number != (SIGTRAP | 0x80);
    status = go_on(PTRACE_SYSCALL, passes_on ? number : 0);
  }
  status = go_on(PTRACE_SYSCALL, 0); /* the way back */
}

int main(int argc, char **argv)
{
  unsigned long every = argc > 2 ? strtoul(argv[1], NULL, 10) : 0;
  unsigned long turn = 0;
  bool is_stepping = false;
  int status;

  if (every == 0)
    return 98;
  child = fork();
  if (child < 0)
    fail("stepper: fork");
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    execvp(argv[2], argv + 2);
    _exit(97);
  }
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
    fail("stepper: waitpid");
  if (ptrace(PTRACE_SETOPTIONS, child, NULL,
             (void *)(PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD)) != 0)
    fail("stepper: PTRACE_SETOPTIONS");
  status = go_on(PTRACE_CONT, 0);
  for (;;) {
    int number = WSTOPSIG(status);
    if (number == SIGUSR1)
      is_stepping = true;
    else if (number == SIGUSR2)
      is_stepping = false;
    else if (is_trap(status) && is_stepping && turn++ % every == 0)
      sample();
    status = go_on(is_stepping ? PTRACE_SINGLESTEP : PTRACE_CONT,
                   number == SIGTRAP ? 0 : number);
  }
}
