// SPDX-License-Identifier: Apache-2.0
// Over-aligned locals next to a VLA: GCC uses a DRAP register, CFA = *(rbp - 8).
// Build: gcc -O2 -c
extern void use(void *, void *);
void f(int n) { char over_aligned[64] __attribute__((aligned(64))); char vla[n]; use(over_aligned, vla); }
