/* SPDX-License-Identifier: Apache-2.0 */
/* A sampling profiler to be loaded with LD_PRELOAD.  On every tick it walks the
   interrupted stack twice, with SFrame and with glibc's backtrace() (by
   .eh_frame), and counts how the two agree.  At exit the report, JSON lines, is
   appended to the file CONSUMER_OUT; README.md describes it.  */

#define _GNU_SOURCE
#include "sampler.h"

#include <errno.h>
#include <execinfo.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
  MAX_DEPTH = 1024,
  /* The handler's own frames come first in backtrace()'s list.  */
  MAX_TRACE = MAX_DEPTH + 64,
  WINDOW_BEFORE = 8
};

struct list {
  unsigned count;
  uint64_t pcs[MAX_TRACE];
};

static struct results results;
static struct sframe_modules modules;
static struct sframe_walker walker;
static struct list walk_list, trace_list;
static void *raw_trace[MAX_TRACE];
static atomic_flag is_busy = ATOMIC_FLAG_INIT;
static atomic_ulong dropped_samples; /* another thread was being walked */
static char out_path[PATH_MAX];
static long interval_us = 997; /* prime, so that loops do not fall in step */
static bool has_wall_timer;
static timer_t wall_timer;

/* --- Where a pc lies --- */

static int name_index_of(const char *name)
{
  int index;

  for (index = 0; index < results.name_count; index++)
    if (strncmp(results.names[index], name, MAX_NAME_SIZE - 1) == 0)
      return index;
  if (results.name_count == MAX_NAMES)
    return NO_NAME;
  strncpy(results.names[results.name_count], name, MAX_NAME_SIZE - 1);
  return results.name_count++;
}

static struct place place_of(uint64_t pc)
{
  const struct sframe_module *module = sframe_module_of(&modules, pc);
  struct place place = {pc, pc, NO_NAME};

  if (module != NULL) {
    place.offset = pc - module->bias;
    place.name_index = name_index_of(module->name);
  }
  return place;
}

/* --- One sample --- */

static enum sframe_ending walk(const void *ucontext)
{
  enum sframe_ending ending = SFRAME_STEPPED;

  sframe_walk_start(&walker, &modules, ucontext);
  walk_list.count = 0;
  while (ending == SFRAME_STEPPED) {
    walk_list.pcs[walk_list.count++] = walker.frame.pc;
    if (walk_list.count == MAX_DEPTH)
      return SFRAME_TOO_DEEP;
    ending = sframe_walk_step(&walker);
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

/* Endings after which backtrace() may know more without SFrame being wrong.  */
static bool may_end_early(enum sframe_ending ending)
{
  switch (ending) {
  case SFRAME_NO_MODULE:
  case SFRAME_NO_SECTION:
  case SFRAME_NO_FUNCTION:
  case SFRAME_UNSAFE_REGISTER:
  case SFRAME_TOO_DEEP:
    return true;
  default:
    return false;
  }
}

static enum outcome compare(enum sframe_ending ending, bool has_faulted,
                            unsigned *common)
{
  unsigned shorter = walk_list.count < trace_list.count ? walk_list.count
                                                        : trace_list.count;
  unsigned index = 0;

  while (index < shorter && walk_list.pcs[index] == trace_list.pcs[index])
    index++;
  *common = index;
  if (index < shorter)
    return OUTCOME_DIFFERENT;
  if (has_faulted)
    return OUTCOME_FAULTED;
  if (trace_list.count == 0)
    return OUTCOME_UNALIGNED;
  if (walk_list.count == trace_list.count)
    return OUTCOME_EQUAL;
  if (walk_list.count > trace_list.count)
    return OUTCOME_LONGER;
  return may_end_early(ending) ? OUTCOME_ENDED : OUTCOME_DIFFERENT;
}

static void count_stop(enum sframe_ending ending, enum outcome outcome,
                       uint64_t pc)
{
  struct place place = place_of(pc);
  unsigned index;

  for (index = 0; index < results.stop_count; index++) {
    struct stop *stop = &results.stops[index];
    if (stop->ending == ending && stop->outcome == outcome
        && stop->place.offset == place.offset
        && stop->place.name_index == place.name_index) {
      stop->count++;
      return;
    }
  }
  if (results.stop_count == MAX_STOPS) {
    results.lost_stops++;
    return;
  }
  results.stops[results.stop_count++] =
      (struct stop){ending, outcome, place, 1};
}

static unsigned keep_window(const struct list *list, unsigned start,
                            struct place *kept)
{
  unsigned count = 0;

  while (count < MAX_WINDOW && start + count < list->count) {
    kept[count] = place_of(list->pcs[start + count]);
    count++;
  }
  return count;
}

static void keep_example(enum outcome outcome, enum sframe_ending ending,
                         unsigned first_difference)
{
  struct example *example;

  if (results.example_count == MAX_EXAMPLES)
    return;
  example = &results.examples[results.example_count++];
  example->outcome = outcome;
  example->ending = ending;
  example->first_difference = first_difference;
  example->window_start =
      first_difference > WINDOW_BEFORE ? first_difference - WINDOW_BEFORE : 0;
  example->walk_count = walk_list.count;
  example->trace_count = trace_list.count;
  example->walk_kept =
      keep_window(&walk_list, example->window_start, example->walk);
  example->trace_kept =
      keep_window(&trace_list, example->window_start, example->trace);
}

static void take_sample(const void *ucontext, uint64_t return_code)
{
  enum sframe_ending ending;
  enum outcome outcome;
  unsigned common;
  bool has_faulted = false;

  sframe_modules_refresh(&modules);
  ending = walk(ucontext);
  trace_from(return_code, walk_list.pcs[0], &has_faulted);
  outcome = compare(ending, has_faulted, &common);
  results.samples++;
  results.frames += walk_list.count - 1;
  results.outcomes[outcome]++;
  results.endings[ending]++;
  count_stop(ending, outcome, walk_list.pcs[walk_list.count - 1]);
  if (outcome != OUTCOME_EQUAL && outcome != OUTCOME_ENDED)
    keep_example(outcome, ending, common);
}

/* --- Ticks --- */

/* Starts one tick.  A periodic timer could fire again before a long walk has
   returned and leave the program no time of its own.  */
static void arm(long us)
{
  if (has_wall_timer) {
    struct itimerspec once = {{0, 0}, {us / 1000000, us % 1000000 * 1000}};
    timer_settime(wall_timer, 0, &once, NULL);
  } else {
    struct itimerval once = {{0, 0}, {us / 1000000, us % 1000000}};
    setitimer(ITIMER_PROF, &once, NULL);
  }
}

static void on_tick(int signal_number, siginfo_t *info, void *ucontext)
{
  int saved_errno = errno;

  (void)signal_number;
  (void)info;
  if (atomic_flag_test_and_set(&is_busy)) {
    atomic_fetch_add(&dropped_samples, 1);
  } else {
    take_sample(ucontext,
                (uint64_t)(uintptr_t)__builtin_extract_return_addr(
                    __builtin_return_address(0)));
    atomic_flag_clear(&is_busy);
    arm(interval_us);
  }
  errno = saved_errno;
}

/* --- Report at exit --- */

static void write_report(void)
{
  FILE *out;

  if (getpid() != results.owner) /* a fork that did not exec */
    return;
  signal(SIGPROF, SIG_IGN);
  sframe_modules_refresh(&modules);
  out = fopen(out_path, "ae");
  if (out == NULL) {
    perror("sampler: CONSUMER_OUT");
    return;
  }
  results.dropped_samples = atomic_load(&dropped_samples);
  sampler_put_report(out, &results, &modules);
  if (fclose(out) != 0)
    perror("sampler: CONSUMER_OUT");
}

/* --- Set-up --- */

/* Keeps PATH absolute: the program may change its directory.  */
static bool keep_out_path(const char *path)
{
  char directory[PATH_MAX] = "";
  int size;

  if (path[0] != '/' && getcwd(directory, sizeof directory) == NULL)
    return false;
  size = snprintf(out_path, sizeof out_path, "%s%s%s", directory,
                  path[0] == '/' ? "" : "/", path);
  return size > 0 && (size_t)size < sizeof out_path;
}

static bool choose_lookup(void)
{
  const char *lookup = getenv("CONSUMER_LOOKUP");

  walker.looks_up_ra = lookup != NULL && strcmp(lookup, "ra") == 0;
  return lookup == NULL || walker.looks_up_ra || strcmp(lookup, "call") == 0;
}

static bool choose_timer(void)
{
  const char *interval = getenv("CONSUMER_INTERVAL_US");
  const char *clock = getenv("CONSUMER_CLOCK");
  struct sigevent event;

  if (interval != NULL)
    interval_us = strtol(interval, NULL, 10);
  if (interval_us <= 0)
    return false;
  if (clock == NULL || strcmp(clock, "wall") != 0)
    return true;
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGPROF;
  has_wall_timer = timer_create(CLOCK_MONOTONIC, &event, &wall_timer) == 0;
  return has_wall_timer;
}

__attribute__((constructor)) static void start_sampling(void)
{
  const char *path = getenv("CONSUMER_OUT");
  struct sigaction action;

  if (path == NULL)
    return;
  if (!keep_out_path(path) || !choose_lookup() || !choose_timer()) {
    fputs("sampler: bad CONSUMER_OUT, _LOOKUP, _INTERVAL_US or clock\n", stderr);
    return;
  }
  results.owner = getpid();
  /* The first call loads libgcc, which no handler should do.  */
  backtrace(raw_trace, MAX_TRACE);
  sframe_modules_refresh(&modules);
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_tick;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGPROF, &action, NULL) != 0 || atexit(write_report) != 0) {
    fputs("sampler: cannot install\n", stderr);
    return;
  }
  arm(interval_us);
}
