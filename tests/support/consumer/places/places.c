/* SPDX-License-Identifier: Apache-2.0 */
/* `places PLACE`: compares the stack in one place of a C program's life.  */

#define _GNU_SOURCE
#include "places.h"

#include <dlfcn.h>
#include <pthread.h>
#include <search.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

static const char *place = "";

static NOINLINE void here(void)
{
  compare(place);
  STAY();
}

static NOINLINE int deep(int depth)
{
  int below = 0;

  if (depth > 0)
    below = deep(depth - 1);
  else
    here();
  STAY();
  return below + 1;
}

/* A frame of a size known at run time only: CFA by FP.  */
static NOINLINE int variable(int size)
{
  char *bytes = __builtin_alloca((size_t)size);

  memset(bytes, size, (size_t)size);
  here();
  return bytes[size / 2];
}

static int in_order(const void *a, const void *b)
{
  static int is_first = 1;

  if (is_first)
    here();
  is_first = 0;
  return *(const int *)a - *(const int *)b;
}

static NOINLINE void sort(void)
{
  int numbers[] = {3, 1, 2};

  qsort(numbers, 3, sizeof numbers[0], in_order);
  STAY();
}

static void on_signal(int number)
{
  (void)number;
  here();
  if (number == SIGABRT || number == SIGSEGV || number == SIGALRM)
    _exit(0);
}

static void handle(int number, int flags)
{
  struct sigaction action;

  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  action.sa_flags = flags;
  sigaction(number, &action, NULL);
}

static NOINLINE void raise_signal(void)
{
  handle(SIGUSR1, 0);
  raise(SIGUSR1);
  STAY();
}

static NOINLINE void signal_on_another_stack(void)
{
  static char bytes[64 * 1024];
  stack_t stack = {.ss_sp = bytes, .ss_size = sizeof bytes};

  sigaltstack(&stack, NULL);
  handle(SIGUSR1, SA_ONSTACK);
  raise(SIGUSR1);
  STAY();
}

/* A leaf that has pushed nothing, stopped within.  */
static NOINLINE int fault(volatile int *where)
{
  return *where + 1;
}

static NOINLINE void interrupted(void)
{
  volatile unsigned turn = 0;

  handle(SIGALRM, 0);
  ualarm(2000, 0);
  for (;;)
    turn++;
}

static void *run(void *argument)
{
  (void)argument;
  deep(3);
  return NULL;
}

static void *run_and_exit(void *argument)
{
  deep(3);
  pthread_exit(argument);
}

static void on_exit_of_thread(void *argument)
{
  (void)argument;
  here();
}

static void *run_with_key(void *argument)
{
  pthread_key_t key;

  pthread_key_create(&key, on_exit_of_thread);
  pthread_setspecific(key, &key);
  return argument;
}

static void *run_cancelled(void *argument)
{
  pthread_cleanup_push(on_exit_of_thread, argument);
  pthread_cancel(pthread_self());
  for (;;)
    pthread_testcancel();
  pthread_cleanup_pop(0);
}

static NOINLINE void thread(void *(*function)(void *))
{
  pthread_t id;

  pthread_create(&id, NULL, function, NULL);
  pthread_join(id, NULL);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

static NOINLINE __attribute__((noreturn)) void last_call(void)
{
  here();
  _exit(0);
}

/* Its last instruction is the call, and its return address is in the padding after it.  */
static NOINLINE void ends_in_a_call(int number)
{
  if (number)
    last_call();
}

static NOINLINE void open_library(void)
{
  void *library = dlopen("libplaces2.so", RTLD_NOW);
  int (*function)(void (*)(void)) = library ? (int (*)(void (*)(void)))dlsym(library, "call_back") : NULL;

  if (function == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  if (strcmp(place, "dlopen") == 0)
    function(here);
  STAY();
}

/* Called by the constructor of the library.  */
__attribute__((visibility("default"))) void loaded(void)
{
  if (strcmp(place, "dlopen-constructor") == 0)
    here();
}

static ucontext_t main_context, other_context;

static void on_context(void)
{
  here();
}

static NOINLINE void switch_stacks(void)
{
  static char bytes[64 * 1024];

  getcontext(&other_context);
  other_context.uc_stack.ss_sp = bytes;
  other_context.uc_stack.ss_size = sizeof bytes;
  other_context.uc_link = &main_context;
  makecontext(&other_context, on_context, 0);
  swapcontext(&main_context, &other_context);
  STAY();
}

static jmp_buf escape;

static NOINLINE void jump(void)
{
  longjmp(escape, 1);
}

static NOINLINE void after_a_jump(void)
{
  if (setjmp(escape) == 0)
    jump();
  here();
}

static void visit(const void *node, VISIT which, int depth)
{
  (void)node;
  (void)depth;
  if (which == leaf)
    here();
}

static int compare_keys(const void *a, const void *b)
{
  return strcmp(a, b);
}

static NOINLINE void walk_a_tree(void)
{
  static char key[] = "key";
  void *root = NULL;

  tsearch(key, &root, compare_keys);
  twalk(root, visit);
  STAY();
}

__attribute__((destructor)) static void stop(void)
{
  if (strcmp(place, "destructor") == 0)
    here();
}

static NOINLINE int choose_place(void)
{
  if (strcmp(place, "deep") == 0)
    deep(200);
  else if (strcmp(place, "alloca") == 0)
    variable(1000);
  else if (strcmp(place, "qsort") == 0)
    sort();
  else if (strcmp(place, "tree") == 0)
    walk_a_tree();
  else if (strcmp(place, "signal") == 0)
    raise_signal();
  else if (strcmp(place, "signal-stack") == 0)
    signal_on_another_stack();
  else if (strcmp(place, "signal-fault") == 0) {
    handle(SIGSEGV, 0);
    fault(mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  } else if (strcmp(place, "signal-loop") == 0)
    interrupted();
  else if (strcmp(place, "abort") == 0) {
    handle(SIGABRT, 0);
    abort();
  } else if (strcmp(place, "thread") == 0)
    thread(run);
  else if (strcmp(place, "thread-exit") == 0)
    thread(run_and_exit);
  else if (strcmp(place, "thread-key") == 0)
    thread(run_with_key);
  else if (strcmp(place, "thread-cancelled") == 0)
    thread(run_cancelled);
  else if (strcmp(place, "once") == 0)
    pthread_once(&once, here);
  else if (strcmp(place, "atexit") == 0)
    atexit(here);
  else if (strcmp(place, "noreturn") == 0)
    ends_in_a_call(1);
  else if (strcmp(place, "library") == 0)
    call_back(here);
  else if (strcmp(place, "dlopen") == 0 || strcmp(place, "dlopen-constructor") == 0)
    open_library();
  else if (strcmp(place, "plt-resolution") == 0) {
    when_resolved = here;
    resolved_late(1);
  } else if (strcmp(place, "context") == 0)
    switch_stacks();
  else if (strcmp(place, "longjmp") == 0)
    after_a_jump();
  else if (strcmp(place, "destructor") != 0)
    return 2;
  STAY();
  return 0;
}

int main(int argc, char **argv)
{
  int status;

  if (argc != 2)
    return 2;
  place = argv[1];
  status = choose_place();
  STAY();
  return status;
}
