/* SPDX-License-Identifier: Apache-2.0
   Calls most functions of the parts; --gc-sections removes the others. */
#include <stdio.h>
typedef unsigned long number;

#define OF_C(do, p) do(c##p##_0) do(c##p##_1) do(c##p##_2) do(c##p##_3) do(c##p##_5) do(c##p##_6) do(c##p##_7) do(c##p##_8) do(c##p##_9) do(c##p##_11)
#define ALL_OF_C(do) OF_C(do, 0) OF_C(do, 1) OF_C(do, 2) OF_C(do, 3) OF_C(do, 4) OF_C(do, 5)
#ifdef WITH_CPP
#define OF_CPP(do, p) do(cc##p##_0) do(cc##p##_1) do(cc##p##_2) do(cc##p##_4) do(cc##p##_5)
#define ALL(do) ALL_OF_C(do) OF_CPP(do, 0) OF_CPP(do, 1) OF_CPP(do, 2)
#else
#define ALL(do) ALL_OF_C(do)
#endif

#define DECLARE(name) number name(number);
#define CALL(name) total = total * 31 + name(turn + total % 50);
ALL(DECLARE)

int main(void)
{
  number total = 1;
  for (number turn = 0; turn < 20; turn++) { ALL(CALL) }
  printf("total %lx\n", total);
  return 0;
}
