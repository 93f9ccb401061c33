# SPDX-License-Identifier: Apache-2.0
"""CFI that has rows from the start, and no bytes to be parsed: Go's table, and what instructions say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf.entries import DwarfCie
from cfi2sframe.dwarf.rules import UnwindTable  # noqa: TC001 - part of a NamedTuple's fields

if TYPE_CHECKING:
    from cfi2sframe.abi import Arch
    from cfi2sframe.elf.cfi import CfiKind, Relocation


class RowFunction(NamedTuple):
    """A function of some bytes at a virtual address, and its rows; the flags are those of a CIE."""

    start_vaddr: int
    size: int
    table: UnwindTable
    is_signal_frame: bool = False
    uses_b_key: bool = False


class RowSection(NamedTuple):
    """The functions of one source, in the place of a `CfiSection`.

    `size` is what the file has for them in bytes. `relocations` has, in an object, what gives a function's start, by
    the function's number. `damaged` has the functions that cannot be read: offsets in the file's section, and what is
    wrong. `names` has names that the source gives to functions, with their addresses, for reports.
    """

    name: str
    kind: CfiKind
    functions: tuple[RowFunction, ...]
    size: int = 0
    relocations: dict[int, Relocation] = {}  # noqa: RUF012 - never changed
    damaged: tuple[tuple[int, str], ...] = ()
    names: tuple[tuple[int, str], ...] = ()


def row_cie(arch: Arch) -> DwarfCie:
    """Return the CIE of functions that have rows, without their flags."""
    return DwarfCie(
        version=3,
        augmentation="",
        code_alignment=1,
        data_alignment=1,
        ra_register=arch.ra_register,
        fde_encoding=d.DW_EH_PE_absptr,
        lsda_encoding=d.DW_EH_PE_omit,
        is_signal_frame=False,
        uses_b_key=False,
        instructions=b"",
    )
