// SPDX-License-Identifier: Apache-2.0
// A register save area for varargs.
// Build: gcc -O2 -c
int sum(int n, ...) { __builtin_va_list args; __builtin_va_start(args, n); int s = 0; while (n-- > 0) s += __builtin_va_arg(args, int); __builtin_va_end(args); return s; }
