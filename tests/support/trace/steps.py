# SPDX-License-Identifier: Apache-2.0
"""Stepping a program under gdb, and tracing every step from the registers and the stack that gdb saw.

A file of steps: a line of JSON (gdb's name of the machine, the address of main and of the shared libraries' text), then
one record per step, little-endian and without padding: 64 bits for each register by DWARF number and the PC, counts of
frames and of stack bytes (32 bits each), PC and SP of each of gdb's frames, and the stack from BELOW bytes under SP up.
"""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from unittest.mock import patch

from cfi2sframe.arch import AARCH64_LE, AMD64, S390X
from cfi2sframe.elf.constants import SHT_SYMTAB
from cfi2sframe.trace import AddressSpace, FileStore, Frame, walk
from cfi2sframe.trace.modules import ModuleFile
from tests.support.trace.judges import HERE, gdb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from cfi2sframe.arch import Arch
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.trace import Trace

#: By gdb's name of the machine: the ABI, and how many registers are written besides the PC.
_MACHINES: Final = {"i386:x86-64": (AMD64, 16), "aarch64": (AARCH64_LE, 32), "s390:64-bit": (S390X, 32)}
_COUNTS: Final = struct.Struct("<II")
STEPS_TIMEOUT: Final = 900
#: Kept below SP: registers that were just popped are described as still there.
BELOW: Final = 256


class Step(NamedTuple):
    """A state of the process, and gdb's frames in it as (PC, SP)."""

    arch: Arch
    pc: int
    registers: tuple[int, ...]
    frames: tuple[tuple[int, int], ...]
    stack: bytes

    def read(self, address: int, size: int) -> bytes | None:
        """Read the stack; nothing else is kept."""
        offset = address - (self.registers[self.arch.sp_register] - BELOW)
        if offset < 0 or offset + size > len(self.stack):
            return None
        return self.stack[offset : offset + size]

    @property
    def topmost(self) -> Frame:
        """The frame that the process is in."""
        known = dict(enumerate(self.registers))
        ra = None if self.arch.fixed_ra_offset else known[self.arch.ra_register]
        return Frame(self.pc, known[self.arch.sp_register], known[self.arch.fp_register], ra, known)


def write_steps(
    program: Path,
    file: Path,
    count: int,
    *,
    settings: Sequence[str] = ("set exec-wrapper env -i", "handle SIGUSR1 stop"),
    start: Sequence[str] = ("break *stop_here", "run"),
    debugger: str = "gdb",
) -> None:
    """Start a program by gdb commands that end in stop_here(), then step and write the file."""
    with patch.dict(os.environ, {"STEPS_FILE": str(file), "STEPS_COUNT": str(count)}):
        text = gdb(
            program,
            settings=settings,
            commands=(*start, f"source {HERE / 'gdb_steps.py'}"),
            program=debugger,
            timeout=STEPS_TIMEOUT,
        )
    assert file.exists(), text


class Steps:
    """A file of steps of a program, read one by one and traced with the rows of one file store."""

    def __init__(self, program: Path, file: Path, store: FileStore) -> None:
        line, _, self.data = file.read_bytes().partition(b"\n")
        header = json.loads(line)
        self.arch, register_count = _MACHINES[header["machine"]]
        self.registers = struct.Struct(f"<{register_count + 1}Q")
        self._now: Step | None = None
        self.space = AddressSpace(self.arch, self._read, store.open, store.of_memory)
        self._add(store, str(program), header["main"], _vaddr_of_main)
        for path, text in header["libraries"]:
            self._add(store, path, text, _vaddr_of_text)

    def _add(self, store: FileStore, path: str, address: int, vaddr_of: Callable[[ElfImage], int]) -> None:
        """Add a file, one place of which is at a known address."""
        file = store.open_here(path, path)
        assert isinstance(file, ModuleFile)
        self.space.add_file(path, file, address - vaddr_of(file.image))

    def _read(self, address: int, size: int) -> bytes | None:
        return None if self._now is None else self._now.read(address, size)

    def __iter__(self) -> Iterator[Step]:
        position = 0
        while position < len(self.data):
            *registers, pc = self.registers.unpack_from(self.data, position)
            position += self.registers.size
            frame_count, stack_size = _COUNTS.unpack_from(self.data, position)
            position += _COUNTS.size
            words = struct.unpack_from(f"<{2 * frame_count}Q", self.data, position)
            position += 16 * frame_count
            stack = self.data[position : position + stack_size]
            yield Step(self.arch, pc, tuple(registers), tuple(zip(words[::2], words[1::2], strict=True)), stack)
            position += stack_size

    def trace(self, step: Step) -> Trace:
        """Trace the state of a step."""
        self._now = step
        return walk(step.topmost, self.space.find_row, self.space.read, self.arch)


def _vaddr_of_main(image: ElfImage) -> int:
    tables = (section for section in image.sections if section.type == SHT_SYMTAB)
    vaddr = next(symbol.vaddr for table in tables for symbol in image.symbols(table) if symbol.name == "main")
    assert vaddr is not None
    return vaddr


def _vaddr_of_text(image: ElfImage) -> int:
    return next(section.vaddr for section in image.sections if section.name == ".text")
