# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions held to execution, one instruction at a time (AMD64)."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe import load
from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.instructions.derive import derive
from cfi2sframe.rules import Rule
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.dwarf.rules import RowState
    from cfi2sframe.elf.image import ElfImage

_ROW: Final = struct.Struct("<QQiiii")
_FP_UNKNOWN: Final = 2


class Steps(NamedTuple):
    """Instructions that were compared, those that have wrong rows, and some of these as text."""

    compared: int
    wrong: int
    shown: tuple[str, ...]


def stepper(folder: Path) -> Path:
    """Compile the program that steps others."""
    built = folder / "stepper"
    source = Path(__file__).with_name("stepper.c")
    subprocess.run([need("gcc"), "-O2", "-w", source, "-o", built], check=True)
    return built


def step(built: Path, program: Path, *, shift: int = 0) -> Steps:
    """Derive rows for all code of a program, as if it had no CFI, and execute it.

    `shift` is added to the offset of each CFA, to make it wrong.
    """
    rows = program.with_suffix(".rows")
    rows.write_bytes(b"".join(_rows(load(program), shift)))
    run = subprocess.run([built, rows, program], check=True, capture_output=True, text=True, timeout=600)
    first, *shown = run.stdout.splitlines()
    compared, wrong = map(int, first.split())
    return Steps(compared, wrong, tuple(shown))


def _rows(image: ElfImage, shift: int) -> Iterator[bytes]:
    for function in derive(image, ()).functions:
        start, table = function.start_vaddr, function.table
        ends = (*table.starts[1:], function.end_vaddr - start)
        for first, last, state in zip(table.starts, ends, table.states, strict=True):
            if isinstance(state.cfa, Rule) and state.cfa.register is not None and not state.cfa.deref:
                fp = _fp(state)
                yield _ROW.pack(start + first, start + last, state.cfa.register, state.cfa.offset + shift, *fp)


def _fp(state: RowState) -> tuple[int, int]:
    if state.fp is NoRule.UNSPECIFIED:
        return 0, 0
    is_slot = isinstance(state.fp, Rule) and state.fp.is_saved_at_cfa
    return (1, state.fp.offset) if is_slot and isinstance(state.fp, Rule) else (_FP_UNKNOWN, 0)
