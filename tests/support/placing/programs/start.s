# SPDX-License-Identifier: Apache-2.0
# A program for AMD64 that calls a function and ends.
.globl _start
_start:
  .cfi_startproc
  .cfi_undefined 16
  call work
  mov $60, %eax
  xor %edi, %edi
  syscall
  .cfi_endproc
work:
  .cfi_startproc
  push %rbx
  .cfi_def_cfa_offset 16
  .cfi_offset 3, -16
  pop %rbx
  .cfi_def_cfa_offset 8
  ret
  .cfi_endproc
