/* SPDX-License-Identifier: Apache-2.0 */
/* What this process holds: its loaded modules with their SFrame sections, and
   memory that may or may not be there.  */

#define _GNU_SOURCE
#include "sframe_walk.h"

#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef PT_GNU_SFRAME
#define PT_GNU_SFRAME 0x6474e554
#endif

/* --- Loaded modules --- */

/* True when the SIZE bytes at module address VADDR are backed by a readable
   segment of the module, so that reading them cannot fault.  */
static bool is_loaded(const struct dl_phdr_info *info, uint64_t vaddr,
                      uint64_t size)
{
  unsigned index;

  for (index = 0; index < info->dlpi_phnum; index++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[index];
    if (segment->p_type == PT_LOAD && (segment->p_flags & PF_R) != 0
        && vaddr >= segment->p_vaddr && size <= segment->p_filesz
        && vaddr - segment->p_vaddr <= segment->p_filesz - size)
      return true;
  }
  return false;
}

static void describe_module(const struct dl_phdr_info *info,
                            struct sframe_module *module)
{
  const ElfW(Phdr) *sframe = NULL;
  uint64_t low = UINT64_MAX, high = 0;
  unsigned index;

  memset(module, 0, sizeof *module);
  module->name = info->dlpi_name;
  module->bias = info->dlpi_addr;
  for (index = 0; index < info->dlpi_phnum; index++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[index];
    if (segment->p_type == PT_GNU_SFRAME)
      sframe = segment;
    if (segment->p_type != PT_LOAD)
      continue;
    if (segment->p_vaddr < low)
      low = segment->p_vaddr;
    if (segment->p_vaddr + segment->p_memsz > high)
      high = segment->p_vaddr + segment->p_memsz;
  }
  if (low < high) {
    module->start = module->bias + low;
    module->end = module->bias + high;
  }
  if (sframe == NULL)
    module->state = SFRAME_MODULE_WITHOUT;
  else if (is_loaded(info, sframe->p_vaddr, sframe->p_memsz)
           && sframe_section_open(
               &module->section,
               (const void *)(uintptr_t)(info->dlpi_addr + sframe->p_vaddr),
               sframe->p_memsz))
    module->state = SFRAME_MODULE_GOOD;
  else
    module->state = SFRAME_MODULE_BAD;
}

static int visit_module(struct dl_phdr_info *info, size_t size, void *data)
{
  struct sframe_modules *modules = data;

  (void)size;
  if (modules->count == 0 && modules->dropped_count == 0) {
    modules->adds = info->dlpi_adds;
    modules->subs = info->dlpi_subs;
  }
  if (modules->count < SFRAME_MAX_MODULES)
    describe_module(info, &modules->items[modules->count++]);
  else
    modules->dropped_count++;
  return 0;
}

static int is_unchanged(struct dl_phdr_info *info, size_t size, void *data)
{
  const struct sframe_modules *modules = data;

  (void)size;
  return modules->adds == info->dlpi_adds && modules->subs == info->dlpi_subs
             ? 1
             : -1;
}

void sframe_modules_refresh(struct sframe_modules *modules)
{
  if (modules->count > 0 && dl_iterate_phdr(is_unchanged, modules) == 1)
    return;
  modules->count = 0;
  modules->dropped_count = 0;
  dl_iterate_phdr(visit_module, modules);
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

bool sframe_copy_memory(uint64_t address, void *to, size_t size)
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
