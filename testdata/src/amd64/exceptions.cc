// SPDX-License-Identifier: Apache-2.0
// C++: personality and LSDA (zPLR), a COMDAT inline function, cleanups and cold landing pads.
// Build: gcc -O2 -c
struct Guard { Guard(); ~Guard(); int value; };
extern int risky(int);
template <typename T> __attribute__((noinline)) T shared(T x) { Guard guard; return risky(x) + guard.value; }
int f(int x) { try { Guard guard; return shared(x) + guard.value; } catch (int e) { return e; } }
int g(int x) { if (x > 5) throw x; return shared(x); }
