// SPDX-License-Identifier: Apache-2.0
// The prologue is sunk into the slow path.
// Build: gcc -O2 -c
extern int slow(int), other(int);
int f(int x) { if (__builtin_expect(x == 0, 1)) return 0; int y = slow(x); return y + other(x) + slow(y); }
