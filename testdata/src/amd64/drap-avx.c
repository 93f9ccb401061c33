// SPDX-License-Identifier: Apache-2.0
// Over-aligned vectors of 32 bytes live across a call.
// Build: gcc -O2 -mavx -c
typedef double vector __attribute__((vector_size(32)));
extern void use(vector *);
vector f(vector a, vector b) { vector c = a + b; use(&c); return c + a; }
