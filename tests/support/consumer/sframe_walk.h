/* SPDX-License-Identifier: Apache-2.0 */
/* A stack walker that knows nothing but the SFrame sections of the running
   process.  It is written from the SFrame manual and shares no code or tables
   with the encoder it checks.

   It reads versions 2 and 3 in the native byte order on AMD64, AArch64 and
   s390x.  Addresses are addresses of this process (load bias included).
   Nothing here allocates memory; sframe_walk_start and sframe_walk_step may be
   called from a signal handler, one walker at a time.  */

#ifndef SFRAME_WALK_H
#define SFRAME_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* DWARF numbers of the ABI's registers; where calls push RA, none holds it.  */
#if defined __x86_64__
enum {
  SFRAME_REGISTER_FP = 6,
  SFRAME_REGISTER_SP = 7,
  SFRAME_RA_HAS_REGISTER = 0
};
#elif defined __aarch64__
enum {
  SFRAME_REGISTER_FP = 29,
  SFRAME_REGISTER_RA = 30,
  SFRAME_REGISTER_SP = 31,
  SFRAME_RA_HAS_REGISTER = 1
};
#elif defined __s390x__
enum {
  SFRAME_REGISTER_FP = 11,
  SFRAME_REGISTER_RA = 14,
  SFRAME_REGISTER_SP = 15,
  SFRAME_RA_HAS_REGISTER = 1
};
#else
#error "no SFrame ABI is defined for this target"
#endif

/* Why a walk goes on or stops.  */
enum sframe_ending {
  SFRAME_STEPPED,         /* one frame further */
  SFRAME_NO_MODULE,       /* no loaded module holds the pc */
  SFRAME_NO_SECTION,      /* the module has no PT_GNU_SFRAME */
  SFRAME_BAD_SECTION,     /* header of the section refused */
  SFRAME_NO_FUNCTION,     /* no function of the section holds the pc */
  SFRAME_NO_ROW,          /* the function has no row for the pc */
  SFRAME_BAD_ROW,         /* the function's rows break the specification */
  SFRAME_BAD_MEMORY,      /* a stack slot cannot be read */
  SFRAME_UNSAFE_REGISTER, /* a rule needs a register whose value is not known */
  SFRAME_OUTERMOST,       /* RA undefined: the walk is complete */
  SFRAME_NULL_RA,         /* the recovered RA is 0 */
  SFRAME_LOOP,            /* the stack pointer does not move up */
  SFRAME_TOO_DEEP,        /* set by callers whose arrays are full */
  SFRAME_ENDING_COUNT
};

/* The name of ENDING in reports, such as "no_section".  */
const char *sframe_ending_name(enum sframe_ending ending);

/* A section whose header was checked.  Offsets count from its first byte.  */
struct sframe_section {
  const unsigned char *bytes;
  size_t size;
  uint8_t version;
  uint8_t flags;
  int8_t fixed_fp_offset; /* 0: none */
  int8_t fixed_ra_offset; /* 0: none */
  uint32_t function_count;
  size_t functions_offset;
  size_t rows_offset;
  size_t rows_size;
  uint64_t displacement; /* from BYTES to the section's place in the process that
                            it describes; 0: BYTES is that place */
  void *decoder; /* of another library; sframe_section.c needs none */
};

enum { SFRAME_MAX_WORDS = 15 };

/* One row together with what its function says about all rows.  */
struct sframe_row {
  uint64_t function_start; /* address */
  uint32_t function_size;  /* bytes */
  uint32_t start_delta;    /* of the row, from the function (or block) start */
  bool is_flexible;
  bool is_signal_frame;
  bool base_is_sp;  /* default rows only; else the base is FP */
  bool ra_is_signed; /* with a pointer authentication code */
  unsigned word_count;
  unsigned word_size;               /* bytes: 1, 2 or 4 */
  uint32_t words[SFRAME_MAX_WORDS]; /* zero-extended */
};

/* Checks the header of the SIZE bytes at BYTES, which must be readable and must
   be the section in the place where it is loaded.  Returns false, and leaves
   SECTION unusable, when the section is not one this walker can trust.  */
bool sframe_section_open(struct sframe_section *section, const void *bytes,
                         size_t size);

/* Finds the row for the instruction at address PC.  Returns SFRAME_STEPPED and
   fills ROW, or SFRAME_NO_FUNCTION, SFRAME_NO_ROW, SFRAME_BAD_ROW, or
   SFRAME_OUTERMOST for a function without rows (version 3).  Reads no byte
   outside the section.  */
enum sframe_ending sframe_find_row(const struct sframe_section *section,
                                   uint64_t pc, struct sframe_row *row);

enum { SFRAME_MAX_MODULES = 512 };

enum sframe_module_state {
  SFRAME_MODULE_WITHOUT, /* no PT_GNU_SFRAME */
  SFRAME_MODULE_BAD,
  SFRAME_MODULE_GOOD
};

struct sframe_module {
  const char *name; /* owned by the dynamic loader; "" is the program */
  uint64_t bias;
  uint64_t start; /* address of the lowest loaded byte */
  uint64_t end;   /* address behind the highest loaded byte */
  enum sframe_module_state state;
  struct sframe_section section; /* when state is SFRAME_MODULE_GOOD */
};

/* The loaded modules.  Zero-initialise it before the first refresh.  */
struct sframe_modules {
  unsigned count;
  unsigned dropped_count; /* modules beyond SFRAME_MAX_MODULES */
  unsigned long long adds;
  unsigned long long subs;
  struct sframe_module items[SFRAME_MAX_MODULES];
};

/* Brings MODULES up to date with dl_iterate_phdr; cheap when no module was
   loaded or unloaded since the last call.  */
void sframe_modules_refresh(struct sframe_modules *modules);

/* The module that holds address PC, or NULL.  */
const struct sframe_module *sframe_module_of(
    const struct sframe_modules *modules, uint64_t pc);

/* Copies SIZE bytes, at most SFRAME_BLOCK_SIZE, from ADDRESS of this process.
   Returns false when they cannot be read.  */
bool sframe_copy_memory(uint64_t address, void *to, size_t size);

enum { SFRAME_MAX_REGISTERS = 33 };

/* Register values by DWARF number.  */
struct sframe_registers {
  uint64_t known_mask; /* bit N: values[N] is known */
  uint64_t values[SFRAME_MAX_REGISTERS];
};

struct sframe_frame {
  uint64_t pc;
  uint64_t sp;
  uint64_t fp;
  uint64_t ra;       /* link register; AArch64 and s390x */
  bool is_topmost;   /* the registers of the walker belong to this frame */
  bool ra_is_known;
  bool pc_is_exact;  /* pc is the next instruction, not a return address */
};

enum { SFRAME_BLOCK_SIZE = 4096 };

struct sframe_walker {
  /* Return addresses are looked up themselves, as the kernel's and glibc's code
     do, not the calls before them.  Set it before a walk starts.  */
  bool looks_up_ra;
  const struct sframe_modules *modules;
  struct sframe_registers registers; /* of the topmost frame */
  struct sframe_frame frame;
  uint64_t block_start; /* address of the cached stack bytes; 1: none */
  unsigned char block[SFRAME_BLOCK_SIZE];
};

/* Starts a walk at the registers of UCONTEXT, the third argument of a signal
   handler.  MODULES must be up to date and outlive the walk.  */
void sframe_walk_start(struct sframe_walker *walker,
                       const struct sframe_modules *modules,
                       const void *ucontext);

/* Replaces walker->frame by its caller's and returns SFRAME_STEPPED, or leaves
   it alone and returns the reason.  */
enum sframe_ending sframe_walk_step(struct sframe_walker *walker);

#endif
