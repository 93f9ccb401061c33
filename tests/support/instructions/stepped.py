# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions held to execution, one instruction at a time: AMD64 here, other ABIs in `emulated`."""

from __future__ import annotations

import functools
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe import load
from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.instructions.derive import derive
from cfi2sframe.rules import Rule
from tests.support.instructions.assembled import row_spans
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.dwarf.rules import RowState
    from cfi2sframe.elf.image import ElfImage

_ROW: Final = struct.Struct("<QQiiii")
_FP_UNKNOWN: Final = 2
_NO_LIMIT: Final = 1 << 40


class Steps(NamedTuple):
    """Instructions that were compared, those that have wrong rows, their addresses; and some wrong ones as text."""

    compared: int
    wrong: int
    places: int
    shown: tuple[str, ...]


def stepper(folder: Path) -> Path:
    """Compile the program that steps others."""
    built = folder / "stepper"
    source = Path(__file__).with_name("stepper.c")
    subprocess.run([need("gcc"), "-O2", "-w", source, "-o", built], check=True)
    return built


def step(
    built: Path,
    command: Sequence[str | Path],
    libraries: Sequence[Path] = (),
    *,
    limit: int = _NO_LIMIT,
    shift: int = 0,
) -> Steps:
    """Derive rows for all code of a program and of libraries, as if they had no CFI, and execute it.

    `shift` is added to the offset of each CFA, to make it wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        modules = Path(folder, "modules")
        lines = []
        for number, path in enumerate([Path(command[0]), *libraries]):
            rows = Path(folder, str(number))
            rows.write_bytes(_rows(path, shift))
            lines.append(f"{rows} {path}\n")
        modules.write_text("".join(lines))
        words = [built, modules, str(limit), *command]
        run = subprocess.run(words, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    first, *shown = run.stdout.splitlines()
    compared, wrong, places = map(int, first.split())
    return Steps(compared, wrong, places, tuple(shown))


def rows_of(image: ElfImage) -> Iterator[tuple[int, int, RowState]]:
    """Yield the rows that are derived for all code of an image: addresses from, to, and the row."""
    for function in derive(image, ()).functions:
        yield from row_spans(*function[:3])


@functools.cache
def _rows(path: Path, shift: int) -> bytes:
    return b"".join(
        _ROW.pack(start, end, state.cfa.register, state.cfa.offset + shift, *_fp(state))
        for start, end, state in rows_of(load(path))
        if isinstance(state.cfa, Rule) and state.cfa.register is not None and not state.cfa.deref
    )


def _fp(state: RowState) -> tuple[int, int]:
    if state.fp is NoRule.UNSPECIFIED:
        return 0, 0
    is_slot = isinstance(state.fp, Rule) and state.fp.is_saved_at_cfa
    return (1, state.fp.offset) if is_slot and isinstance(state.fp, Rule) else (_FP_UNKNOWN, 0)
