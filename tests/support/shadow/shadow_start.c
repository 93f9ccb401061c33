/* SPDX-License-Identifier: Apache-2.0 */
/* The start of a program, and its end when something is wrong.  */

#define _GNU_SOURCE
#include "shadow.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

pid_t shadow_pid;

void shadow_end(int status, const char *what, ...)
{
  va_list words;

  va_start(words, what);
  fputs("shadow: ", stderr);
  vfprintf(stderr, what, words);
  fputc('\n', stderr);
  va_end(words);
  if (shadow_pid > 0)
    kill(shadow_pid, SIGKILL);
  exit(status);
}

void shadow_get_registers(pid_t tid, struct user_regs_struct *registers)
{
  if (ptrace(PTRACE_GETREGS, tid, NULL, registers) != 0)
    shadow_end(SHADOW_BROKEN, "cannot read registers");
}

long shadow_poke(uint64_t address, long word)
{
  long old;

  errno = 0;
  old = ptrace(PTRACE_PEEKTEXT, shadow_pid, (void *)address, NULL);
  if (errno != 0
      || ptrace(PTRACE_POKETEXT, shadow_pid, (void *)address, word) != 0)
    shadow_end(SHADOW_BROKEN, "cannot set a breakpoint");
  return old;
}

long shadow_break_at(uint64_t address)
{
  long old = ptrace(PTRACE_PEEKTEXT, shadow_pid, (void *)address, NULL);

  return shadow_poke(address, (old & ~0xffl) | 0xcc);
}

static void pin(void)
{
  cpu_set_t cpus;
  int cpu = sched_getcpu();

  /* Tracer and program take turns: on one CPU they do so faster.  */
  CPU_ZERO(&cpus);
  CPU_SET(cpu < 0 ? 0 : cpu, &cpus);
  sched_setaffinity(0, sizeof cpus, &cpus);
}

void shadow_start(char **words, long options)
{
  struct user_regs_struct registers;
  uint64_t entry;
  long code;
  int status;

  pin();
  shadow_pid = fork();
  if (shadow_pid == 0) {
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    execvp(words[0], words);
    _exit(127);
  }
  if (shadow_pid < 0 || waitpid(shadow_pid, &status, 0) != shadow_pid
      || !WIFSTOPPED(status))
    shadow_end(SHADOW_BROKEN, "cannot start %s", words[0]);
  entry = shadow_entry_point();
  code = shadow_break_at(entry);
  if (ptrace(PTRACE_SETOPTIONS, shadow_pid, NULL,
             (void *)(options | PTRACE_O_EXITKILL)) != 0
      || ptrace(PTRACE_CONT, shadow_pid, NULL, NULL) != 0
      || waitpid(shadow_pid, &status, 0) != shadow_pid || !WIFSTOPPED(status)
      || WSTOPSIG(status) != SIGTRAP)
    shadow_end(SHADOW_BROKEN, "%s does not come to its start", words[0]);
  shadow_poke(entry, code);
  shadow_get_registers(shadow_pid, &registers);
  registers.rip = entry;
  if (ptrace(PTRACE_SETREGS, shadow_pid, NULL, &registers) != 0)
    shadow_end(SHADOW_BROKEN, "cannot set registers");
}
