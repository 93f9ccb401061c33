/* SPDX-License-Identifier: Apache-2.0 */
/* `shadow [OPTION]... JOB REPORT PROGRAM [ARGUMENT]...`, see README.md.  */

#define _GNU_SOURCE
#include "shadow.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static struct shadow_thread threads[SHADOW_MAX_THREADS];
static bool steps_all;
static uint64_t most_calls = UINT64_MAX;    /* to one address that are stepped */
static uint64_t most_in_call = UINT64_MAX;  /* steps in one call */
static uint64_t most_steps = UINT64_MAX;
static bool is_over; /* there were enough steps */
static long window_us; /* for how long functions run that were called too often */
static bool in_window;

/* Windows open at calls that are so many times too many.  */
enum { OFTEN = 64 };

/* Where a call that is not stepped returns to; 0: none is under way.  */
static uint64_t return_pc, return_cfa;
static long return_code; /* what the breakpoint replaced */

static void resume(struct shadow_thread *thread, int number)
{
  enum __ptrace_request request =
      thread->is_stepping ? PTRACE_SINGLESTEP : PTRACE_CONT;

  thread->got_signal = number != 0;
  if (ptrace(request, thread->tid, NULL, (long)number) != 0 && errno != ESRCH)
    shadow_end(SHADOW_BROKEN, "cannot continue: %s", strerror(errno));
}

/* --- Calls that are not stepped --- */

/* Lets the thread run until the function at its top returns.  */
static void run_to_return(struct shadow_thread *thread)
{
  const struct shadow_frame *top = shadow_top(thread);

  shadow_sums.let_run++;
  return_pc = top->ra;
  return_cfa = top->cfa;
  return_code = shadow_break_at(return_pc);
  thread->is_stepping = false;
}

/* Returns true when the stop at NOW is the return that was waited for.  */
static bool is_back(struct shadow_thread *thread,
                    struct user_regs_struct *now)
{
  int status;

  if (return_pc == 0 || now->rip != return_pc + 1)
    return false;
  now->rip = return_pc;
  if (ptrace(PTRACE_SETREGS, thread->tid, NULL, now) != 0)
    shadow_end(SHADOW_BROKEN, "cannot set registers");
  shadow_poke(return_pc, return_code);
  if (now->rsp >= return_cfa) {
    return_pc = 0;
    return true;
  }
  /* A deeper call of the same caller: step over the breakpoint.  */
  if (ptrace(PTRACE_SINGLESTEP, thread->tid, NULL, NULL) != 0
      || waitpid(thread->tid, &status, __WALL) != thread->tid
      || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
    shadow_end(SHADOW_BROKEN, "cannot step over a breakpoint");
  shadow_break_at(return_pc);
  return false;
}

/* How often the function at NOW was called, or NULL elsewhere.  Tests of
   assembly call it through a function that gets it as its first argument: a
   call of that one counts as a call of what it is given.  */
static uint32_t *count_of(const struct user_regs_struct *now)
{
  struct shadow_module *module = shadow_of_interest(now->rdi);
  uint64_t address = now->rdi;

  if (module == NULL) {
    module = shadow_of_interest(now->rip);
    address = now->rip;
  }
  if (module == NULL)
    return NULL;
  return &module->entries[address - module->bias - module->low];
}

static uint64_t calls_of(const struct user_regs_struct *now)
{
  const uint32_t *count = count_of(now);

  return count == NULL ? 0 : *count;
}

/* Lets everything run for a while: to stop for each of the calls of a function that
   was seen often enough takes longer than all else.  */
static void open_window(struct shadow_thread *thread)
{
  const struct itimerval once = {{0, 0}, {0, window_us}};

  shadow_sums.windows++;
  in_window = true;
  /* What is called meanwhile is not seen: frames would be those of other calls.  */
  thread->depth = 1;
  shadow_protect_all(true);
  thread->is_stepping = false;
  setitimer(ITIMER_REAL, &once, NULL);
}

/* The window's time is over, and the thread is stopped.  It closes where the thread
   is outside of the pages, which it would enter in the midst of a function.  */
static void close_window(struct shadow_thread *thread)
{
  struct user_regs_struct now;

  shadow_get_registers(thread->tid, &now);
  if (shadow_pages_of(now.rip) != NULL)
    open_window(thread);
  else {
    in_window = false;
    shadow_protect_all(false);
  }
}

static void on_alarm(int number)
{
  (void)number;
  kill(shadow_pid, SIGSTOP);
}

static bool is_enough(struct shadow_thread *thread, bool is_called,
                      const struct user_regs_struct *now)
{
  const struct shadow_frame *top = shadow_top(thread);

  if (top->kind != SHADOW_KNOWN || return_pc != 0 || steps_all)
    return false;
  if (top->steps > most_in_call)
    return true;
  if (!is_called || count_of(now) == NULL)
    return false;
  return ++*count_of(now) > most_calls;
}

/* There is no need to step the call at NOW.  */
static void pass_over(struct shadow_thread *thread, bool is_called,
                      const struct user_regs_struct *now)
{
  if (window_us > 0 && is_called && calls_of(now) > most_calls * OFTEN)
    open_window(thread);
  else
    run_to_return(thread);
}

/* --- Stops --- */

/* The thread is to be stepped at NOW.  */
static void visit(struct shadow_thread *thread, bool is_called,
                  const struct user_regs_struct *now)
{
  if (!thread->is_stepping || now->rip != thread->before.rip) {
    shadow_compare(thread, now);
    shadow_top(thread)->steps++;
  }
  shadow_sums.all_steps++;
  thread->is_stepping = true;
  thread->before = *now;
  if (shadow_sums.steps >= most_steps) {
    is_over = true;
    thread->is_stepping = false;
  } else if (is_enough(thread, is_called, now))
    pass_over(thread, is_called, now);
}

static void on_trap(struct shadow_thread *thread)
{
  struct user_regs_struct now;
  struct shadow_pages *pages;
  bool is_called = false;

  shadow_get_registers(thread->tid, &now);
  if (thread->is_stepping)
    is_called = shadow_follow(thread, &now);
  else if (is_back(thread, &now))
    shadow_enter(thread, &now);
  else if (return_pc != 0)
    return;
  pages = shadow_pages_of(now.rip);
  if (steps_all)
    visit(thread, is_called, &now);
  else if (pages != NULL) {
    shadow_protect(pages, true);
    visit(thread, is_called, &now);
  } else {
    thread->is_stepping = false;
    if (!is_over)
      shadow_protect_all(false);
  }
}

/* Returns false for a fault of the program's own.  */
static bool on_fault(struct shadow_thread *thread)
{
  struct user_regs_struct now;
  struct shadow_pages *pages;
  siginfo_t info;
  bool is_called;

  if (steps_all || ptrace(PTRACE_GETSIGINFO, thread->tid, NULL, &info) != 0
      || info.si_code != SEGV_ACCERR)
    return false;
  pages = shadow_pages_of((uint64_t)(uintptr_t)info.si_addr);
  if (pages == NULL || pages->is_open)
    return false;
  shadow_get_registers(thread->tid, &now);
  if ((uint64_t)(uintptr_t)info.si_addr - now.rip > 15)
    return false;
  shadow_protect(pages, true);
  if (return_pc != 0 || is_over)
    return true;
  is_called = thread->is_stepping ? shadow_follow(thread, &now)
                                  : shadow_enter(thread, &now);
  visit(thread, is_called, &now);
  return true;
}

static struct shadow_thread *thread_of(pid_t tid)
{
  struct shadow_thread *unused = NULL;
  unsigned index;

  for (index = 0; index < SHADOW_MAX_THREADS; index++) {
    if (threads[index].tid == tid)
      return &threads[index];
    if (unused == NULL && threads[index].tid == 0)
      unused = &threads[index];
  }
  if (unused == NULL)
    shadow_end(SHADOW_REFUSED, "too many threads");
  unused->tid = tid;
  unused->depth = 0;
  unused->is_stepping = steps_all;
  unused->got_signal = false;
  shadow_push(unused, SHADOW_BOTTOM, UINT64_MAX, 0, 0);
  if (steps_all && tid != shadow_pid)
    shadow_get_registers(tid, &unused->before);
  return unused;
}

static void on_stop(struct shadow_thread *thread, int status, bool is_new)
{
  int number = WSTOPSIG(status);
  int event = status >> 16;

  if (is_new && number == SIGSTOP) {
    resume(thread, 0);
    return;
  }
  if (event == PTRACE_EVENT_CLONE && !steps_all)
    shadow_end(SHADOW_REFUSED, "the program starts a thread");
  if ((event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK))
    shadow_end(SHADOW_REFUSED, "the program starts a process");
  if (event == PTRACE_EVENT_EXEC)
    shadow_end(SHADOW_REFUSED, "the program starts another");
  if (event != 0)
    number = 0;
  else if (number == SIGSTOP && in_window) {
    close_window(thread);
    number = 0;
  } else if (number == SIGTRAP) {
    on_trap(thread);
    number = 0;
  } else if (number == SIGSEGV && on_fault(thread))
    number = 0;
  else if (thread->is_stepping)
    shadow_get_registers(thread->tid, &thread->before);
  resume(thread, number);
}

/* --- Start --- */

static void read_options(int argc, char **argv)
{
  int option;

  while ((option = getopt(argc, argv, "+ac:i:s:w:")) != -1)
    switch (option) {
    case 'a':
      steps_all = true;
      break;
    case 'c':
      most_calls = strtoull(optarg, NULL, 10);
      break;
    case 'i':
      most_in_call = strtoull(optarg, NULL, 10);
      break;
    case 's':
      most_steps = strtoull(optarg, NULL, 10);
      break;
    case 'w':
      window_us = strtol(optarg, NULL, 10);
      break;
    default:
      exit(SHADOW_BROKEN);
    }
  if (argc - optind < 3)
    shadow_end(SHADOW_BROKEN, "usage: shadow [-a] [-c CALLS] [-i STEPS-IN-CALL]"
                              " [-s STEPS] [-w MICROSECONDS] JOB REPORT PROGRAM [ARGUMENT]...");
}

int main(int argc, char **argv)
{
  const long options = PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK
                       | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC;
  struct shadow_thread *thread;
  int status, exit_status = SHADOW_BROKEN;
  pid_t tid;

  read_options(argc, argv);
  shadow_read_job(argv[optind]);
  shadow_start(argv + optind + 2, options);
  shadow_locate_modules();
  shadow_find_pages();
  thread = thread_of(shadow_pid);
  if (steps_all)
    shadow_get_registers(shadow_pid, &thread->before);
  else
    shadow_protect_all(false);
  resume(thread, 0);
  sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_alarm,
                                         .sa_flags = SA_RESTART}, NULL);
  while ((tid = waitpid(-1, &status, __WALL)) > 0) {
    unsigned index;
    bool is_new = true;
    if (!WIFSTOPPED(status)) {
      thread_of(tid)->tid = 0;
      if (tid == shadow_pid)
        exit_status =
            WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      continue;
    }
    for (index = 0; index < SHADOW_MAX_THREADS; index++)
      if (threads[index].tid == tid)
        is_new = false;
    on_stop(thread_of(tid), status, is_new);
  }
  shadow_write_report(argv[optind + 1], exit_status);
  return exit_status;
}
