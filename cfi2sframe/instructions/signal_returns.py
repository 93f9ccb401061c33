# SPDX-License-Identifier: Apache-2.0
"""The code that returns from a signal handler, `__restore_rt` and `__kernel_rt_sigreturn`.

It never returns to a caller, so no return proves it. The system call does: where its number is loaded and it is called,
the kernel's record of the interrupted registers is at a known distance from SP.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.abi.record import SAVED_PC
from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.dwarf.numbers import encode_sleb, encode_uleb
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RowState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.abi import Arch
    from cfi2sframe.abi.record import SignalReturn
    from cfi2sframe.instructions.code import Code


class SignalCode(NamedTuple):
    """Addresses of code that returns from a signal handler, and the row of all of them."""

    start: int
    end: int
    state: RowState


def signal_code(code: Code, entries: Iterable[int]) -> Iterator[SignalCode]:
    """Yield the code at some entries that returns from a signal handler.

    A no-op before it belongs to it: readers look for a return address, where the handler returns to, one byte before.
    """
    arch = code.abi.arch
    for vaddr in entries:
        for form in arch.signal_returns:
            end = vaddr + len(form.code)
            if code.holds(vaddr) and code.read(vaddr, end) == form.code:
                before = vaddr - arch.instruction_alignment
                is_filled = code.holds(before) and re.fullmatch(arch.fill, code.read(before, vaddr), re.DOTALL)
                yield SignalCode(before if is_filled else vaddr, end, _row(arch, form))


def _row(arch: Arch, form: SignalReturn) -> RowState:
    def address_of(number: int) -> bytes:
        offset = 8 * arch.signal_words.index(number)
        base = bytes((d.DW_OP_breg0 + arch.sp_register,))
        if form.is_pointer:
            return base + encode_sleb(form.distance) + bytes((d.DW_OP_deref,)) + _plus(offset)
        return base + encode_sleb(form.distance + offset)

    cfa = address_of(arch.sp_register) + bytes((d.DW_OP_deref,)) + _plus(-arch.sp_offset_from_cfa)
    ra, fp = (Expression(address_of(number), deref=True) for number in (SAVED_PC, arch.fp_register))
    return RowState(Expression(cfa, deref=False), ra, fp, NoRule.UNSPECIFIED, RaSigning.NONE)


def _plus(number: int) -> bytes:
    return bytes((d.DW_OP_plus_uconst,)) + encode_uleb(number) if number else b""
