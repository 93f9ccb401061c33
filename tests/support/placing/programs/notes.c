// SPDX-License-Identifier: Apache-2.0
// Prints what its notes say, as it finds them by program headers.

#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
__asm__(".pushsection .note.test.id,\"a\",%note\n .balign 4\n .long 5, 40, 7\n .asciz \"Test\"\n .balign 4\n"
        " .ascii \"0123456789012345678901234567890123456789\"\n .popsection\n");
static int cell __attribute__((used)) = 42;
#ifdef PLACE
__asm__(".pushsection .note.test.place,\"a\",%note\n .balign 4\n .long 6, 8, 7\n .asciz \"Place\"\n"
        " .balign 4\n1: .quad cell - 1b\n .popsection\n");
#endif
static int each(struct dl_phdr_info *info, size_t size, void *unused)
{
  (void)size; (void)unused;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *entry = &info->dlpi_phdr[i];
    if (entry->p_type != PT_NOTE) continue;
    const char *at = (const char *)info->dlpi_addr + entry->p_vaddr, *end = at + entry->p_memsz;
    while (at < end) {
      const ElfW(Nhdr) *note = (const void *)at;
      const char *owner = at + sizeof *note, *content = owner + (note->n_namesz + 3) / 4 * 4;
      if (!strcmp(owner, "Test")) printf("%.*s\n", (int)note->n_descsz, content);
      long distance;
      memcpy(&distance, content, sizeof distance);
      if (!strcmp(owner, "Place")) printf("%d\n", *(const int *)(content + distance));
      at = content + (note->n_descsz + 3) / 4 * 4;
    }
  }
  return 1;
}
int main(void) { dl_iterate_phdr(each, 0); return cell != 42; }
