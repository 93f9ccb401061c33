/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs of this folder share: one stack, walked by backtrace() and by the DWARF unwinder.  */

#ifndef PLACES_H
#define PLACES_H

#ifdef __cplusplus
extern "C" {
#endif

/* Walks the stack both ways and prints one line:
     PLACE: same N               backtrace() and DWARF found the same N callers
     PLACE: none of N            backtrace() found nothing: it asked DWARF, which cannot answer it here
     PLACE: differ at I of N: MODULE+OFFSET instead of MODULE+OFFSET  */
void compare(const char *place);

/* In places_library.c; `when_resolved` is called while the PLT entry of resolved_late() is bound.  */
extern void (*when_resolved)(void);
int call_back(void (*function)(void));
int resolved_late(int number);

#ifdef __cplusplus
}
#endif

/* Keeps the call before it from being the last thing of its function, so that the caller has a frame.  */
#define STAY() __asm__ volatile("" ::: "memory")
#define NOINLINE __attribute__((noinline, noclone))

#endif
