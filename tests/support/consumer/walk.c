/* SPDX-License-Identifier: Apache-2.0 */
/* A stack walker that knows nothing but the SFrame sections of the running
   process.  It is written from docs/writing-a-reader.md and shares no code or
   tables with the encoder it checks.

   Nothing here allocates memory; start_walk and step may be called from a
   signal handler, one walker at a time.  */

#define _GNU_SOURCE
#include "reader.c"

#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef PT_GNU_SFRAME
#define PT_GNU_SFRAME 0x6474e554
#endif

/* DWARF numbers of the ABI's registers; where calls push RA, none holds it.  */
#if defined __x86_64__
enum { FP = 6, SP = 7, RA = -1 };
#elif defined __aarch64__
enum { FP = 29, SP = 31, RA = 30 };
#elif defined __s390x__
enum { FP = 11, SP = 15, RA = 14 };
#else
#error "no SFrame ABI is defined for this target"
#endif

enum { MAX_MODULES = 512, MAX_REGISTERS = 33, BLOCK_SIZE = 4096 };

/* Why a walk goes on or stops, as reports have it.  */
enum ending {
  STEPPED,         /* one frame further */
  NO_MODULE,       /* no loaded module holds the pc */
  NO_SECTION,      /* the module has no PT_GNU_SFRAME */
  BAD_SECTION,     /* not one that the reader knows */
  NO_FUNCTION,     /* the section has no row for the pc */
  BAD_ROW,         /* the row has no CFA */
  BAD_MEMORY,      /* a stack slot cannot be read */
  UNSAFE_REGISTER, /* a rule needs a register whose value is not known */
  OUTERMOST,       /* RA undefined: the walk is complete */
  NULL_RA,         /* the recovered RA is 0 */
  LOOP,            /* the stack pointer does not move up */
  TOO_DEEP         /* set by callers whose arrays are full */
};
static const char *const ending_names[] = {
    "stepped",    "no_module",       "no_section", "bad_section", "no_function", "bad_row",
    "bad_memory", "unsafe_register", "outermost",  "null_ra",     "loop",        "too_deep"};

struct module {
  const char *name; /* owned by the dynamic loader; "" is the program */
  uint64_t bias;
  uint64_t start, end; /* addresses of the lowest loaded byte, and past the highest */
  const uint8_t *section; /* NULL: none */
  uint64_t section_size;
};

static struct {
  unsigned count;
  unsigned long long adds, subs;
  struct module items[MAX_MODULES];
} modules;

struct frame {
  uint64_t pc, sp, fp;
  bool is_topmost;  /* the registers of the walker belong to this frame */
  bool pc_is_exact; /* pc is the next instruction, not a return address */
};

static struct {
  /* Return addresses are looked up themselves, as the kernel's and glibc's code
     do, not the calls before them.  */
  bool looks_up_ra;
  uint64_t known_mask, registers[MAX_REGISTERS]; /* of the topmost frame, by DWARF's numbers */
  struct frame frame;
  uint64_t block_start; /* address of the cached stack bytes; 1: none */
  uint8_t block[BLOCK_SIZE];
} walker;

/* --- Loaded modules --- */

/* True when the SIZE bytes at module address VADDR are in a readable segment,
   so that reading them cannot fault.  */
static bool is_loaded(const struct dl_phdr_info *info, uint64_t vaddr,
                      uint64_t size)
{
  for (unsigned index = 0; index < info->dlpi_phnum; index++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[index];
    if (segment->p_type == PT_LOAD && (segment->p_flags & PF_R) != 0
        && vaddr >= segment->p_vaddr && size <= segment->p_filesz
        && vaddr - segment->p_vaddr <= segment->p_filesz - size)
      return true;
  }
  return false;
}

static int add_module(struct dl_phdr_info *info, size_t size, void *data)
{
  struct module *module = &modules.items[modules.count];

  (void)size;
  (void)data;
  if (modules.count == MAX_MODULES)
    return 1;
  modules.count++;
  modules.adds = info->dlpi_adds;
  modules.subs = info->dlpi_subs;
  *module = (struct module){info->dlpi_name, info->dlpi_addr, UINT64_MAX, 0, NULL, 0};
  for (unsigned index = 0; index < info->dlpi_phnum; index++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[index];
    uint64_t start = info->dlpi_addr + segment->p_vaddr;
    if (segment->p_type == PT_GNU_SFRAME && is_loaded(info, segment->p_vaddr, segment->p_memsz)) {
      module->section = (const uint8_t *)(uintptr_t)start;
      module->section_size = segment->p_memsz;
    }
    if (segment->p_type == PT_LOAD && start < module->start)
      module->start = start;
    if (segment->p_type == PT_LOAD && start + segment->p_memsz > module->end)
      module->end = start + segment->p_memsz;
  }
  return 0;
}

static int is_unchanged(struct dl_phdr_info *info, size_t size, void *data)
{
  (void)size;
  (void)data;
  return modules.adds == info->dlpi_adds && modules.subs == info->dlpi_subs ? 1 : -1;
}

/* Brings the list up to date; returns whether it has changed.  */
static bool refresh_modules(void)
{
  if (modules.count > 0 && dl_iterate_phdr(is_unchanged, NULL) == 1)
    return false;
  modules.count = 0;
  dl_iterate_phdr(add_module, NULL);
  return true;
}

static const struct module *module_of(uint64_t pc)
{
  for (unsigned index = 0; index < modules.count; index++)
    if (pc >= modules.items[index].start && pc < modules.items[index].end)
      return &modules.items[index];
  return NULL;
}

/* --- Memory of this process that may not be there --- */

/* Copies through a pipe: write() reports a bad address instead of faulting.  */
static bool copy_through_pipe(uint64_t address, void *to, size_t size)
{
  static int ends[2] = {-1, -1};
  ssize_t got;

  if (ends[0] < 0 && pipe(ends) != 0)
    return false;
  got = write(ends[1], (const void *)(uintptr_t)address, size);
  if (got <= 0)
    return false;
  return read(ends[0], to, (size_t)got) == got && (size_t)got == size;
}

static bool copy_memory(uint64_t address, void *to, size_t size)
{
  struct iovec local = {to, size};
  struct iovec remote = {(void *)(uintptr_t)address, size};

  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)size)
    return true;
  /* Sandboxes may forbid the call, emulators may lack it.  */
  if (errno == ENOSYS || errno == EPERM)
    return copy_through_pipe(address, to, size);
  return false;
}

static enum ending load(uint64_t address, uint64_t *value)
{
  uint64_t offset = address % BLOCK_SIZE;

  if (offset > BLOCK_SIZE - sizeof *value)
    return copy_memory(address, value, sizeof *value) ? STEPPED : BAD_MEMORY;
  if (walker.block_start != address - offset) {
    walker.block_start = 1;
    if (!copy_memory(address - offset, walker.block, BLOCK_SIZE))
      return BAD_MEMORY;
    walker.block_start = address - offset;
  }
  memcpy(value, walker.block + offset, sizeof *value);
  return STEPPED;
}

/* --- The first frame, from the registers of a signal context --- */

static void set_register(unsigned number, uint64_t value)
{
  walker.known_mask |= (uint64_t)1 << number;
  walker.registers[number] = value;
}

static void start_walk(const void *ucontext)
{
  const mcontext_t *machine = &((const ucontext_t *)ucontext)->uc_mcontext;
  struct frame *frame = &walker.frame;
  unsigned number;

  walker.known_mask = 0;
  walker.block_start = 1;
#if defined __x86_64__
  static const unsigned char order[16] = {
      REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP,
      REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  for (number = 0; number < 16; number++)
    set_register(number, (uint64_t)machine->gregs[order[number]]);
  frame->pc = (uint64_t)machine->gregs[REG_RIP];
#elif defined __aarch64__
  for (number = 0; number < 31; number++)
    set_register(number, machine->regs[number]);
  set_register(SP, machine->sp);
  frame->pc = machine->pc;
#else
  static const unsigned char order[16] = {0, 2,  4,  6,  1, 3,  5,  7,
                                          8, 10, 12, 14, 9, 11, 13, 15};
  for (number = 0; number < 16; number++) {
    uint64_t bits;
    memcpy(&bits, &machine->fpregs.fprs[order[number]], sizeof bits);
    set_register(number, machine->gregs[number]);
    set_register(16 + number, bits);
  }
  frame->pc = machine->psw.addr;
#endif
  frame->sp = walker.registers[SP];
  frame->fp = walker.registers[FP];
  frame->is_topmost = true;
  frame->pc_is_exact = true;
}

/* --- One step --- */

/* SP and FP are known in every frame, the others in the topmost one.  */
static enum ending get_register(uint32_t number, uint64_t *value)
{
  if (number == SP)
    *value = walker.frame.sp;
  else if (number == FP)
    *value = walker.frame.fp;
  else if (walker.frame.is_topmost && number < MAX_REGISTERS && (walker.known_mask >> number & 1) != 0)
    *value = walker.registers[number];
  else
    return UNSAFE_REGISTER;
  return STEPPED;
}

static enum ending apply(const struct rule *rule, uint64_t cfa, uint64_t *value)
{
  enum ending ending = STEPPED;

  *value = cfa;
  if (rule->from_register)
    ending = get_register(rule->number, value);
  *value += (uint64_t)rule->offset;
  return ending == STEPPED && rule->load ? load(*value, value) : ending;
}

/* Version 2 has no signal-frame bit: a function that holds the kernel's
   sigreturn sequence at the return address is the frame of a handler.  */
static bool is_sigreturn_code(uint64_t pc)
{
#if defined __x86_64__
  static const unsigned char code[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05};
#elif defined __aarch64__
  static const unsigned char code[] = {0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4};
#else
  static const unsigned char code[] = {0x0a, 0xad};
#endif
  unsigned char found[sizeof code];

  return copy_memory(pc, found, sizeof found) && memcmp(found, code, sizeof code) == 0;
}

static uint64_t without_signature(uint64_t ra)
{
#if defined __aarch64__
  register uint64_t x30 __asm__("x30") = ra;
  __asm__("hint #7" : "+r"(x30)); /* xpaclri; does nothing on older machines */
  return x30;
#else
  return ra;
#endif
}

/* Replaces the frame by its caller's and returns STEPPED, or leaves it alone
   and returns the reason.  */
static enum ending step(void)
{
  struct frame *frame = &walker.frame;
  /* A return address may lie past its call's function or row.  */
  uint64_t pc = frame->pc_is_exact || walker.looks_up_ra ? frame->pc : frame->pc - 1;
  const struct module *module = module_of(pc);
  uint64_t cfa, ra, fp = frame->fp, sp;
  bool is_signal, keeps_ra;
  enum ending ending;
  struct row row;

  if (module == NULL)
    return NO_MODULE;
  if (module->section == NULL)
    return NO_SECTION;
  if (!is_section(module->section, module->section_size))
    return BAD_SECTION;
  if (!find_row(module->section, module->section_size, (uintptr_t)module->section, pc, SP, FP, &row))
    return NO_FUNCTION;
  if (row.outermost)
    return OUTERMOST;
  if (!row.rules[0].is_given)
    return BAD_ROW;
  ending = apply(&row.rules[0], 0, &cfa);
  if (ending != STEPPED)
    return ending;
  keeps_ra = !row.rules[1].is_given;
  /* Only a frame that made no call can still have it in the register.  */
  ending = keeps_ra ? get_register((uint32_t)RA, &ra) : apply(&row.rules[1], cfa, &ra);
  if (ending == STEPPED && row.rules[2].is_given)
    ending = apply(&row.rules[2], cfa, &fp);
  if (ending != STEPPED)
    return ending;
#if defined __s390x__
  sp = cfa - 160;
#else
  sp = cfa;
#endif
  is_signal = row.signal || (module->section[2] == 2 && is_sigreturn_code(frame->pc));
  /* Stacks grow down, so each caller's SP is higher.  A handler may run on a
     stack of its own, and a topmost frame may own no stack at all where calls
     do not push.  */
  if (!is_signal && sp <= frame->sp && !(RA > 0 && frame->is_topmost && sp == frame->sp))
    return LOOP;
  if (row.ra_signed)
    ra = without_signature(ra);
  if (ra == 0)
    return NULL_RA;
  *frame = (struct frame){ra, sp, fp, false, is_signal};
  return STEPPED;
}
