/* SPDX-License-Identifier: Apache-2.0 */
/* The traced process: its memory, its instructions as far as calls and returns
   go, and the protection of its pages.  */

#define _GNU_SOURCE
#include "shadow.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { MAX_PAGES = 4096 };

static struct shadow_pages pages[MAX_PAGES];
static unsigned pages_count;

/* --- Memory --- */

bool shadow_read(uint64_t address, void *to, size_t size)
{
  struct iovec local = {to, size};
  struct iovec remote = {(void *)(uintptr_t)address, size};

  return process_vm_readv(shadow_pid, &local, 1, &remote, 1, 0)
         == (ssize_t)size;
}

bool sframe_copy_memory(uint64_t address, void *to, size_t size)
{
  return shadow_read(address, to, size);
}

uint64_t shadow_word(uint64_t address)
{
  uint64_t word = 0;

  return shadow_read(address, &word, sizeof word) ? word : 0;
}

const struct sframe_module *sframe_module_of(
    const struct sframe_modules *modules, uint64_t pc)
{
  unsigned index;

  for (index = 0; index < modules->count; index++)
    if (pc >= modules->items[index].start && pc < modules->items[index].end)
      return &modules->items[index];
  return NULL;
}

void shadow_begin_walk(struct sframe_walker *walker,
                       const struct sframe_modules *sections,
                       const struct user_regs_struct *now)
{
  const uint64_t values[] = {now->rax, now->rdx, now->rcx, now->rbx,
                             now->rsi, now->rdi, now->rbp, now->rsp,
                             now->r8,  now->r9,  now->r10, now->r11,
                             now->r12, now->r13, now->r14, now->r15};

  memset(&walker->frame, 0, sizeof walker->frame);
  walker->modules = sections;
  walker->block_start = 1;
  memcpy(walker->registers.values, values, sizeof values);
  walker->registers.known_mask = 0xffff;
  walker->frame.pc = now->rip;
  walker->frame.sp = now->rsp;
  walker->frame.fp = now->rbp;
  walker->frame.is_topmost = true;
  walker->frame.pc_is_exact = true;
}

uint64_t shadow_entry_point(void)
{
  char name[64];
  Elf64_auxv_t item;
  uint64_t found = 0;
  FILE *file;

  snprintf(name, sizeof name, "/proc/%d/auxv", (int)shadow_pid);
  file = fopen(name, "rb");
  if (file == NULL)
    shadow_end(SHADOW_BROKEN, "cannot read %s", name);
  while (fread(&item, sizeof item, 1, file) == 1)
    if (item.a_type == AT_ENTRY)
      found = item.a_un.a_val;
  fclose(file);
  return found;
}

/* --- Instructions --- */

/* The bytes at PC behind their prefixes; no operand of a call, and nothing of a
   return, matters here.  */
static const unsigned char *opcode_at(uint64_t pc, unsigned char bytes[16])
{
  unsigned index = 0;

  memset(bytes, 0, 16);
  if (!shadow_read(pc, bytes, 15) && !shadow_read(pc, bytes, 2))
    return bytes;
  while (index < 12
         && (bytes[index] == 0x66 || bytes[index] == 0x3e
             || bytes[index] == 0x2e || bytes[index] == 0x67
             || bytes[index] == 0xf2 || bytes[index] == 0xf3
             || (bytes[index] & 0xf0) == 0x40))
    index++;
  return bytes + index;
}

bool shadow_is_call(uint64_t pc)
{
  unsigned char bytes[16];
  const unsigned char *opcode = opcode_at(pc, bytes);

  return opcode[0] == 0xe8
         || (opcode[0] == 0xff && (opcode[1] >> 3 & 7) == 2);
}

bool shadow_is_return(uint64_t pc)
{
  unsigned char bytes[16];
  const unsigned char *opcode = opcode_at(pc, bytes);

  return opcode[0] == 0xc3 || opcode[0] == 0xc2;
}

bool shadow_is_indirect_jump(uint64_t pc)
{
  unsigned char bytes[16];
  const unsigned char *opcode = opcode_at(pc, bytes);

  return opcode[0] == 0xff && (opcode[1] >> 3 & 7) == 4;
}

bool shadow_is_behind_call(uint64_t address)
{
  unsigned char bytes[7];
  unsigned size;

  if (address < sizeof bytes
      || !shadow_read(address - sizeof bytes, bytes, sizeof bytes))
    return false;
  if (bytes[2] == 0xe8)
    return true;
  for (size = 2; size <= 7; size++) {
    unsigned char code = bytes[7 - size], mode = bytes[8 - size];
    unsigned expected = 2;
    if (code != 0xff || (mode >> 3 & 7) != 2)
      continue;
    if (mode >> 6 != 3 && (mode & 7) == 4)
      expected++;
    if (mode >> 6 == 1)
      expected++;
    if (mode >> 6 == 2 || (mode & 0xc7) == 5)
      expected += 4;
    if (mode >> 6 == 0 && (mode & 7) == 4 && (bytes[9 - size] & 7) == 5)
      expected += 4;
    if (expected == size)
      return true;
  }
  return false;
}

bool shadow_is_sigreturn(uint64_t pc)
{
  static const unsigned char code[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0,
                                       0x0f, 0x05};
  unsigned char found[sizeof code];

  return shadow_read(pc, found, sizeof found)
         && memcmp(found, code, sizeof code) == 0;
}

/* --- Pages --- */

void shadow_find_pages(void)
{
  unsigned index, number;

  for (index = 0; index < shadow_module_count; index++) {
    const struct shadow_module *module = &shadow_modules[index];
    if (!module->is_loaded)
      continue;
    for (number = 0; number < module->range_count; number++) {
      uint64_t start = module->ranges[number].start + module->bias;
      uint64_t end = module->ranges[number].end + module->bias;
      start &= -(uint64_t)SHADOW_PAGE;
      end = (end + SHADOW_PAGE - 1) & -(uint64_t)SHADOW_PAGE;
      if (pages_count > 0 && pages[pages_count - 1].end >= start
          && pages[pages_count - 1].start <= start) {
        if (pages[pages_count - 1].end < end)
          pages[pages_count - 1].end = end;
      } else if (pages_count == MAX_PAGES)
        shadow_end(SHADOW_BROKEN, "the ranges are in too many places");
      else
        pages[pages_count++] = (struct shadow_pages){start, end, true};
    }
  }
}

struct shadow_pages *shadow_pages_of(uint64_t address)
{
  unsigned index;

  for (index = 0; index < pages_count; index++)
    if (address >= pages[index].start && address < pages[index].end)
      return &pages[index];
  return NULL;
}

/* A system call instruction of the process, in the vDSO.  */
static uint64_t find_syscall(void)
{
  static uint64_t found;
  char name[64], line[512];
  unsigned long start, end;
  FILE *file;

  if (found != 0)
    return found;
  snprintf(name, sizeof name, "/proc/%d/maps", (int)shadow_pid);
  file = fopen(name, "r");
  if (file == NULL)
    shadow_end(SHADOW_BROKEN, "cannot read %s", name);
  while (found == 0 && fgets(line, sizeof line, file) != NULL) {
    unsigned char *bytes;
    size_t index;
    if (strstr(line, "[vdso]") == NULL
        || sscanf(line, "%lx-%lx", &start, &end) != 2)
      continue;
    bytes = malloc(end - start);
    if (bytes != NULL && shadow_read(start, bytes, end - start))
      for (index = 0; found == 0 && index + 1 < end - start; index++)
        if (bytes[index] == 0x0f && bytes[index + 1] == 0x05)
          found = start + index;
    free(bytes);
  }
  fclose(file);
  if (found == 0)
    shadow_end(SHADOW_BROKEN, "the vDSO has no system call");
  return found;
}

void shadow_protect(struct shadow_pages *of, bool is_open)
{
  struct user_regs_struct saved, registers;
  int status;

  if (of->is_open == is_open)
    return;
  if (ptrace(PTRACE_GETREGS, shadow_pid, NULL, &saved) != 0)
    shadow_end(SHADOW_BROKEN, "cannot read registers");
  registers = saved;
  registers.rip = find_syscall();
  registers.rax = SYS_mprotect;
  registers.orig_rax = ~0ull;
  registers.rdi = of->start;
  registers.rsi = of->end - of->start;
  registers.rdx = is_open ? PROT_READ | PROT_EXEC : PROT_READ;
  if (ptrace(PTRACE_SETREGS, shadow_pid, NULL, &registers) != 0
      || ptrace(PTRACE_SINGLESTEP, shadow_pid, NULL, NULL) != 0
      || waitpid(shadow_pid, &status, __WALL) != shadow_pid
      || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP
      || ptrace(PTRACE_GETREGS, shadow_pid, NULL, &registers) != 0
      || registers.rax != 0)
    shadow_end(SHADOW_BROKEN, "cannot change the protection of pages");
  saved.orig_rax = ~0ull;
  if (ptrace(PTRACE_SETREGS, shadow_pid, NULL, &saved) != 0)
    shadow_end(SHADOW_BROKEN, "cannot set registers");
  of->is_open = is_open;
}

void shadow_protect_all(bool is_open)
{
  unsigned index;

  for (index = 0; index < pages_count; index++)
    shadow_protect(&pages[index], is_open);
}
