/* SPDX-License-Identifier: Apache-2.0 */
/* Which files and addresses are of interest, where they lie in the process, and
   what was met there.

   A job is a text file of lines; addresses are vaddrs, hexadecimal:
     module PATH SECTION-FILE SECTION-VADDR     a file, and its SFrame section
     range START END                            of the module above  */

#define _GNU_SOURCE
#include "shadow.h"

#include <elf.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct shadow_module shadow_modules[SHADOW_MAX_MODULES];
unsigned shadow_module_count;
struct sframe_modules shadow_sections;
struct shadow_sums shadow_sums;

static struct shadow_example examples[SHADOW_MAX_EXAMPLES];
static unsigned example_count;

/* Zeroed memory that costs nothing before it is used.  */
static void *zeroed(size_t size)
{
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

  if (memory == MAP_FAILED)
    shadow_end(SHADOW_BROKEN, "out of memory");
  return memory;
}

/* Opens the section in the file NAME, as it is loaded at VADDR.  */
static void open_section(struct sframe_module *of, const char *name,
                         uint64_t vaddr)
{
  FILE *file = fopen(name, "rb");
  long size;
  void *bytes;

  of->state = SFRAME_MODULE_WITHOUT;
  if (file == NULL || fseek(file, 0, SEEK_END) != 0)
    shadow_end(SHADOW_BROKEN, "cannot read %s", name);
  size = ftell(file);
  rewind(file);
  bytes = zeroed((size_t)size + 1);
  if (fread(bytes, 1, (size_t)size, file) != (size_t)size)
    shadow_end(SHADOW_BROKEN, "cannot read %s", name);
  fclose(file);
  if (size == 0)
    return;
  if (!sframe_section_open(&of->section, bytes, (size_t)size))
    shadow_end(SHADOW_BROKEN, "the section %s is refused", name);
  of->section.displacement = vaddr - (uint64_t)(uintptr_t)bytes;
  of->state = SFRAME_MODULE_GOOD;
}

static void add_range(struct shadow_module *module, uint64_t start,
                      uint64_t end)
{
  unsigned count = module->range_count;

  if (start >= end || (count > 0 && module->ranges[count - 1].end > start))
    shadow_end(SHADOW_BROKEN, "ranges do not ascend at %" PRIx64, start);
  if ((count & (count - 1)) == 0) {
    size_t size = (count == 0 ? 1 : 2 * (size_t)count) * sizeof *module->ranges;
    module->ranges = realloc(module->ranges, size);
    if (module->ranges == NULL)
      shadow_end(SHADOW_BROKEN, "out of memory");
  }
  module->ranges[module->range_count++] = (struct shadow_range){start, end};
}

void shadow_read_job(const char *name)
{
  FILE *file = fopen(name, "r");
  struct shadow_module *module = NULL;
  char line[2048], section[1024];
  uint64_t start, end;
  unsigned index;

  if (file == NULL)
    shadow_end(SHADOW_BROKEN, "cannot read %s", name);
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "range %" SCNx64 " %" SCNx64, &start, &end) == 2
        && module != NULL)
      add_range(module, start, end);
    else if (shadow_module_count < SHADOW_MAX_MODULES) {
      module = &shadow_modules[shadow_module_count];
      if (sscanf(line, "module %511s %1023s %" SCNx64, module->path, section,
                 &start) != 3)
        shadow_end(SHADOW_BROKEN, "bad line in %s: %s", name, line);
      open_section(&shadow_sections.items[shadow_module_count++], section,
                   start);
    } else
      shadow_end(SHADOW_BROKEN, "too many modules");
  }
  fclose(file);
  shadow_sections.count = shadow_module_count;
  for (index = 0; index < shadow_module_count; index++) {
    module = &shadow_modules[index];
    if (module->range_count == 0)
      continue;
    module->low = module->ranges[0].start;
    module->high = module->ranges[module->range_count - 1].end;
    module->counts =
        zeroed((module->high - module->low) * sizeof *module->counts);
    module->entries =
        zeroed((module->high - module->low) * sizeof *module->entries);
  }
}

/* The vaddr of the byte at FILE_OFFSET, which an executable or other segment
   starts with or holds.  */
static bool vaddr_of(const char *path, uint64_t file_offset, uint64_t *vaddr)
{
  FILE *file = fopen(path, "rb");
  Elf64_Ehdr header;
  Elf64_Phdr segment;
  unsigned index;
  bool is_found = false;

  if (file == NULL)
    return false;
  if (fread(&header, sizeof header, 1, file) == 1)
    for (index = 0; !is_found && index < header.e_phnum; index++) {
      long at = (long)header.e_phoff + (long)index * header.e_phentsize;
      uint64_t page = -(uint64_t)SHADOW_PAGE;
      if (fseek(file, at, SEEK_SET) != 0
          || fread(&segment, sizeof segment, 1, file) != 1)
        break;
      if (segment.p_type == PT_LOAD
          && file_offset == (segment.p_offset & page)) {
        *vaddr = segment.p_vaddr & page;
        is_found = true;
      }
    }
  fclose(file);
  return is_found;
}

void shadow_locate_modules(void)
{
  char name[64], line[1024], path[512];
  unsigned long start, end, offset;
  FILE *file;

  snprintf(name, sizeof name, "/proc/%d/maps", (int)shadow_pid);
  file = fopen(name, "r");
  if (file == NULL)
    shadow_end(SHADOW_BROKEN, "cannot read %s", name);
  while (fgets(line, sizeof line, file) != NULL) {
    unsigned index;
    uint64_t vaddr;
    if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %511s", &start, &end, &offset,
               path) != 4)
      continue;
    for (index = 0; index < shadow_module_count; index++) {
      struct shadow_module *module = &shadow_modules[index];
      struct sframe_module *section = &shadow_sections.items[index];
      if (strcmp(path, module->path) != 0)
        continue;
      if (!module->is_loaded && vaddr_of(path, offset, &vaddr)) {
        module->bias = start - vaddr;
        module->is_loaded = true;
        section->name = module->path;
        section->bias = module->bias;
        section->start = start;
        section->section.displacement += module->bias;
      }
      section->end = end;
    }
  }
  fclose(file);
}

struct shadow_module *shadow_of_interest(uint64_t pc)
{
  unsigned index;

  for (index = 0; index < shadow_module_count; index++) {
    struct shadow_module *module = &shadow_modules[index];
    uint64_t vaddr = pc - module->bias;
    unsigned low = 0, high = module->range_count;
    if (!module->is_loaded || vaddr < module->low || vaddr >= module->high)
      continue;
    while (low < high) {
      unsigned middle = low + (high - low) / 2;
      if (vaddr >= module->ranges[middle].end)
        low = middle + 1;
      else
        high = middle;
    }
    if (low < module->range_count && vaddr >= module->ranges[low].start)
      return module;
  }
  return NULL;
}

void shadow_keep_example(const struct shadow_example *example)
{
  unsigned index;

  for (index = 0; index < example_count; index++)
    if (examples[index].pc == example->pc)
      return;
  if (example_count < SHADOW_MAX_EXAMPLES)
    examples[example_count++] = *example;
}

static void put_example(FILE *file, const struct shadow_example *example)
{
  fprintf(file,
          "{\"record\": \"example\", \"path\": \"%s\", \"vaddr\": %" PRIu64
          ", \"ending\": \"%s\", \"sp\": %" PRIu64 ", \"fp\": %" PRIu64,
          example->module->path, example->pc - example->module->bias,
          sframe_ending_name(example->ending), example->sp, example->fp);
  fprintf(file,
          ", \"want\": [%" PRIu64 ", %" PRIu64 ", %" PRIu64
          "], \"got\": [%" PRIu64 ", %" PRIu64 ", %" PRIu64 "]}\n",
          example->want.cfa, example->want.ra, example->want.fp,
          example->got.cfa, example->got.ra, example->got.fp);
}

static void put_counts(FILE *file, const struct shadow_module *module)
{
  uint64_t index;

  for (index = 0; index < module->high - module->low; index++) {
    const struct shadow_count *count = &module->counts[index];
    if (count->steps == 0)
      continue;
    fprintf(file,
            "{\"record\": \"pc\", \"path\": \"%s\", \"vaddr\": %" PRIu64
            ", \"steps\": %u, \"without_row\": %u, \"unknown\": %u"
            ", \"differing\": %u}\n",
            module->path, module->low + index, count->steps,
            count->without_row, count->unknown, count->differing);
  }
}

void shadow_write_report(const char *name, int status)
{
  FILE *file = fopen(name, "w");
  const struct shadow_sums *sums = &shadow_sums;
  unsigned index;

  if (file == NULL)
    shadow_end(SHADOW_BROKEN, "cannot write %s", name);
  fprintf(file, "{\"record\": \"summary\", \"status\": %d", status);
#define PUT(FIELD) fprintf(file, ", \"" #FIELD "\": %" PRIu64, sums->FIELD)
  PUT(steps);
  PUT(all_steps);
  PUT(equal);
  PUT(differing);
  PUT(without_row);
  PUT(unknown);
  PUT(fp_by_caller);
  PUT(right_calls);
  PUT(unsafe_calls);
  PUT(calls);
  PUT(returns);
  PUT(other_returns);
  PUT(abandoned);
  PUT(signals);
  PUT(entries);
  PUT(unknown_entries);
  PUT(let_run);
  PUT(windows);
#undef PUT
  fprintf(file, "}\n");
  for (index = 0; index < shadow_module_count; index++)
    if (shadow_modules[index].is_loaded)
      put_counts(file, &shadow_modules[index]);
  for (index = 0; index < example_count; index++)
    put_example(file, &examples[index]);
  if (fclose(file) != 0)
    shadow_end(SHADOW_BROKEN, "cannot write %s", name);
}
