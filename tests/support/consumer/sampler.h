/* SPDX-License-Identifier: Apache-2.0 */
/* What the sampler counts and its report writes.  */

#ifndef SAMPLER_H
#define SAMPLER_H

#include "sframe_walk.h"

#include <stdio.h>
#include <sys/types.h>

enum {
  MAX_STOPS = 1024,
  MAX_EXAMPLES = 32,
  MAX_WINDOW = 24, /* frames kept of an example */
  MAX_NAMES = 256,
  MAX_NAME_SIZE = 256,
  NO_NAME = -1
};

enum outcome {
  OUTCOME_EQUAL,     /* the same list of pcs */
  OUTCOME_ENDED,     /* SFrame ended early, for a reason that is no error */
  OUTCOME_LONGER,    /* backtrace() ended early */
  OUTCOME_DIFFERENT, /* anything else */
  OUTCOME_UNALIGNED, /* backtrace() did not reach the interrupted pc */
  OUTCOME_FAULTED,   /* backtrace() faulted; the same list until then */
  OUTCOME_COUNT
};

/* A pc and where it lies; OFFSET is the address in the module's file.  */
struct place {
  uint64_t pc;
  uint64_t offset;
  int name_index;
};

/* A pc at which SFrame walks ended.  */
struct stop {
  enum sframe_ending ending;
  enum outcome outcome;
  struct place place;
  unsigned long count;
};

/* The surroundings of the first pc that two lists do not share.  */
struct example {
  enum outcome outcome;
  enum sframe_ending ending;
  unsigned first_difference; /* frame number, 0 is the interrupted one */
  unsigned window_start;     /* frame number of the first place kept */
  unsigned walk_count, trace_count; /* of the full lists */
  unsigned walk_kept, trace_kept;
  struct place walk[MAX_WINDOW];
  struct place trace[MAX_WINDOW];
};

/* Everything the report says.  */
struct results {
  pid_t owner;
  unsigned long samples;
  unsigned long dropped_samples; /* another thread was being walked */
  unsigned long frames; /* stepped by SFrame */
  unsigned long outcomes[OUTCOME_COUNT];
  unsigned long endings[SFRAME_ENDING_COUNT];
  unsigned long lost_stops;
  unsigned stop_count;
  unsigned example_count;
  struct stop stops[MAX_STOPS];
  struct example examples[MAX_EXAMPLES];
  char names[MAX_NAMES][MAX_NAME_SIZE]; /* of modules */
  int name_count;
};

/* Writes the report as JSON lines to OUT.  MODULES must be up to date.  */
void sampler_put_report(FILE *out, const struct results *results,
                        const struct sframe_modules *modules);

#endif
