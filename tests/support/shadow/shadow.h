/* SPDX-License-Identifier: Apache-2.0 */
/* A tracer that single-steps a program and knows the frame of each instruction
   from execution alone: what SP and FP were when the running function was
   entered, and which return address was on the stack.  AMD64, Linux.

   It compares that with what the rows of an SFrame section say.  Rows are found
   and applied by the reader in ../consumer.  Addresses are those of the traced
   process; those that are counted from a module's load bias are called
   vaddr.  */

#ifndef SHADOW_H
#define SHADOW_H

#include "sframe_walk.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/user.h>

enum {
  SHADOW_MAX_MODULES = 64,
  SHADOW_MAX_THREADS = 64,
  SHADOW_MAX_FRAMES = 4096,
  SHADOW_MAX_EXAMPLES = 200,
  SHADOW_PAGE = 4096,
  SHADOW_REFUSED = 3, /* exit status: the program does what is not followed */
  SHADOW_BROKEN = 4   /* exit status: no result, for a reason on stderr */
};

/* [start, end), virtual addresses of a module.  */
struct shadow_range {
  uint64_t start, end;
};

/* What was met at one address.  */
struct shadow_count {
  uint32_t steps;
  uint32_t without_row;
  uint32_t unknown; /* the frame is not known: nothing to compare with */
  uint32_t differing;
};

/* A file of the job, and where it lies in the process.  */
struct shadow_module {
  char path[512];
  uint64_t bias;
  uint64_t low, high; /* vaddr: of all ranges */
  struct shadow_range *ranges; /* ascending */
  unsigned range_count;
  struct shadow_count *counts; /* by vaddr - low */
  uint32_t *entries;           /* calls seen, by vaddr - low */
  bool is_loaded;
};

/* Pages that hold addresses of interest, which may not be executed while the
   program runs by itself.  */
struct shadow_pages {
  uint64_t start, end;
  bool is_open;
};

enum shadow_kind {
  SHADOW_KNOWN,
  SHADOW_BOTTOM, /* the first frame of a thread: nothing called it */
  SHADOW_UNKNOWN /* entered by something that is no call */
};

struct shadow_frame {
  enum shadow_kind kind;
  uint64_t cfa, ra, fp;
  uint64_t steps;
};

struct shadow_thread {
  pid_t tid; /* 0: no thread */
  bool is_stepping;
  bool got_signal; /* it is delivered by the step that is under way */
  struct user_regs_struct before; /* of the step that is under way */
  struct shadow_frame frames[SHADOW_MAX_FRAMES];
  unsigned depth;
};

/* Sums of a run.  */
struct shadow_sums {
  uint64_t steps;      /* at addresses of interest */
  uint64_t all_steps;
  uint64_t equal, differing, without_row, unknown;
  uint64_t fp_by_caller; /* FP is not told, and of no use to the walk */
  /* Rows of calls, with SP and FP known only: right, or in need of another
     register; wrong ones are among the differing.  */
  uint64_t right_calls, unsafe_calls;
  uint64_t calls, returns, other_returns, abandoned; /* frames, and their ends */
  uint64_t signals;
  uint64_t entries, unknown_entries; /* into the protected pages */
  uint64_t let_run; /* calls that were not stepped, as there were enough */
  uint64_t windows; /* in which nothing was */
};

struct shadow_example {
  const struct shadow_module *module;
  uint64_t pc, sp, fp;
  enum sframe_ending ending; /* SFRAME_STEPPED: the values differ */
  struct shadow_frame want, got;
};

extern struct shadow_module shadow_modules[SHADOW_MAX_MODULES];
extern unsigned shadow_module_count;
extern struct sframe_modules shadow_sections; /* for the reader of rows */
extern struct shadow_sums shadow_sums;
extern pid_t shadow_pid;

/* --- shadow_start.c --- */

/* Prints a message and ends tracer and program with STATUS.  */
void shadow_end(int status, const char *what, ...)
    __attribute__((noreturn, format(printf, 2, 3)));
/* Starts a program, traced with OPTIONS, and lets it come to its entry point,
   where its libraries are loaded.  */
void shadow_start(char **words, long options);
void shadow_get_registers(pid_t tid, struct user_regs_struct *registers);
/* Replaces the word at ADDRESS, and returns what was there.  */
long shadow_poke(uint64_t address, long word);
/* Sets a breakpoint, and returns the word that it is part of.  */
long shadow_break_at(uint64_t address);

/* --- shadow_job.c: files, ranges, report --- */

void shadow_read_job(const char *name);
/* Finds the job's modules in the process's map.  */
void shadow_locate_modules(void);
/* The module with a range that holds PC, or NULL.  */
struct shadow_module *shadow_of_interest(uint64_t pc);
/* Remembers EXAMPLE if it is the first at its address.  */
void shadow_keep_example(const struct shadow_example *example);
void shadow_write_report(const char *name, int status);

/* --- shadow_process.c: the traced process --- */

/* Copies SIZE bytes; false where they are not there.  */
bool shadow_read(uint64_t address, void *to, size_t size);
uint64_t shadow_word(uint64_t address); /* 0 where it is not there */
/* Whether an instruction before ADDRESS can be a call.  */
bool shadow_is_behind_call(uint64_t address);
bool shadow_is_call(uint64_t pc);
bool shadow_is_return(uint64_t pc);
bool shadow_is_indirect_jump(uint64_t pc);
bool shadow_is_sigreturn(uint64_t pc);
uint64_t shadow_entry_point(void);
/* Makes the pages of all ranges; call it once.  */
void shadow_find_pages(void);
struct shadow_pages *shadow_pages_of(uint64_t address);
/* Lets PAGES be executed or not.  The process is stopped at a fault or after a
   step; its registers stay as they are.  */
void shadow_protect(struct shadow_pages *pages, bool is_open);
void shadow_protect_all(bool is_open);

/* --- shadow_stack.c: frames from execution --- */

struct shadow_frame *shadow_top(struct shadow_thread *thread);
void shadow_push(struct shadow_thread *thread, enum shadow_kind kind,
                 uint64_t cfa, uint64_t ra, uint64_t fp);
/* Follows the step from thread->before to NOW.  Returns true at the first
   instruction of a function that was called.  */
bool shadow_follow(struct shadow_thread *thread,
                   const struct user_regs_struct *now);
/* The program ran by itself and came to NOW.  Returns as shadow_follow.  */
bool shadow_enter(struct shadow_thread *thread,
                  const struct user_regs_struct *now);
/* Makes WALKER ready for the frame at NOW.  */
void shadow_begin_walk(struct sframe_walker *walker,
                       const struct sframe_modules *sections,
                       const struct user_regs_struct *now);
/* Compares the row for NOW with the thread's frame.  */
void shadow_compare(struct shadow_thread *thread,
                    const struct user_regs_struct *now);

#endif
