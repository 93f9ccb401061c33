// SPDX-License-Identifier: Apache-2.0
// A cold path in .text.unlikely with an FDE of its own that does not start at sp+8.
// Build: gcc -O2 -freorder-blocks-and-partition -c
extern void report(int) __attribute__((cold));
extern int work(int);
int f(int x) { int y = work(x); if (__builtin_expect(y < 0, 0)) { report(x); report(y); y = work(y); } return y + x; }
