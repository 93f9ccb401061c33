// SPDX-License-Identifier: Apache-2.0
// A jump table with returns in the middle: remember/restore pairs.
// Build: gcc -O2 -c
extern int a(int), b(int), c(int), d(int);
int f(int x, int y) {
  switch (x) { case 0: return a(y) + 1; case 1: return b(y) + x; case 2: return c(y) * 2; case 3: y = d(y); break; case 4: return a(b(y)) + y; default: return -1; }
  return a(y) + b(y);
}
