/* SPDX-License-Identifier: Apache-2.0 */
/* BLAS routines at sizes that reach the edges of their kernels.  The checksum is printed, so that nothing is left out.  */

#include <stdio.h>
#include <stdlib.h>

enum { ORDER = 102, TRANSPOSED = 112, PLAIN = 111, UPPER = 121, LOWER = 122, NON_UNIT = 131, LEFT = 141, RIGHT = 142 };

#define LIST_OF(T, P) \
  void cblas_##P##gemm(int, int, int, int, int, int, T, const T *, int, const T *, int, T, T *, int); \
  void cblas_##P##symm(int, int, int, int, int, T, const T *, int, const T *, int, T, T *, int); \
  void cblas_##P##trsm(int, int, int, int, int, int, int, T, const T *, int, T *, int); \
  void cblas_##P##trmm(int, int, int, int, int, int, int, T, const T *, int, T *, int); \
  void cblas_##P##syrk(int, int, int, int, int, T, const T *, int, T, T *, int); \
  void cblas_##P##gemv(int, int, int, int, T, const T *, int, const T *, int, T, T *, int); \
  void cblas_##P##symv(int, int, int, T, const T *, int, const T *, int, T, T *, int); \
  void cblas_##P##ger(int, int, int, T, const T *, int, const T *, int, T *, int); \
  void cblas_##P##trsv(int, int, int, int, int, const T *, int, T *, int); \
  T cblas_##P##dot(int, const T *, int, const T *, int); \
  T cblas_##P##nrm2(int, const T *, int); \
  T cblas_##P##asum(int, const T *, int); \
  void cblas_##P##axpy(int, T, const T *, int, T *, int); \
  void cblas_##P##scal(int, T, T *, int); \
  void cblas_##P##copy(int, const T *, int, T *, int); \
  void cblas_##P##swap(int, T *, int, T *, int); \
  void cblas_##P##rot(int, T *, int, T *, int, T, T); \
  size_t cblas_i##P##amax(int, const T *, int);

LIST_OF(double, d)
LIST_OF(float, s)

#define COMPLEX_OF(T, P) \
  void cblas_##P##gemm(int, int, int, int, int, int, const T *, const T *, int, const T *, int, const T *, T *, int); \
  void cblas_##P##hemm(int, int, int, int, int, const T *, const T *, int, const T *, int, const T *, T *, int); \
  void cblas_##P##trsm(int, int, int, int, int, int, int, const T *, const T *, int, T *, int); \
  void cblas_##P##trmm(int, int, int, int, int, int, int, const T *, const T *, int, T *, int); \
  void cblas_##P##gemv(int, int, int, int, const T *, const T *, int, const T *, int, const T *, T *, int); \
  void cblas_##P##axpy(int, const T *, const T *, int, T *, int); \
  void cblas_##P##scal(int, const T *, T *, int); \
  void cblas_##P##copy(int, const T *, int, T *, int); \
  void cblas_##P##swap(int, T *, int, T *, int); \
  void cblas_##P##dotc_sub(int, const T *, int, const T *, int, T *); \
  size_t cblas_i##P##amax(int, const T *, int);

COMPLEX_OF(double, z)
COMPLEX_OF(float, c)

enum { MOST = 80 };

#define REAL(T, P) \
  static double real_##P(int m, int n, int k) \
  { \
    static T a[MOST * MOST], b[MOST * MOST], c[MOST * MOST]; \
    double sum = 0; \
    int i, way; \
    for (i = 0; i < MOST * MOST; i++) { \
      a[i] = (T)(i % 7 + 1) / 8 + (i % (MOST + 1) == 0 ? 4 : 0); \
      b[i] = (T)(i % 5 - 2) / 4; \
      c[i] = 1; \
    } \
    for (way = 0; way < 4; way++) { \
      int one = way & 1 ? TRANSPOSED : PLAIN, two = way & 2 ? TRANSPOSED : PLAIN; \
      int half = way & 1 ? UPPER : LOWER, side = way & 2 ? LEFT : RIGHT; \
      cblas_##P##gemm(ORDER, one, two, m, n, k, 1, a, MOST, b, MOST, 1, c, MOST); \
      cblas_##P##symm(ORDER, side, half, m, n, 1, a, MOST, b, MOST, 0, c, MOST); \
      cblas_##P##trsm(ORDER, side, half, two, NON_UNIT, m, n, 1, a, MOST, b, MOST); \
      cblas_##P##trmm(ORDER, side, half, one, NON_UNIT, m, n, 1, a, MOST, b, MOST); \
      cblas_##P##syrk(ORDER, half, one, n, k, 1, a, MOST, 1, c, MOST); \
      cblas_##P##gemv(ORDER, one, m, n, 1, a, MOST, b, 1 + (way >> 1), 1, c, 1); \
      cblas_##P##symv(ORDER, half, n, 1, a, MOST, b, 1, 1, c, 1 + (way >> 1)); \
      cblas_##P##trsv(ORDER, half, one, NON_UNIT, n, a, MOST, c, 1 + (way >> 1)); \
    } \
    cblas_##P##ger(ORDER, m, n, 1, b, 1, c, 1, a, MOST); \
    for (i = 1; i <= 2; i++) { \
      sum += cblas_##P##dot(n, a, i, b, 1) + cblas_##P##nrm2(n, b, i) + cblas_##P##asum(m, b, i); \
      cblas_##P##axpy(n, 2, a, i, b, 1); \
      cblas_##P##scal(n, (T)0.5, b, i); \
      cblas_##P##copy(n, b, i, c, 1); \
      cblas_##P##swap(n, b, i, c, 1); \
      cblas_##P##rot(n, b, i, c, 1, (T)0.6, (T)0.8); \
      sum += (double)cblas_i##P##amax(n, b, i); \
    } \
    return sum + c[1]; \
  }

#define COMPLEX(T, P) \
  static double complex_##P(int m, int n, int k) \
  { \
    static T a[2 * MOST * MOST], b[2 * MOST * MOST], c[2 * MOST * MOST]; \
    const T one[2] = {1, 0}, other[2] = {(T)0.5, 1}; \
    T dot[2]; \
    int i, way; \
    for (i = 0; i < 2 * MOST * MOST; i++) { \
      a[i] = (T)(i % 7 + 1) / 8 + (i % (2 * MOST + 2) == 0 ? 4 : 0); \
      b[i] = (T)(i % 5 - 2) / 4; \
      c[i] = 1; \
    } \
    for (way = 0; way < 9; way++) { \
      int left = PLAIN + way % 3, right = PLAIN + way / 3; \
      int half = way & 1 ? UPPER : LOWER, side = way & 2 ? LEFT : RIGHT; \
      cblas_##P##gemm(ORDER, left, right, m, n, k, one, a, MOST, b, MOST, one, c, MOST); \
      cblas_##P##hemm(ORDER, side, half, m, n, other, a, MOST, b, MOST, one, c, MOST); \
      cblas_##P##trsm(ORDER, side, half, right, NON_UNIT, m, n, one, a, MOST, b, MOST); \
      cblas_##P##trmm(ORDER, side, half, left, NON_UNIT, m, n, other, a, MOST, b, MOST); \
      cblas_##P##gemv(ORDER, left, m, n, other, a, MOST, b, 1 + (way & 1), one, c, 1); \
    } \
    for (i = 1; i <= 2; i++) { \
      cblas_##P##axpy(n, other, a, i, b, 1); \
      cblas_##P##scal(n, other, b, i); \
      cblas_##P##copy(n, b, i, c, 1); \
      cblas_##P##swap(n, b, i, c, 1); \
      cblas_##P##dotc_sub(n, a, i, b, 1, dot); \
    } \
    return (double)dot[0] + c[1] + (double)cblas_i##P##amax(n, b, 1); \
  }

REAL(double, d)
REAL(float, s)
COMPLEX(double, z)
COMPLEX(float, c)

/* `blas [SECONDS-OF-WORK]`: with an argument it only multiplies, so many times.  */
int main(int argc, char **argv)
{
  static const int sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {8, 16, 4}, {17, 13, 9}, {33, 31, 29}, {67, 71, 73}};
  double sum = 0;
  unsigned i;

  if (argc > 1) {
    enum { SIDE = 600 };
    double *a = calloc(3 * SIDE * SIDE, sizeof *a);
    long times = strtol(argv[1], NULL, 10);
    if (a == NULL)
      return 1;
    for (i = 0; i < 3 * SIDE * SIDE; i++)
      a[i] = i % 9;
    while (times-- > 0)
      cblas_dgemm(ORDER, PLAIN, PLAIN, SIDE, SIDE, SIDE, 1, a, SIDE, a + SIDE * SIDE, SIDE, 0, a + 2 * SIDE * SIDE,
                  SIDE);
    printf("%g\n", a[2 * SIDE * SIDE]);
    return 0;
  }
  for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    int m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
    sum += real_d(m, n, k) + real_s(m, n, k) + complex_z(m, n, k) + complex_c(m, n, k);
  }
  printf("%g\n", sum);
  return 0;
}
