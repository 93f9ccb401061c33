/* SPDX-License-Identifier: Apache-2.0 */
/* compare(): backtrace() against a DWARF unwinder that backtrace() does not know.

   libgcc_s.so.1 next to this program is a copy whose _Unwind_Backtrace finds nothing, so an answer of backtrace() comes from
   SFrame rows. libgcc_r.so.1 is the same library, under another name and unchanged.  */

#define _GNU_SOURCE
#include "places.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <unwind.h>

enum { MOST = 512 };

struct walk {
  int count;
  void *frames[MOST];
};

static _Unwind_Reason_Code (*walk_by_dwarf)(_Unwind_Trace_Fn, void *);
static _Unwind_Ptr (*ip_of)(struct _Unwind_Context *);
static struct walk found, expected;

/* Before main(), because no library can be loaded in a signal handler.  */
__attribute__((constructor)) static void find_the_unwinder(void)
{
  void *library = dlopen("libgcc_r.so.1", RTLD_NOW | RTLD_LOCAL);

  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  walk_by_dwarf = (_Unwind_Reason_Code(*)(_Unwind_Trace_Fn, void *))dlsym(library, "_Unwind_Backtrace");
  ip_of = (_Unwind_Ptr(*)(struct _Unwind_Context *))dlsym(library, "_Unwind_GetIP");
}

static _Unwind_Reason_Code add(struct _Unwind_Context *context, void *data)
{
  struct walk *walk = data;
  void *ip = (void *)ip_of(context);

  if (ip == NULL || walk->count == MOST)
    return _URC_END_OF_STACK;
  walk->frames[walk->count++] = ip;
  return _URC_NO_REASON;
}

static const char *name_of(void *address, char *text, size_t size)
{
  Dl_info info;

  if (address == NULL)
    snprintf(text, size, "the end");
  else if (!dladdr(address, &info))
    snprintf(text, size, "%p", address);
  else
    snprintf(text, size, "%s+%#zx (%s)", info.dli_fname, (size_t)((char *)address - (char *)info.dli_fbase),
             info.dli_sname ? info.dli_sname : "?");
  return text;
}

NOINLINE void compare(const char *place)
{
  char line[1024], ours[400], theirs[400];
  int at, length;

  found.count = backtrace(found.frames, MOST);
  expected.count = 0;
  walk_by_dwarf(add, &expected);
  /* The first frames are this function, at two calls.  */
  for (at = 1; at < found.count && at < expected.count && found.frames[at] == expected.frames[at];)
    at++;
  if (found.count == 0)
    length = snprintf(line, sizeof line, "%s: none of %d\n", place, expected.count - 1);
  else if (at == found.count && at == expected.count)
    length = snprintf(line, sizeof line, "%s: same %d\n", place, expected.count - 1);
  else
    length = snprintf(line, sizeof line, "%s: differ at %d of %d: %s instead of %s\n", place, at, expected.count - 1,
                      name_of(at < found.count ? found.frames[at] : NULL, ours, sizeof ours),
                      name_of(at < expected.count ? expected.frames[at] : NULL, theirs, sizeof theirs));
  if (write(STDOUT_FILENO, line, (size_t)length) != length)
    _exit(2);
}
