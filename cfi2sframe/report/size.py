# SPDX-License-Identifier: Apache-2.0
"""What SFrame costs: a record of numbers for each file, and sums of records. Sizes count bytes.

What GNU as and ld would write is an estimate from rows of our own, within 3 % of the real section except in sections of
a few rows. It follows three rules of GNU as: no function shares rows, the size of a row's start follows the function's
size, and an advance with any directive on CFA, RA or FP after it begins a row, also one that repeats the last. A
function with a hole is dropped.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.constants import dwarf as d
from cfi2sframe.constants import sframe as s
from cfi2sframe.conversion.reasons import Fate
from cfi2sframe.dwarf.instructions import ADVANCES, read_instructions
from cfi2sframe.dwarf.numbers import fixed_size
from cfi2sframe.dwarf.row_section import RowSection
from cfi2sframe.report.coverage import figures
from cfi2sframe.report.tables import column_sums
from cfi2sframe.sframe.model import FunctionBody
from cfi2sframe.sframe.write import row_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.abi import Arch
    from cfi2sframe.conversion.convert import Conversion
    from cfi2sframe.dwarf.entries import DwarfFde

#: FDEs of stubs, of code that ld discarded, or that a better source describes: the assembler saw no directives for it.
_NOT_ASSEMBLED: Final = (Fate.STUBS, Fate.DISCARDED, Fate.BETTER_SOURCE)
#: Instructions on CFA, RA or FP whatever their operands are.
_ROW_OPCODES: Final = frozenset((
    *(d.DW_CFA_def_cfa, d.DW_CFA_def_cfa_sf, d.DW_CFA_def_cfa_register, d.DW_CFA_def_cfa_expression),
    *(d.DW_CFA_def_cfa_offset, d.DW_CFA_def_cfa_offset_sf, d.DW_CFA_restore_state, d.DW_CFA_AARCH64_negate_ra_state),
))  # fmt: skip
#: The bytes of DW_OP_breg6, a small offset and DW_OP_deref: before version 3, GNU as drops functions of any expression.
_SHORT_EXPRESSION: Final = 3


class FileSize(NamedTuple):
    """A file and its section, or with `add_up` the sums of several; `gnu_size` is an estimate.

    `cfi_size` counts all CFI that was read, of Go the table, and `existing_size` the `.sframe` that the file has. The
    section has `record_count` records and `row_count` rows, some of them shared. Functions are counted as
    `coverage.Coverage` does.
    """

    file: str
    arch: str
    sframe_version: int
    file_count: int = 0
    file_size: int = 0
    cfi_size: int = 0
    eh_frame_hdr_size: int = 0
    existing_size: int = 0
    sframe_size: int = 0
    gnu_size: int = 0
    function_count: int = 0
    left_out_count: int = 0
    in_part_count: int = 0
    record_count: int = 0
    row_count: int = 0

    @property
    def base_size(self) -> int:
        """The size of the CFI and its search table, which the section is compared with."""
        return self.cfi_size + self.eh_frame_hdr_size

    @property
    def ratio(self) -> float | None:
        """The section to the CFI with its search table; None without CFI."""
        return self.sframe_size / self.base_size if self.base_size else None

    @property
    def growth_percent(self) -> float | None:
        """The section in percent of the file."""
        return 100 * self.sframe_size / self.file_size if self.file_size else None


#: The fields that are added up.
SUMMED: Final = FileSize._fields[FileSize._fields.index("file_count") :]


def measure(conversion: Conversion) -> FileSize:
    """Return the sizes of a converted file."""
    image = conversion.image
    return FileSize(
        file=image.name,
        arch=image.arch.name,
        sframe_version=conversion.target.version,
        file_count=1,
        file_size=len(image.data),
        existing_size=0 if image.sframe_section is None else image.sframe_section.size,
        gnu_size=gnu_size(conversion),
        **figures(conversion, Counter(conversion.fde_fates)),
    )


def add_up(files: Sequence[FileSize], name: str) -> FileSize:
    """Return the sums of some files in one version."""
    arches = {file.arch for file in files}
    arch = arches.pop() if len(arches) == 1 else ""
    return FileSize(name, arch, files[0].sframe_version, **column_sums(files, SUMMED))


def gnu_size(conversion: Conversion) -> int:
    """Return the estimate in bytes, for the version of a conversion."""
    arch, version = conversion.image.arch, conversion.target.version
    record = s.FDE_SIZE[version] + (s.FDE_ATTRIBUTE_SIZE if version >= s.SFRAME_VERSION_3 else 0)
    entries, size = conversion.cfi.entries, s.HEADER_SIZE
    #: By program, the sizes of its rows without their starts.
    tails_of: dict[int, list[int]] = {}
    for number, fate in enumerate(conversion.fde_fates):
        if fate in _NOT_ASSEMBLED:
            continue
        program = entries.program_numbers[number]
        if program not in tails_of:
            tails = tails_of[program] = []
            body, entry = conversion.outcomes.results[number], entries[number]
            if isinstance(body, FunctionBody) and not isinstance(entry.section, RowSection):
                row_count = _row_count(entry.fde, arch, version)
                if row_count:
                    tails += _tail_sizes(body, arch)
                    tails += [max(tails, default=0)] * (row_count - len(tails))
        if tails_of[program]:
            size += record + _rows_size(tails_of[program], entries.sizes[number])
    if (arch.fixed_ra_offset or arch.pads_ra) and any(conversion.image.sections_named(".dynamic")):
        # ld describes its stubs as this program does, except for AArch64 and for the IFUNCs of static programs.
        stubs = conversion.code_map.stubs.functions
        size += sum(record + _rows_size(_tail_sizes(each.body, arch), each.size) for each in stubs)
    return size


def _rows_size(tails: list[int], function_size: int) -> int:
    start_width = 1 if function_size < 1 << 8 else 2 if function_size < 1 << 16 else 4
    return len(tails) * start_width + sum(tails)


def _tail_sizes(body: FunctionBody, arch: Arch) -> list[int]:
    """Return the bytes of each row without its start."""
    return [len(row_tail(state, arch, is_flexible=body.is_flexible)) for state in body.states]


def _row_count(fde: DwarfFde, arch: Arch, version: int) -> int:
    """Return the rows that the assembler makes of a program, at least; 0 where an expression makes it drop it."""
    registers = (arch.fp_register,) if arch.fixed_ra_offset else (arch.fp_register, arch.ra_register)
    longest = _SHORT_EXPRESSION if version >= s.SFRAME_VERSION_3 else -1
    row_count, is_changed = 1, True
    for each in read_instructions(fde.instructions, arch.byte_order, fixed_size(fde.cie.fde_encoding)):
        if any(isinstance(operand, bytes) and len(operand) > longest for operand in each.operands):
            return 0
        if each.opcode in ADVANCES:
            row_count += is_changed
            is_changed = False
        elif each.opcode in _ROW_OPCODES or (each.operands and each.operands[0] in registers):
            is_changed = True
    return row_count
