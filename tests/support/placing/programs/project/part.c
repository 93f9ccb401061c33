/* SPDX-License-Identifier: Apache-2.0
   Functions of many shapes, compiled several times: NAME(n) differs by PART. Each NAME(n) is called as number(number). */
#include <alloca.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef unsigned long number;
#define NOINLINE __attribute__((noinline, noclone))
static inline number mix(number a, number b) { return (a ^ (b >> 3)) * 2862933555777941757ul + b; }
#define A (10 + 41 * PART)
#define B (3 + 8 * PART)
#define NAME(n) PASTE(PART, n)
#define PASTE(part, n) PASTED(part, n)
#define PASTED(part, n) c##part##_##n

static NOINLINE number NAME(0_inner)(number x) { return mix(x, A) % B; }
NOINLINE number NAME(0)(number x) { return NAME(0_inner)(x) + NAME(0_inner)(x + 1); }

NOINLINE number NAME(1)(number x)
{
  char *bytes = alloca(x % A + 16);
  memset(bytes, (int)x, x % A + 16);
  return mix((number)bytes[x % 16], x);
}

NOINLINE number NAME(2)(number x)
{
  number cells[x % A + 1];
  for (number i = 0; i <= x % A; i++) cells[i] = mix(i, x);
  return cells[x % A];
}

static NOINLINE __attribute__((cold)) number NAME(3_rare)(number x, const char *text)
{
  return mix(x, (number)printf("%s", text));
}
NOINLINE number NAME(3)(number x)
{
  if (__builtin_expect(x % 1000003 == A, 0)) {
    number y = NAME(3_rare)(x, "rare");
    return y + NAME(3_rare)(y, "again");
  }
  return mix(x, B);
}

NOINLINE number NAME(4_sum)(int count, ...)
{
  va_list list; number total = 0;
  va_start(list, count);
  while (count-- > 0) total = mix(total, va_arg(list, number));
  va_end(list);
  return total;
}
NOINLINE number NAME(4)(number x) { return NAME(4_sum)(9, x, x + 1, 2ul, 3ul, 4ul, 5ul, 6ul, 7ul, 8ul) + NAME(4_sum)(1, A); }

NOINLINE number NAME(5)(number x)
{
  volatile unsigned char bytes[A * 100];
  bytes[x % sizeof bytes] = 3;
  return mix(x, bytes[x % sizeof bytes]);
}

NOINLINE number NAME(6)(number x)
{
  volatile number cells[8] __attribute__((aligned(64)));
  char *bytes = alloca(x % A + 1);
  bytes[0] = (char)x;
  cells[x % 8] = x;
  return mix(cells[x % 8], (number)bytes[0]);
}

static int NAME(7_compare)(const void *a, const void *b)
{
  number x = *(const number *)a, y = *(const number *)b;
  return x < y ? -1 : x > y;
}
NOINLINE number NAME(7)(number x)
{
  number cells[16];
  for (int i = 0; i < 16; i++) cells[i] = x = mix(x, A);
  qsort(cells, 16, sizeof cells[0], NAME(7_compare));
  return cells[B % 16];
}

static jmp_buf NAME(8_escape);
static NOINLINE __attribute__((noreturn)) void NAME(8_leave)(number x) { longjmp(NAME(8_escape), (int)(x % 5) + 1); }
static NOINLINE void NAME(8_check)(number x) { if (x != A) NAME(8_leave)(x); }
NOINLINE number NAME(8)(number x)
{
  int code = setjmp(NAME(8_escape));
  if (code == 0) NAME(8_check)(x | B << 20);
  return mix(x, (number)code);
}

NOINLINE number NAME(9)(number x)
{
  switch (x % 9) {
  case 0: return mix(x, 1);
  case 1: return labs((long)x) + A;
  case 2: case 5: x = mix(x, (number)rand()); return x & 0;
  case 3: return strtoul("17", 0, 10);
  case 4: x += A; break;
  case 7: return (number)atoi("251");
  default: x = mix(x, B);
  }
  return x + (number)atoi("17");
}

NOINLINE number NAME(10)(number x) { return x < A ? mix(x, 2) : NAME(10)(x / 3) * 5 + NAME(10)(x / 7); }

NOINLINE number NAME(11)(number x)
{
  if (x % 3 == 0) return x;
  number a = strtoul("251", 0, 10), b = strtoul("17", 0, 10), c = mix(a, b), d = mix(b, x);
  number e = strtoul("251", 0, 8);
  return a + b * c - d + mix(e, strtoul("7", 0, 10) + a);
}
