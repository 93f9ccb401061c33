# SPDX-License-Identifier: Apache-2.0
"""The size in bytes of the section that GNU as and ld would make, estimated from rows of our own.

It is within 3 % of the real section, except in sections of a few rows, and follows three rules of GNU as: no function
shares rows, the size of a row's start follows the function's size, and an advance with any directive on CFA, RA or FP
after it begins a row, also one that repeats the last. A function with a hole is dropped.
"""

from typing import Final

from cfi2sframe.abi import Arch
from cfi2sframe.constants import dwarf as d
from cfi2sframe.constants import sframe as s
from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.conversion.fates import Fate
from cfi2sframe.conversion.lower import Lowering
from cfi2sframe.dwarf.entries import DwarfCie
from cfi2sframe.dwarf.instructions import ADVANCES, read_instructions
from cfi2sframe.dwarf.numbers import fixed_size
from cfi2sframe.sframe.model import FunctionBody
from cfi2sframe.sframe.write import row_tail
from cfi2sframe.why import Why

#: FDEs of stubs, of code that ld discarded, or that a better source describes, and rows from instructions: the
#: assembler saw no directives for these.
_NOT_ASSEMBLED: Final = (Fate.STUBS, Fate.DISCARDED, Fate.BETTER_SOURCE, Fate.DERIVED, Fate.NOT_DERIVED)
#: Instructions on CFA, RA or FP whatever their operands are.
_ROW_OPCODES: Final = frozenset((
    *(d.DW_CFA_def_cfa, d.DW_CFA_def_cfa_sf, d.DW_CFA_def_cfa_register, d.DW_CFA_def_cfa_expression),
    *(d.DW_CFA_def_cfa_offset, d.DW_CFA_def_cfa_offset_sf, d.DW_CFA_restore_state, d.DW_CFA_AARCH64_negate_ra_state),
))  # fmt: skip
#: The bytes of DW_OP_breg6, a small offset and DW_OP_deref: before version 3, GNU as drops functions of any expression.
_SHORT_EXPRESSION: Final = 3


def gnu_size(conversion: Conversion) -> int:
    """Return the estimated size of the section that GNU as and ld would make, in the version of a conversion."""
    arch, version = conversion.image.arch, conversion.target.version
    record = s.FDE_SIZE[version] + (s.FDE_ATTRIBUTE_SIZE if version >= s.SFRAME_VERSION_3 else 0)
    entries, size = conversion.cfi.entries, s.HEADER_SIZE
    # All FDEs, also those whose addresses others own.
    lowering = Lowering(conversion.target)
    #: By program, the sizes of its rows without their starts.
    tails_of: dict[int, list[int]] = {}
    for fde_number, fate in enumerate(conversion.fates):
        if fate in _NOT_ASSEMBLED:
            continue
        program = entries.program_of[fde_number]
        if program not in tails_of:
            tails = tails_of[program] = []
            cie, table, instructions = entries.programs[program]
            body = lowering.lower(table, cie)
            if isinstance(body, FunctionBody) and instructions is not None:
                row_count = _row_count(instructions, cie, arch, version)
                if row_count:
                    tails += _tail_sizes(body, arch)
                    tails += [max(tails, default=0)] * (row_count - len(tails))
        if tails_of[program]:
            size += record + _rows_size(tails_of[program], entries.sizes[fde_number])
    if (arch.fixed_ra_offset or arch.pads_ra) and any(conversion.image.sections_named(".dynamic")):
        # ld describes its stubs as this program does, except for AArch64 and for the IFUNCs of static programs.
        for start, end, origin, rows in conversion.pieces:
            if origin is None and not isinstance(rows, Why):
                size += record + _rows_size(_tail_sizes(rows, arch), end - start)
    return size


def _rows_size(tails: list[int], function_size: int) -> int:
    start_width = 1 if function_size < 1 << 8 else 2 if function_size < 1 << 16 else 4
    return len(tails) * start_width + sum(tails)


def _tail_sizes(body: FunctionBody, arch: Arch) -> list[int]:
    """Return the bytes of each row without its start."""
    return [len(row_tail(state, arch, is_flexible=body.is_flexible)) for state in body.states]


def _row_count(instructions: bytes, cie: DwarfCie, arch: Arch, version: int) -> int:
    """Return the least rows that the assembler makes of a program; 0 where an expression makes it drop the function."""
    registers = (arch.fp_register,) if arch.fixed_ra_offset else (arch.fp_register, arch.ra_register)
    longest = _SHORT_EXPRESSION if version >= s.SFRAME_VERSION_3 else -1
    row_count, is_changed = 1, True
    for instruction in read_instructions(instructions, arch.byte_order, fixed_size(cie.fde_encoding)):
        if any(isinstance(operand, bytes) and len(operand) > longest for operand in instruction.operands):
            return 0
        if instruction.opcode in ADVANCES:
            row_count += is_changed
            is_changed = False
        elif instruction.opcode in _ROW_OPCODES or (instruction.operands and instruction.operands[0] in registers):
            is_changed = True
    return row_count
