# SPDX-License-Identifier: Apache-2.0
"""Stepping a program under gdb, and tracing every step from the registers and the stack that gdb saw.

A file of steps: a line with the size of the process's map of memory, that map, then one record per step, without
padding and in the machine's byte order: 17 registers by DWARF number (the PC last), counts of frames and of stack
bytes (32 bits each), PC and SP of each of gdb's frames, and the stack from BELOW bytes under SP up.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from unittest.mock import patch

from cfi2sframe.arch import AMD64
from cfi2sframe.trace import AddressSpace, FileStore, Frame, walk
from cfi2sframe.trace.space import FileMapping
from tests.trace.judges import HERE, gdb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cfi2sframe.trace import Trace

_REGISTERS: Final = struct.Struct("<17Q")
_COUNTS: Final = struct.Struct("<II")
STEPS_TIMEOUT: Final = 900
_RSP: Final = AMD64.sp_register
_RBP: Final = AMD64.fp_register
_RIP: Final = 16
#: Kept below SP: registers that were just popped are described as still there.
BELOW: Final = 256


class Step(NamedTuple):
    """A state of the process, and gdb's frames in it as (PC, SP)."""

    registers: tuple[int, ...]
    frames: tuple[tuple[int, int], ...]
    stack: bytes

    def read(self, address: int, size: int) -> bytes | None:
        """Read the stack; nothing else is kept."""
        offset = address - (self.registers[_RSP] - BELOW)
        if offset < 0 or offset + size > len(self.stack):
            return None
        return self.stack[offset : offset + size]

    @property
    def topmost(self) -> Frame:
        """The frame that the process is in."""
        named = dict(enumerate(self.registers[:_RIP]))
        return Frame(self.registers[_RIP], self.registers[_RSP], self.registers[_RBP], None, named)


def write_steps(program: Path, file: Path, count: int, start: tuple[str, ...] = ()) -> None:
    """Run a program to stop_here(), go on by gdb commands, then step and write the file."""
    with patch.dict(os.environ, {"STEPS_FILE": str(file), "STEPS_COUNT": str(count)}):
        text = gdb(
            program,
            "-ex",
            "break *stop_here",
            "-ex",
            "run",
            *(word for command in start for word in ("-ex", command)),
            "-x",
            HERE / "gdb_steps.py",
            settings=("set exec-wrapper env -i", "handle SIGUSR1 stop"),
            timeout=STEPS_TIMEOUT,
        )
    assert file.exists(), text


def mappings_of(text: str) -> Iterator[FileMapping]:
    """Return the file mappings in the text of /proc/PID/maps."""
    for line in text.splitlines():
        words = line.split(None, 5)
        if len(words) == 6 and words[5].startswith("/"):
            start, end = (int(word, 16) for word in words[0].split("-"))
            yield FileMapping(start, end, int(words[2], 16), words[5])


class Steps:
    """A file of steps, read one by one and traced with the rows of one file store."""

    def __init__(self, file: Path, store: FileStore) -> None:
        self.data = file.read_bytes()
        line, _, rest = self.data.partition(b"\n")
        self.start = len(line) + 1 + int(line)
        maps = rest[: int(line)].decode()
        self._now: Step | None = None
        self.space = AddressSpace(AMD64, self._read, store.open, store.of_memory)
        self.space.add_mappings(mappings_of(maps))

    def _read(self, address: int, size: int) -> bytes | None:
        return None if self._now is None else self._now.read(address, size)

    def __iter__(self) -> Iterator[Step]:
        position = self.start
        while position < len(self.data):
            registers = _REGISTERS.unpack_from(self.data, position)
            position += _REGISTERS.size
            frame_count, stack_size = _COUNTS.unpack_from(self.data, position)
            position += _COUNTS.size
            words = struct.unpack_from(f"<{2 * frame_count}Q", self.data, position)
            position += 16 * frame_count
            yield Step(
                registers, tuple(zip(words[::2], words[1::2], strict=True)), self.data[position : position + stack_size]
            )
            position += stack_size

    def trace(self, step: Step, *, with_cfi_registers: bool = False) -> Trace:
        """Trace the state of a step, maybe with what CFI says of registers that rows do not follow."""
        self._now = step
        saved_rule = self.space.saved_rule if with_cfi_registers else None
        return walk(step.topmost, self.space.find_row, self.space.read, AMD64, saved_rule=saved_rule)
