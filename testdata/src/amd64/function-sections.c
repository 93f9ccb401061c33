// SPDX-License-Identifier: Apache-2.0
// One text section per function.
// Build: gcc -O2 -ffunction-sections -c
extern int g(int);
int first(int x) { return g(x) + 1; }
int second(int x) { return g(g(x)) + x; }
