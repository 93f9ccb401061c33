// SPDX-License-Identifier: Apache-2.0
// setjmp keeps a frame that a longjmp returns to.
// Build: gcc -O2 -c
extern int _setjmp(void *) __attribute__((returns_twice));
extern void run(int);
static void *buffer[64];
int f(int x) { volatile int y = x; if (_setjmp(buffer)) return y; run(x); return 0; }
