/* SPDX-License-Identifier: Apache-2.0 */
/* The first frame of a walk, from the registers of a signal context.  */

#define _GNU_SOURCE
#include "sframe_walk.h"

#include <string.h>
#include <ucontext.h>

static void set_register(struct sframe_registers *registers, unsigned number,
                         uint64_t value)
{
  registers->known_mask |= (uint64_t)1 << number;
  registers->values[number] = value;
}

void sframe_walk_start(struct sframe_walker *walker,
                       const struct sframe_modules *modules,
                       const void *ucontext)
{
  const mcontext_t *machine = &((const ucontext_t *)ucontext)->uc_mcontext;
  struct sframe_registers *registers = &walker->registers;
  struct sframe_frame *frame = &walker->frame;
  unsigned number;

  memset(registers, 0, sizeof *registers);
  memset(frame, 0, sizeof *frame);
  walker->modules = modules;
  walker->block_start = 1;
#if defined __x86_64__
  {
    static const unsigned char order[16] = {
        REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP,
        REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    for (number = 0; number < 16; number++)
      set_register(registers, number, (uint64_t)machine->gregs[order[number]]);
    frame->pc = (uint64_t)machine->gregs[REG_RIP];
  }
#elif defined __aarch64__
  for (number = 0; number < 31; number++)
    set_register(registers, number, machine->regs[number]);
  set_register(registers, SFRAME_REGISTER_SP, machine->sp);
  frame->pc = machine->pc;
#else
  {
    static const unsigned char order[16] = {0, 2,  4,  6,  1, 3,  5,  7,
                                            8, 10, 12, 14, 9, 11, 13, 15};
    for (number = 0; number < 16; number++) {
      uint64_t bits;
      memcpy(&bits, &machine->fpregs.fprs[order[number]], sizeof bits);
      set_register(registers, number, machine->gregs[number]);
      set_register(registers, 16 + number, bits);
    }
    frame->pc = machine->psw.addr;
  }
#endif
  frame->sp = registers->values[SFRAME_REGISTER_SP];
  frame->fp = registers->values[SFRAME_REGISTER_FP];
#if !defined __x86_64__
  frame->ra = registers->values[SFRAME_REGISTER_RA];
  frame->ra_is_known = true;
#endif
  frame->is_topmost = true;
  frame->pc_is_exact = true;
}
