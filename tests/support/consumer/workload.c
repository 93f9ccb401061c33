/* SPDX-License-Identifier: Apache-2.0 */
/* A program whose stacks are hard to walk.  `workload SECONDS` repeats one
   round of work until it has used SECONDS of CPU time and prints the round's
   checksum, which is the same in every round; it fails if a round differs.  */

#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined __clang__
#define NOINLINE __attribute__((noinline))
#define KEEPS_FRAME_POINTER
#else
#define NOINLINE __attribute__((noinline, noclone))
#define KEEPS_FRAME_POINTER __attribute__((optimize("no-omit-frame-pointer")))
#endif

typedef unsigned long number;

/* Some work without calls, so that ticks find the callers on the stack.  */
static NOINLINE number spin(number seed, unsigned turns)
{
  while (turns-- > 0)
    seed = seed * 2862933555777941757ul + 3037000493ul;
  return seed;
}

/* Not a tail call: the frame stays.  */
static NOINLINE number recurse(unsigned depth, number seed)
{
  if (depth == 0)
    return spin(seed, 2000);
  return recurse(depth - 1, seed + depth) * 3 + depth;
}

static NOINLINE int compare_numbers(const void *left, const void *right)
{
  number a = spin(*(const number *)left, 30) ^ 5;
  number b = spin(*(const number *)right, 5) ^ 5;
  return a < b ? -1 : a > b;
}

static NOINLINE number sorted(number seed)
{
  number items[64];
  unsigned index;

  for (index = 0; index < 64; index++)
    items[index] = seed = spin(seed, 3);
  qsort(items, 64, sizeof items[0], compare_numbers);
  return items[17] ^ items[50];
}

/* The frame's size is known at run time only: CFA follows FP.  */
static NOINLINE number with_alloca(unsigned size, number seed)
{
  unsigned char *bytes = alloca(size);
  memset(bytes, (int)(seed & 0xff), size);
  return spin(seed, 1500) + bytes[size / 2];
}

/* Offsets that need two and four bytes.  */
static NOINLINE number with_large_frame(number seed)
{
  volatile unsigned char bytes[40000];
  bytes[seed % sizeof bytes] = 7;
  seed = spin(seed, 1500);
  return seed + bytes[0] * 0ul;
}

static NOINLINE number with_medium_frame(number seed)
{
  volatile unsigned char bytes[900];
  bytes[seed % sizeof bytes] = 7;
  seed = with_large_frame(seed) + spin(seed, 1500);
  return seed + bytes[0] * 0ul;
}

/* An over-aligned local makes the compiler realign the stack; with alloca and
   arguments on the stack it keeps the argument pointer in a register.  */
static NOINLINE number with_alignment(unsigned size, number seed, number a,
                                      number b, number c, number d, number e,
                                      number f, number g)
{
  volatile number local[8] __attribute__((aligned(64)));
  volatile unsigned char *bytes = alloca(size);

  local[seed % 8] = seed;
  bytes[0] = (unsigned char)((uintptr_t)local % 64);
  seed = spin(seed + a + b + c + d, 1500);
  return seed + e + f + g + bytes[0];
}

static NOINLINE number with_alignment_only(number seed)
{
  volatile number local[16] __attribute__((aligned(128)));
  local[seed % 16] = 1;
  return with_alignment((unsigned)(100 + seed % 50), seed, 1, 2, 3, 4, 5, 6, 7)
         + (uintptr_t)local % 128;
}

static NOINLINE number sum(unsigned count, ...)
{
  number total = 0;
  va_list list;

  va_start(list, count);
  while (count-- > 0)
    total += spin(va_arg(list, number), 100);
  va_end(list);
  return total;
}

/* Many arguments: pushed between prologue and call.  */
static NOINLINE number with_pushed_arguments(number seed)
{
  number total = sum(9, seed, seed + 1, 2ul, 3ul, 4ul, 5ul, 6ul, 7ul, 8ul);
  return total + sum(3, total, 1ul, 2ul);
}

/* Sibling calls: the caller's frame is gone when the callee runs.  */
static NOINLINE number tail_third(number seed) { return spin(seed, 800); }
static NOINLINE number tail_second(number seed)
{
  return (seed & 1) != 0 ? tail_third(seed + spin(seed, 50)) : spin(seed, 900);
}
static NOINLINE number tail_first(number seed)
{
  char text[32];
  snprintf(text, sizeof text, "%lu", seed);
  return tail_second(seed + strlen(text));
}

/* A call that does not return is the last instruction of its function: the
   return address lies behind the function.  */
static jmp_buf escape;
static volatile number escaped;

static NOINLINE __attribute__((noreturn)) void leave(number seed)
{
  escaped = spin(seed, 1500);
  longjmp(escape, 1);
}

static NOINLINE void check(number seed)
{
  if (seed != 1)
    leave(seed);
}

static NOINLINE number with_noreturn(number seed)
{
  if (setjmp(escape) == 0)
    check(seed | 2);
  return escaped;
}

/* Cheap library calls through the PLT.  */
static NOINLINE number with_library_calls(number seed)
{
  volatile long total = 0;
  char text[16] = "stack";
  unsigned index;

  for (index = 0; index < 60; index++) {
    text[0] = (char)('a' + index % 26);
    total += labs((long)(seed & 0xff) - (long)index);
    total += atoi("17") + (long)strnlen(text, sizeof text);
  }
  return (number)total;
}

/* A function whose later rows start beyond 64 KiB.  */
static NOINLINE number with_long_code(number seed)
{
  seed = spin(seed, 700);
#if defined __x86_64__
  __asm__ volatile("jmp 1f\n\t.skip 70000, 0x90\n1:");
#elif defined __aarch64__
  __asm__ volatile("b 1f\n\t.skip 70000\n1:");
#elif defined __s390x__
  __asm__ volatile("jg 1f\n\t.skip 70000\n1:");
#endif
  if ((seed & 1) != 0)
    return spin(seed, 700) + 1;
  return with_alloca(64, seed) + 2;
}

static NOINLINE KEEPS_FRAME_POINTER number with_frame_pointer(unsigned depth,
                                                              number seed)
{
  if (depth == 0)
    return with_medium_frame(seed);
  return with_frame_pointer(depth - 1, seed) + depth;
}

static volatile number handled;

static void on_signal(int signal_number)
{
  handled += recurse(5, (number)signal_number);
}

static NOINLINE number with_signals(number seed)
{
  handled = seed;
  raise(SIGUSR1);
  raise(SIGUSR2); /* handled on a stack of its own */
  return handled;
}

static void *run_thread(void *seed)
{
  number *value = seed;
  *value = recurse(30, *value) + sorted(*value);
  return NULL;
}

static NOINLINE number with_thread(number seed)
{
  pthread_t thread;
  if (pthread_create(&thread, NULL, run_thread, &seed) != 0)
    abort();
  pthread_join(thread, NULL);
  return seed;
}

static NOINLINE number run_round(void)
{
  number result = 1;
  unsigned turn;

  for (turn = 0; turn < 20; turn++) {
    result = result * 31 + recurse(10 * turn, turn);
    result = result * 31 + sorted(turn);
    result = result * 31 + with_alloca(100 + 64 * turn, turn);
    result = result * 31 + with_frame_pointer(turn, turn);
    result = result * 31 + with_alignment_only(turn);
    result = result * 31 + with_pushed_arguments(turn);
    result = result * 31 + tail_first(turn);
    result = result * 31 + with_noreturn(turn);
    result = result * 31 + with_library_calls(turn);
    result = result * 31 + with_long_code(turn);
    result = result * 31 + with_signals(turn);
  }
  result = result * 31 + recurse(3000, 9);
  return result * 31 + with_thread(result);
}

static void install_handlers(void)
{
  static unsigned char alternate[256 * 1024] __attribute__((aligned(16)));
  stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
  struct sigaction action;

  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  sigaction(SIGUSR1, &action, NULL);
  action.sa_flags = SA_ONSTACK;
  sigaltstack(&stack, NULL);
  sigaction(SIGUSR2, &action, NULL);
}

int main(int argc, char **argv)
{
  double seconds = argc > 1 ? strtod(argv[1], NULL) : 1;
  number first, next;

  install_handlers();
  first = run_round();
  do {
    next = run_round();
    if (next != first) {
      fprintf(stderr, "workload: round gave %lx instead of %lx\n", next, first);
      return 1;
    }
  } while ((double)clock() / CLOCKS_PER_SEC < seconds);
  printf("checksum %lx\n", first);
  return 0;
}
