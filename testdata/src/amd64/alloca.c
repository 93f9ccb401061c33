// SPDX-License-Identifier: Apache-2.0
// alloca and a VLA: the CFA must be based on FP.
// Build: gcc -O2 -c
extern void use(void *);
void with_alloca(unsigned long n) { use(__builtin_alloca(n)); }
void with_vla(int n) { int array[n]; use(array); }
