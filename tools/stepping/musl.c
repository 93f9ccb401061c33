/* SPDX-License-Identifier: Apache-2.0 */
/* A C library's functions of many kinds, for musl: `musl [threads]`, or
   `musl calm` without signals and longjmp.  */

#define _GNU_SOURCE
#include <complex.h>
#include <fenv.h>
#include <fnmatch.h>
#include <glob.h>
#include <iconv.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <regex.h>
#include <search.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

static volatile double sink;
static volatile int handled;
static jmp_buf escape;
static sigjmp_buf signal_escape;

static int compare(const void *left, const void *right)
{
  return strcmp(*(char *const *)left, *(char *const *)right);
}

static void texts(void)
{
  char text[512], *words[] = {"pear", "fig", "apple", "quince", "medlar"}, *rest, *found;
  wchar_t wide[64];
  int number;
  double value;

  setlocale(LC_ALL, "C.UTF-8");
  qsort(words, 5, sizeof *words, compare);
  snprintf(text, sizeof text, "%s %5d %-8x|%e %.3f %g %Lg %a %c %p %lld %n", words[0], -42, 77u, 1e300, 3.14159, 1e-5,
           2.5L, 0.1, 'x', (void *)text, 1ll << 60, &number);
  puts(text);
  sscanf("12 0x1f 3.5e2 word", "%d %i %lf %63ls", &number, &number, &value, wide);
  sink += value + strtod("0x1.8p3", NULL) + (double)strtold("1.25e-4000", NULL) + (double)strtoll("-99", NULL, 0);
  printf("%ls %zu %d\n", wide, mbstowcs(wide, "\xc3\xa9t\xc3\xa9", 64), wcscmp(wide, L"a"));
  for (found = strtok_r(text, " |", &rest); found != NULL; found = strtok_r(NULL, " |", &rest))
    sink += strlen(found) + strspn(found, "0123456789") + (strstr(found, "pp") != NULL);
  for (number = 0; number < 300; number += 7) {
    char *from = malloc((size_t)number + 64), *to = malloc((size_t)number + 64);
    memset(from, number, (size_t)number + 33);
    memcpy(to, from + number % 9, (size_t)number + 1);
    memmove(to + number % 5, to, (size_t)number);
    memmove(to, to + number % 5, (size_t)number);
    sink += memcmp(from, to, (size_t)number);
    to = realloc(to, 5000 + (size_t)number);
    free(from);
    free(to);
  }
  printf("%d %d\n", fnmatch("*.c", "musl.c", 0), memmem("needle in hay", 13, "hay", 3) != NULL);
}

static void patterns(void)
{
  static const char *const all[] = {"^a(b|c)*d$", "[[:alpha:]]+[0-9]{2,3}", "(x+)(y*)z"};
  static const char *const samples[] = {"abcbcd", "route66 and 101", "xxxyyz", ""};
  unsigned i, j;

  for (i = 0; i < 3; i++) {
    regex_t compiled;
    regmatch_t matches[3];
    if (regcomp(&compiled, all[i], REG_EXTENDED) != 0)
      continue;
    for (j = 0; j < 4; j++)
      if (regexec(&compiled, samples[j], 3, matches, 0) == 0)
        printf("%d-%d ", (int)matches[0].rm_so, (int)matches[0].rm_eo);
    regfree(&compiled);
  }
  puts("");
}

static void numbers(void)
{
  double x;
  int exponent, quotient;

  for (x = -3; x < 3; x += 0.7) {
    sink += sin(x) + cos(x) + tan(x) + exp(x) + pow(fabs(x), 1.5) + log(fabs(x) + 1) + atan2(x, 2) + tgamma(x + 4)
            + lgamma(x + 5) + erf(x) + cbrt(x) + sinh(x) + fmod(x, 0.3) + remquo(x, 0.7, &quotient) + j0(x) + exp2(x)
            + frexp(x, &exponent) + rint(x) + sin(x * 1e22) + (double)lrint(x) + nearbyint(x) + hypot(x, 1) + log1p(x + 4)
            + expm1(x) + acosh(fabs(x) + 1) + fma(x, x, 1) + ceil(x) + trunc(x) + round(x) + sqrt(fabs(x));
    sink += (double)(sinl(x) + expl(x) + logl(fabsl(x) + 1) + powl(2, x) + fmodl(x, 0.3L) + atanl(x) + floorl(x)
                     + exp2l(x) + log2l(fabsl(x) + 1) + remainderl(x, 0.4L) + sqrtl(fabsl(x)) + acosl(x / 4)
                     + log10l(fabsl(x) + 1) + log1pl(x + 4) + expm1l(x) + rintl(x) + ceill(x) + atan2l(x, 2));
    sink += sinf((float)x) + expf((float)x) + powf(2, (float)x) + logf((float)fabs(x) + 1) + creal(cexp(x + I));
  }
  feclearexcept(FE_ALL_EXCEPT);
  fesetround(FE_UPWARD);
  sink += fetestexcept(FE_INEXACT) + fegetround();
  fesetround(FE_TONEAREST);
  printf("%.6f\n", sink);
}

static void deeper(int depth)
{
  volatile char room[64];

  room[0] = (char)depth;
  if (depth == 0)
    longjmp(escape, 3);
  deeper(depth - 1);
  sink += room[0];
}

static void on_signal(int number)
{
  handled += number;
  if (number == SIGUSR2)
    siglongjmp(signal_escape, 1);
}

static void jumps(void)
{
  struct sigaction action;
  struct tm broken;
  time_t now = 1e9;
  char text[64];

  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  sigaction(SIGUSR1, &action, NULL);
  sigaction(SIGUSR2, &action, NULL);
  if (setjmp(escape) == 0)
    deeper(9);
  raise(SIGUSR1);
  if (sigsetjmp(signal_escape, 1) == 0)
    raise(SIGUSR2);
  gmtime_r(&now, &broken);
  strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &broken);
  printf("%s %d %ld\n", text, handled, (long)mktime(&broken));
  hcreate(20);
  hsearch((ENTRY){"key", "data"}, ENTER);
  hdestroy();
  {
    char in[] = "\xc3\xa9", out[8], *from = in, *to = out;
    size_t in_size = 2, out_size = sizeof out;
    iconv_t way = iconv_open("UTF-16LE", "UTF-8");
    iconv(way, &from, &in_size, &to, &out_size);
    iconv_close(way);
    printf("%zu\n", out_size);
  }
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static sem_t gate;
static int turn;

static void make_key(void)
{
  pthread_key_create(&key, free);
}

static void *work(void *data)
{
  int i;

  pthread_once(&once, make_key);
  pthread_setspecific(key, malloc(16));
  for (i = 0; i < 5; i++) {
    pthread_mutex_lock(&lock);
    while (turn != (int)(intptr_t)data)
      pthread_cond_wait(&changed, &lock);
    turn = (turn + 1) % 3;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
  }
  sem_post(&gate);
  return data;
}

static void clean(void *data)
{
  *(int *)data += 1;
}

static void *wait_forever(void *data)
{
  pthread_cleanup_push(clean, data);
  for (;;)
    pause();
  pthread_cleanup_pop(0);
  return NULL;
}

static void with_threads(void)
{
  pthread_t threads[3], last;
  int i, cleaned = 0;

  sem_init(&gate, 0, 0);
  for (i = 0; i < 3; i++)
    pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i);
  for (i = 0; i < 3; i++)
    sem_wait(&gate);
  for (i = 0; i < 3; i++)
    pthread_join(threads[i], NULL);
  pthread_create(&last, NULL, wait_forever, &cleaned);
  pthread_cancel(last);
  pthread_join(last, NULL);
  printf("threads %d\n", cleaned);
}

int main(int argc, char **argv)
{
  if (argc > 1 && strcmp(argv[1], "threads") == 0) {
    with_threads();
    return 0;
  }
  texts();
  patterns();
  numbers();
  if (argc == 1)
    jumps();
  return 0;
}
