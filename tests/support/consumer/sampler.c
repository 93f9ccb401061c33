/* SPDX-License-Identifier: Apache-2.0 */
/* A sampling profiler to be loaded with LD_PRELOAD.  On every tick it walks the
   interrupted stack twice, with SFrame and with glibc's backtrace() (by
   .eh_frame), and appends both lists to a file.

   CONSUMER_OUT          the file; without it the library does nothing
   CONSUMER_INTERVAL_US  microseconds from the end of one sample to the next
                         tick; without it there are no ticks, and the program
                         raises SIGPROF
   CONSUMER_LOOKUP       look up a caller at `call` (default), pc - 1, or at
                         `ra`, as Linux and glibc do

   A line for each sample, with the PCs from the interrupted one on:

     sample ENDING faulted|returned PC... | PC...

   says why the walk by SFrame ended, and whether backtrace() read unmapped
   memory.  If modules were loaded or unloaded, lines for them come before it:

     module good|bad|without VERSION BIAS START END NAME  */

#define _GNU_SOURCE
#include "walk.c"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
  MAX_DEPTH = 1024,
  /* The handler's own frames come first in backtrace()'s list.  */
  MAX_TRACE = MAX_DEPTH + 64,
  MAX_LINE = (MAX_DEPTH + MAX_TRACE) * 17 + 64 + PATH_MAX
};

struct list {
  unsigned count;
  uint64_t pcs[MAX_TRACE];
};

static struct list walk_list, trace_list;
static void *raw_trace[MAX_TRACE];
static atomic_flag is_busy = ATOMIC_FLAG_INIT;
static int out = -1;
static pid_t owner;
static char program[PATH_MAX];
static long interval_us; /* 0: the program raises SIGPROF itself */
static timer_t timer;

/* --- One sample --- */

static enum ending walk(const void *ucontext)
{
  enum ending ending = STEPPED;

  start_walk(ucontext);
  walk_list.count = 0;
  while (ending == STEPPED) {
    walk_list.pcs[walk_list.count++] = walker.frame.pc;
    if (walk_list.count == MAX_DEPTH)
      return TOO_DEEP;
    ending = step();
  }
  return ending;
}

/* backtrace() trusts the stack.  Where the stack is not what .eh_frame says, it
   may fault; the guard brings the handler back.  */
static sigjmp_buf guard;
static atomic_int guarded_thread; /* 0: none */
static struct sigaction program_segv, program_bus;

static void on_fault(int signal_number)
{
  if (atomic_load(&guarded_thread) == (int)gettid())
    siglongjmp(guard, 1);
  /* Another thread's own fault: it happens again, to the program's handler.  */
  sigaction(signal_number,
            signal_number == SIGSEGV ? &program_segv : &program_bus, NULL);
}

/* Fills raw_trace and returns the count of its pcs.  A fault ends the list;
   what came before is kept: backtrace() stores each pc as it goes.  */
static int guarded_backtrace(bool *has_faulted)
{
  struct sigaction action;
  volatile int count = 0;

  memset(&action, 0, sizeof action);
  action.sa_handler = on_fault;
  action.sa_flags = SA_NODEFER;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGSEGV, &action, &program_segv) != 0
      || sigaction(SIGBUS, &action, &program_bus) != 0)
    return 0;
  memset(raw_trace, 0, sizeof raw_trace);
  if (sigsetjmp(guard, 0) == 0) {
    atomic_store(&guarded_thread, (int)gettid());
    count = backtrace(raw_trace, MAX_TRACE);
    *has_faulted = false;
  } else {
    while (count < MAX_TRACE && raw_trace[count] != NULL)
      count++;
    *has_faulted = true;
  }
  atomic_store(&guarded_thread, 0);
  sigaction(SIGSEGV, &program_segv, NULL);
  sigaction(SIGBUS, &program_bus, NULL);
  return count;
}

/* Lists backtrace()'s pcs from the interrupted one on; none if it did not get
   there.  What was interrupted follows the code that the sampler's handler
   returns to, and is not looked for by its pc alone: a handler of the program
   that was about to return has that same code as its pc.  */
static void trace_from(uint64_t return_code, uint64_t interrupted_pc,
                       bool *has_faulted)
{
  int count = guarded_backtrace(has_faulted);
  int index = 0;

  trace_list.count = 0;
  while (index < count && (uint64_t)(uintptr_t)raw_trace[index] != return_code)
    index++;
  index++;
  if (index >= count
      || (uint64_t)(uintptr_t)raw_trace[index] != interrupted_pc)
    return;
  for (; index < count; index++)
    trace_list.pcs[trace_list.count++] = (uint64_t)(uintptr_t)raw_trace[index];
}

/* --- Its lines: nothing else than write() is safe in a handler --- */

static char line[MAX_LINE];
static size_t line_size;

static void put_text(const char *text)
{
  size_t size = strlen(text);

  memcpy(line + line_size, text, size);
  line_size += size;
}

static void put_number(uint64_t number)
{
  unsigned shift;

  line[line_size++] = ' ';
  for (shift = 64; shift > 0; shift -= 4)
    line[line_size++] = "0123456789abcdef"[number >> (shift - 4) & 15];
}

static void end_line(void)
{
  line[line_size++] = '\n';
  if (write(out, line, line_size) != (ssize_t)line_size)
    abort();
  line_size = 0;
}

static void list_modules(void)
{
  unsigned index;

  for (index = 0; index < modules.count; index++) {
    const struct module *module = &modules.items[index];
    bool is_good = module->section != NULL && is_section(module->section, module->section_size);
    put_text(is_good ? "module good" : module->section != NULL ? "module bad" : "module without");
    put_number(is_good ? module->section[2] : 0);
    put_number(module->bias);
    put_number(module->start);
    put_number(module->end);
    put_text(" ");
    /* The loader calls the program itself "".  */
    put_text(module->name[0] != '\0' ? module->name : program);
    end_line();
  }
}

static void take_sample(const void *ucontext, uint64_t return_code)
{
  enum ending ending;
  bool has_faulted = false;
  unsigned index;

  if (refresh_modules())
    list_modules();
  ending = walk(ucontext);
  trace_from(return_code, walk_list.pcs[0], &has_faulted);
  put_text("sample ");
  put_text(ending_names[ending]);
  put_text(has_faulted ? " faulted" : " returned");
  for (index = 0; index < walk_list.count; index++)
    put_number(walk_list.pcs[index]);
  put_text(" |");
  for (index = 0; index < trace_list.count; index++)
    put_number(trace_list.pcs[index]);
  end_line();
}

/* Starts one tick.  A periodic timer could fire again before a long walk has
   returned and leave the program no time of its own.  */
static void arm(void)
{
  struct itimerspec once = {
      {0, 0}, {interval_us / 1000000, interval_us % 1000000 * 1000}};

  if (interval_us > 0)
    timer_settime(timer, 0, &once, NULL);
}

static void on_tick(int signal_number, siginfo_t *info, void *ucontext)
{
  int saved_errno = errno;

  (void)signal_number;
  (void)info;
  /* One thread is walked at a time, and no fork that did not exec.  */
  if (getpid() == owner && !atomic_flag_test_and_set(&is_busy)) {
    take_sample(ucontext,
                (uint64_t)(uintptr_t)__builtin_extract_return_addr(
                    __builtin_return_address(0)));
    atomic_flag_clear(&is_busy);
    arm();
  }
  errno = saved_errno;
}

__attribute__((constructor)) static void start_sampling(void)
{
  const char *path = getenv("CONSUMER_OUT");
  const char *interval = getenv("CONSUMER_INTERVAL_US");
  const char *lookup = getenv("CONSUMER_LOOKUP");
  struct sigaction action;
  struct sigevent event;

  if (path == NULL)
    return;
  owner = getpid();
  interval_us = interval != NULL ? strtol(interval, NULL, 10) : 0;
  walker.looks_up_ra = lookup != NULL && strcmp(lookup, "ra") == 0;
  /* The first call loads libgcc, which no handler should do.  */
  backtrace(raw_trace, MAX_TRACE);
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_tick;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGPROF;
  out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (out < 0 || readlink("/proc/self/exe", program, sizeof program - 1) < 0
      || sigaction(SIGPROF, &action, NULL) != 0
      || timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) {
    perror("sampler");
    _exit(96);
  }
  arm();
}
