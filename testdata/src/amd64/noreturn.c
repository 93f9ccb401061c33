// SPDX-License-Identifier: Apache-2.0
// A function that ends in a call of a noreturn function: the RA lies behind its last byte.
// Build: gcc -O2 -c
extern void die(int) __attribute__((noreturn));
int f(int x) { if (x < 0) die(x); return x + 1; }
void g(int x) { die(x); }
