// SPDX-License-Identifier: Apache-2.0
// Functions of many shapes, for the audit of what compilers write.

#include <alloca.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

extern void out(const char *, ...);
extern int in(int);
extern void take(void *, ...);

int leaf(int a, int b) { return a * b + a / (b | 1); }

int several(int a, int b, int c, int d)
{
  int e = in(a), f = in(b), g = in(c), h = in(d);
  for (int i = 0; i < e; i++) {
    if (in(i) == f) return g;
    h += in(h) ^ in(e + i) ^ (f >> (i & 7));
  }
  return e + f + g + h;
}

int cases(int n, int m)
{
  switch (n) {
  case 0: return in(m);
  case 1: out("one"); break;
  case 2: return m * 3;
  case 3: if (in(m)) exit(3); return 4;
  case 4: out("four", m, m, m, m, m, m, m, m); break;
  case 5: return in(m) + in(n);
  case 6: out("six"); out("six"); return 1;
  case 7: abort();
  case 8: return m << n;
  case 9: out("nine"); break;
  default: out("other"); return -1;
  }
  return in(in(n));
}

int arrays(int n)
{
  char fixed[5000], moving[n + 3];
  take(fixed, moving);
  char *more = alloca(n * 2);
  take(more, fixed[n & 7], moving[0]);
  return in(more[1]);
}

int aligned(int n, ...)
{
  _Alignas(64) char lines[256];
  va_list list;
  va_start(list, n);
  int sum = 0;
  while (n--) sum += va_arg(list, int);
  va_end(list);
  take(lines, list);
  return sum + lines[3];
}

int aligned_and_moving(int n)
{
  _Alignas(128) long lines[32];
  long *more = alloca(8 * n);
  take(lines, more);
  return in(lines[0] + more[1]);
}

struct big { long all[20]; };
struct big by_value(struct big a, struct big b)
{
  struct big c = a;
  take(&a, &b, &c);
  for (int i = 0; i < 20; i++) c.all[i] += b.all[i] * a.all[19 - i];
  return c;
}

static jmp_buf away;
int jumps(int n)
{
  volatile int k = n;
  if (setjmp(away)) return k;
  if (in(n) > 3) longjmp(away, 1);
  return in(k);
}

double floats(double *a, int n)
{
  double sum = 0;
  for (int i = 0; i < n; i++) sum += a[i] * a[n - i] + in(i);
  return sum;
}

unsigned long swap(unsigned long *a, unsigned long b)
{
  unsigned long old = __atomic_exchange_n(a, b, __ATOMIC_SEQ_CST);
  __atomic_compare_exchange_n(a, &old, b + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return __atomic_fetch_add(a, old, __ATOMIC_SEQ_CST) / (b + 1) + (unsigned long)(((__int128)old * b) >> 64);
}

int (*pointer)(int);
int tail(int n) { return n > 3 ? pointer(n) : in(n - 1); }
int deep(int n) { return n ? in(deep(n - 1)) + n : 0; }
void copies(char *a, const char *b, long n) { memset(a, 1, 300); memcpy(a + n, b, 999); memcpy(a, b, n); }

static __attribute__((noinline, noreturn)) void fail(int n) { out("fail %d", n); exit(n); }
int checked(int *a, int n)
{
  if (n < 0) fail(1);
  int b = in(a[n]);
  if (b < 0) fail(2);
  if (a[b] == 7) { out("seven"); fail(3); }
  return a[b];
}
