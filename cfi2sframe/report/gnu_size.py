# SPDX-License-Identifier: Apache-2.0
"""About how large the `.sframe` section would be that GNU as and ld make of the same functions.

An estimate from rows of our own, within 3 % of the real section except in sections of a few rows. It follows three
rules of GNU as: no function shares rows, the size of a row's start follows the function's size, and an advance with
any directive on CFA, RA or FP after it begins a row, also one that repeats the last. A function with a hole is dropped.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.instructions import ADVANCES, Cutter, read_instructions
from cfi2sframe.dwarf.pointer import fixed_size
from cfi2sframe.dwarf.row_section import RowSection
from cfi2sframe.reasons import DropReason
from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.model import FunctionBody
from cfi2sframe.sframe.write import row_tail

if TYPE_CHECKING:
    from cfi2sframe.abi import Arch
    from cfi2sframe.conversion import Conversion
    from cfi2sframe.dwarf.entries import DwarfFde

#: FDEs of code that ld discarded, or that a better source describes: the assembler saw no directives for these.
_NOT_ASSEMBLED: Final = (DropReason.DISCARDED, DropReason.BETTER_SOURCE)
#: Instructions on CFA, RA or FP whatever their operands are.
_ROW_OPCODES: Final = frozenset((
    *(d.DW_CFA_def_cfa, d.DW_CFA_def_cfa_sf, d.DW_CFA_def_cfa_register, d.DW_CFA_def_cfa_expression),
    *(d.DW_CFA_def_cfa_offset, d.DW_CFA_def_cfa_offset_sf, d.DW_CFA_restore_state, d.DW_CFA_AARCH64_negate_ra_state),
))  # fmt: skip

_CUTTER: Final = Cutter(patience=0)
#: The bytes of DW_OP_breg6, a small offset and DW_OP_deref.
_SHORT_EXPRESSION: Final = 3


def gnu_size(conversion: Conversion) -> int:
    """Return the estimate in bytes, for the version of a conversion."""
    arch, version = conversion.image.arch, conversion.target.version
    record = s.FDE_SIZE[version] + (s.FDE_ATTRIBUTE_SIZE if version >= s.SFRAME_VERSION_3 else 0)
    entries, size, counter = conversion.cfi.entries, s.HEADER_SIZE, _RowCounter(arch, version)
    for number, widths in _start_widths(conversion).values():
        body, entry = conversion.outcomes.results[number], entries[number]
        if not isinstance(body, FunctionBody) or isinstance(entry.section, RowSection):
            continue
        row_count = counter.count(entry.fde)
        if row_count is None:
            continue
        tails = _tail_sizes(body, arch)
        tails += [max(tails, default=0)] * max(0, row_count - len(tails))
        size += sum(count * (record + len(tails) * width + sum(tails)) for width, count in widths.items())
    if (arch.fixed_ra_offset or arch.pads_ra) and any(conversion.image.sections_named(".dynamic")):
        # ld describes its stubs as this program does, except for AArch64 and for the IFUNCs of static programs.
        for stub in conversion.code_map.stubs.functions:
            tails = _tail_sizes(stub.body, arch)
            size += record + len(tails) * _start_width(stub.size) + sum(tails)
    return size


def _start_widths(conversion: Conversion) -> dict[int, tuple[int, Counter[int]]]:
    """Return by program the number of an FDE, and how many functions have starts of each size."""
    entries, code_map = conversion.cfi.entries, conversion.code_map
    found: dict[int, tuple[int, Counter[int]]] = {}
    # What is derived from instructions comes last.
    for number in range(conversion.cfi.derived_numbers.start):
        if number in code_map.replaced or code_map.dropped.get(number) in _NOT_ASSEMBLED:
            continue
        widths = found.setdefault(entries.program_numbers[number], (number, Counter()))[1]
        widths[_start_width(entries.sizes[number])] += 1
    return found


def _start_width(function_size: int) -> int:
    return 1 if function_size < 1 << 8 else 2 if function_size < 1 << 16 else 4


def _tail_sizes(body: FunctionBody, arch: Arch) -> list[int]:
    """Return the bytes of each row without its start."""
    return [len(row_tail(state, arch, is_flexible=body.is_flexible)) for state in body.states]


class _RowCounter:
    """Counts the rows that the assembler makes of programs; it also makes one of what follows the last advance."""

    def __init__(self, arch: Arch, version: int) -> None:
        self._registers = (arch.fp_register,) if arch.fixed_ra_offset else (arch.fp_register, arch.ra_register)
        self._byte_order, self._version = arch.byte_order, version
        #: By chunk, an advance and what follows it: whether there is an advance, and a directive that makes a row.
        self._known: dict[bytes, tuple[bool, bool]] = {}

    def count(self, fde: DwarfFde) -> int | None:
        """Return the rows, at least; None of a function that the assembler drops because of an expression."""
        chunks = _CUTTER.cut(fde.instructions)
        if chunks is None:
            return None if self._is_dropped(fde) else 0
        row_count, is_changed = 1, True
        for chunk in chunks:
            known = self._known.get(chunk)
            if known is None:
                known = self._known[chunk] = self._read(chunk)
            advances, changes = known
            if advances:
                row_count += is_changed
            is_changed = changes or (is_changed and not advances)
        return row_count

    def _is_dropped(self, fde: DwarfFde) -> bool:
        """Before version 3 every expression is too much, then those of more than a register, an offset and a load."""
        instructions = read_instructions(fde.instructions, self._byte_order, fixed_size(fde.cie.fde_encoding))
        blocks = [operand for each in instructions for operand in each.operands if isinstance(operand, bytes)]
        return bool(blocks) and (self._version < s.SFRAME_VERSION_3 or max(map(len, blocks)) > _SHORT_EXPRESSION)

    def _read(self, chunk: bytes) -> tuple[bool, bool]:
        instructions = list(read_instructions(chunk, self._byte_order))
        advances = instructions[0].opcode in ADVANCES
        return advances, any(
            each.opcode in _ROW_OPCODES or (each.operands and each.operands[0] in self._registers)
            for each in instructions[advances:]
        )
