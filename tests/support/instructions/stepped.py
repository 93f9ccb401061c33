# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions held to execution in an emulator, one instruction at a time."""

import re
import socket
import struct
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cfi2sframe import load
from cfi2sframe.abi.rule import Rule
from cfi2sframe.constants.elf import SHT_SYMTAB
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RegisterRule, RowState
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.instructions.derive import derive
from tests.support.instructions.assembled import rows_of
from tests.support.needs import need


class _Debugger(NamedTuple):
    """An ABI's emulator, and what its debugger's answer begins with: where PC is, and DWARF's registers in order."""

    emulator: str
    layout: struct.Struct
    pc: int
    registers: tuple[int, ...]
    call: re.Pattern[bytes]


_DEBUGGERS: Final = {
    "AMD64": _Debugger(
        "qemu-x86_64",
        struct.Struct("<17Q"),
        16,
        (0, 3, 2, 1, 4, 5, 6, 7, *range(8, 16)),
        re.compile(rb"[\x3e\x40-\x4f\xf2]*(\xe8|\xff[\x10-\x17\x50-\x57\x90-\x97\xd0-\xd7])", re.DOTALL),
    ),
    "AArch64": _Debugger(
        "qemu-aarch64",
        struct.Struct("<33Q"),
        32,
        tuple(range(32)),
        re.compile(rb"...[\x94-\x97]|..\x3f[\xd6\xd7]", re.DOTALL),
    ),
    "s390x": _Debugger(
        "qemu-s390x", struct.Struct(">18Q"), 1, tuple(range(2, 18)), re.compile(rb"\x0d[\xe0-\xef]|[\xc0\xa7]\xe5")
    ),
}
#: s390x's floating point registers: DWARF's order from 16 on, and the debugger's number of the first.
_FLOATS: Final = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
_FIRST_FLOAT: Final = 35
#: AArch64: what of an address a signature leaves.
_ADDRESS_BITS: Final = (1 << 48) - 1
_AT_PHDR: Final = 3
_SHOWN: Final = 10


class Steps(NamedTuple):
    """Instructions that were compared, those that have wrong rows, their addresses; and some wrong ones as text."""

    compared: int
    wrong: int
    places: int
    shown: tuple[str, ...]


class _Frame(NamedTuple):
    """What a call has made: SP, FP and the return address at the entry of the function called."""

    sp: int
    fp: int
    ra: int


class _Emulator:
    """A program under the emulator's debugger (GDB's remote protocol)."""

    def __init__(self, image: ElfImage, command: Sequence[str | Path], folder: Path) -> None:
        self.image = image
        self.arch = image.arch
        self.debugger = _DEBUGGERS[self.arch.name]
        path = folder / "debugger"
        words = [need(self.debugger.emulator), "-cpu", "max", "-g", path, *command]
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}
        )
        self._socket = socket.socket(socket.AF_UNIX)
        weakref.finalize(self, self._socket.close)
        for _ in range(500):
            try:
                self._socket.connect(str(path))
                break
            except OSError:
                time.sleep(0.01)
        self._buffer = b""
        # Registers are named by numbers only after this.
        self.ask("qXfer:features:read:target.xml:0,ffb")

    def ask(self, text: str) -> str:
        """Send a packet; return the answer, which is empty once the program has ended."""
        data = text.encode()
        try:
            self._socket.sendall(b"+$%b#%02x" % (data, sum(data) & 0xFF))
            while (end := self._buffer.find(b"#")) < 0 or len(self._buffer) < end + 3:
                received = self._socket.recv(1 << 16)
                if not received:
                    return ""
                self._buffer += received
        except OSError:
            return ""
        answer, self._buffer = self._buffer[:end], self._buffer[end + 3 :]
        return answer[answer.index(b"$") + 1 :].decode("latin-1")

    def registers(self) -> tuple[int, ...]:
        return self.debugger.layout.unpack_from(bytes.fromhex(self.ask("g")))

    def bytes_at(self, address: int, size: int) -> bytes:
        """Return some bytes of memory; none where they cannot be read."""
        answer = self.ask(f"m{address & (1 << 64) - 1:x},{size:x}")
        return bytes.fromhex(answer) if len(answer) == 2 * size else b""

    def word(self, address: int) -> int | None:
        data = self.bytes_at(address, 8)
        order: Final = "little" if self.arch.byte_order == "<" else "big"
        return int.from_bytes(data, order) if data else None

    def value(self, register: int, values: tuple[int, ...]) -> int:
        """Return the value of the register that has a number of DWARF's."""
        if self.arch.name == "s390x" and register >= 16:
            return int(self.ask(f"p{_FIRST_FLOAT + _FLOATS[register - 16]:x}"), 16)
        return values[self.debugger.registers[register]]

    def return_address(self, values: tuple[int, ...]) -> int | None:
        """Return what a call has left for the function that it has just entered."""
        if self.arch.fixed_ra_offset:
            return self.word(self.value(self.arch.sp_register, values))
        return self.value(self.arch.ra_register, values)

    def base(self) -> int:
        """Return by how much the program's addresses differ from those of its file."""
        vector = self.ask("qXfer:auxv:read::0,1000").encode("latin-1")[1:]
        data = bytearray()
        escaped = False
        for byte in vector:
            if byte == ord("}") and not escaped:
                escaped = True
                continue
            data.append(byte ^ 0x20 if escaped else byte)
            escaped = False
        words = struct.unpack_from(f"{self.arch.byte_order}{len(data) // 8}Q", data)
        headers = dict(zip(words[::2], words[1::2], strict=False))[_AT_PHDR]
        header = self.image.header
        first = next(each for each in self.image.segments if each.file_offset == 0 and each.type == 1)
        return int(headers) - header.program_headers_offset - first.vaddr

    def go_to(self, address: int) -> None:
        """Execute the program up to an address."""
        self.ask(f"Z0,{address:x},2")
        self.ask("c")
        self.ask(f"z0,{address:x},2")

    def steps(self) -> Iterator[tuple[int, ...]]:
        """Yield the registers before each instruction."""
        while True:
            values = self.registers()
            yield values
            if not self.ask("s").startswith("T05"):
                return


def step(command: Sequence[str | Path], *, limit: int, shift: int = 0) -> Steps:
    """Derive rows for all code of a program, as if it had no CFI, and execute it up to some instructions with rows.

    `shift` is added to the offset of each CFA, to make it wrong.
    """
    image = load(Path(command[0]))
    symbols = (symbol for table in image.sections if table.type == SHT_SYMTAB for symbol in image.symbols(table))
    # What is before it is long, and the same in all programs.
    main = next((symbol.vaddr for symbol in symbols if symbol.name == "main"), None)
    rows = rows_of(derive(image, ()))
    with tempfile.TemporaryDirectory() as folder:
        emulator = _Emulator(image, command, Path(folder))
        try:
            return _compare(emulator, rows, main, limit, shift)
        finally:
            emulator.process.kill()
            emulator.process.wait()


def _compare(emulator: _Emulator, rows: dict[int, RowState], main: int | None, limit: int, shift: int) -> Steps:
    arch, debugger = emulator.arch, emulator.debugger
    base = emulator.base()
    if main is not None:
        emulator.go_to(base + main)
    frames: list[_Frame] = []
    compared = wrong = 0
    places: set[int] = set()
    shown: list[str] = []
    called_from = -1
    for values in emulator.steps():
        pc, sp = values[debugger.pc], emulator.value(arch.sp_register, values)
        vaddr = pc - base
        if called_from >= 0:
            ra = emulator.return_address(values)
            if ra is not None and ra != pc and 0 < ra - called_from < 9:
                frames.append(_Frame(sp, emulator.value(arch.fp_register, values), ra))
        while frames and (sp > frames[-1].sp or (pc == frames[-1].ra and sp == frames[-1].sp)):
            frames.pop()
        # Libraries call functions of the program, too.
        code = emulator.image.bytes_at(vaddr, 4) or emulator.bytes_at(pc, 4)
        called_from = pc if debugger.call.match(code) else -1
        row = rows.get(vaddr)
        if row is None or not frames:
            continue
        compared += 1
        places.add(vaddr)
        problem = _problem(emulator, row, values, frames[-1], shift)
        if problem:
            wrong += 1
            shown += [f"0x{vaddr:x}: {problem}"] if len(shown) < _SHOWN else []
        if compared >= limit:
            break
    return Steps(compared, wrong, len(places), tuple(shown))


def _problem(emulator: _Emulator, row: RowState, values: tuple[int, ...], frame: _Frame, shift: int) -> str:
    """Return what a row says that is not so."""
    arch = emulator.arch
    if not isinstance(row.cfa, Rule) or row.cfa.register is None or row.cfa.deref:
        return ""
    cfa = emulator.value(row.cfa.register, values) + row.cfa.offset + shift
    right = frame.sp + arch.entry_cfa_offset
    if cfa != right:
        return f"CFA 0x{cfa:x} by the row, 0x{right:x}"
    fp = _by_rule(emulator, row.fp, arch.fp_register, values, cfa)
    if fp is not None and fp != frame.fp:
        return f"FP 0x{fp:x} by the row, 0x{frame.fp:x}"
    ra = _by_rule(emulator, row.ra, arch.ra_register, values, cfa)
    mask = _ADDRESS_BITS if row.signing is RaSigning.SIGNED else -1
    if ra is not None and ra & mask != frame.ra & mask:
        return f"RA 0x{ra:x} by the row, 0x{frame.ra:x}"
    return ""


def _by_rule(emulator: _Emulator, rule: RegisterRule, register: int, values: tuple[int, ...], cfa: int) -> int | None:
    if rule is NoRule.UNSPECIFIED:
        return emulator.value(register, values)
    if not isinstance(rule, Rule):
        return None
    value = cfa if rule.register is None else emulator.value(rule.register, values)
    return emulator.word(value + rule.offset) if rule.deref else value + rule.offset
