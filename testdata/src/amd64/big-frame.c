// SPDX-License-Identifier: Apache-2.0
// A frame beyond 32,767 bytes and one beyond 127: 32-bit and 16-bit offsets.
// Build: gcc -O2 -c
extern void use(char *);
void big(void) { char buffer[100000]; use(buffer); }
void medium(void) { char buffer[1000]; use(buffer); }
