# SPDX-License-Identifier: Apache-2.0
"""A naive evaluator of `.eh_frame`: DWARF 5, 6.4 and 7.24, the LSB and the ABIs' supplements, opcode by opcode.

It shares nothing with the package, remembers nothing, and keeps the rules of every register. pyelftools finds the
section's bytes in a linked file, and reads none of them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from elftools.elf.elffile import ELFFile

#: The name of a rule, and its operands: ("offset", -16), ("register", 3), ("expression", b"..."), ("undefined",).
Rule = tuple[object, ...]
AARCH64 = 183
VG, RA_SIGN_STATE = 46, 34


class Row(NamedTuple):
    """The rules from `start` on (bytes from the function's start); registers without a rule are not in `rules`.

    `cfa` is ("sum", register, offset), ("value", expression), None, or ("unknown",) after a frame of vectors.
    """

    start: int
    cfa: Rule | None
    rules: dict[int, Rule]


class Fde(NamedTuple):
    """An FDE: where it is in its section, its function, the column of the RA, and its rows, the first one at 0."""

    offset: int
    start_vaddr: int
    size: int
    ra_column: int
    rows: list[Row]


class Reader:
    """A position in bytes."""

    def __init__(self, data: bytes, position: int, end: int, *, little: bool) -> None:
        self.data, self.position, self.end, self.little = data, position, end, little

    def fixed(self, size: int, *, signed: bool = False) -> int:
        self.position += size
        assert self.position <= self.end
        raw = self.data[self.position - size : self.position]
        return int.from_bytes(raw, "little" if self.little else "big", signed=signed)

    def uleb(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.fixed(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def sleb(self) -> int:
        start = self.position
        value = self.uleb()
        bits = 7 * (self.position - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def block(self) -> bytes:
        size = self.uleb()
        self.position += size
        assert self.position <= self.end
        return self.data[self.position - size : self.position]

    def pointer(self, encoding: int, section_vaddr: int, *, is_size: bool = False) -> int:
        """A pointer (LSB, "DWARF Exception Header Encoding"); a size has the form alone."""
        base = section_vaddr + self.position if encoding & 0x70 == 0x10 and not is_size else 0
        assert encoding & 0xF0 in (0x00, 0x10), hex(encoding)
        form = encoding & 0x0F
        if form in (0x01, 0x09):
            value = self.uleb() if form == 0x01 else self.sleb()
        else:
            size = {0x00: 8, 0x02: 2, 0x03: 4, 0x04: 8, 0x0A: 2, 0x0B: 4, 0x0C: 8}[form]
            value = self.fixed(size, signed=form >= 0x0A and not is_size)
        return (base + value) % (1 << 64)


class Cie(NamedTuple):
    code_align: int
    data_align: int
    ra_column: int
    encoding: int
    has_sizes: bool
    code: tuple[int, int]


def fdes_of(path: Path) -> Iterator[Fde]:
    """Yield the FDEs of a linked file's .eh_frame."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        section = elf.get_section_by_name(".eh_frame")
        assert section is not None
        data, vaddr = bytes(section.data()), int(section["sh_addr"])
        machine, little = elf.header["e_machine"], elf.little_endian
    yield from fdes_in(data, vaddr, little=little, is_aarch64=machine == "EM_AARCH64")


def fdes_in(data: bytes, vaddr: int, *, little: bool, is_aarch64: bool, is_damaged: bool = False) -> Iterator[Fde]:
    """Yield the FDEs of a section's bytes; of a damaged section, those that can be read."""
    position = 0
    while position + 4 <= len(data):
        start = Reader(data, position, len(data), little=little)
        length = start.fixed(4)
        if length == 0xFFFFFFFF:
            length = start.fixed(8)
        offset, position = position, start.position + length
        entry = Reader(data, start.position, min(position, len(data)), little=little)
        try:
            if length and (fde := _fde(entry, offset, vaddr, is_aarch64=is_aarch64)):
                yield fde
        except (AssertionError, LookupError, ValueError):
            if not is_damaged:
                raise


def _fde(entry: Reader, offset: int, vaddr: int, *, is_aarch64: bool) -> Fde | None:
    """Return the FDE at an offset; None for a CIE."""
    field = entry.position
    distance = entry.fixed(4)
    if distance == 0:
        return None
    cie = cie_at(entry.data, field - distance, vaddr, little=entry.little)
    pc_begin = entry.pointer(cie.encoding, vaddr)
    pc_range = entry.pointer(cie.encoding, vaddr, is_size=True)
    if cie.has_sizes:
        entry.block()
    rows = rows_of(entry, cie, entry.data, is_aarch64=is_aarch64)
    return Fde(offset, pc_begin, pc_range, cie.ra_column, rows)


def cie_at(data: bytes, offset: int, section_vaddr: int, *, little: bool) -> Cie:
    reader = Reader(data, offset, len(data), little=little)
    length = reader.fixed(4)
    if length == 0xFFFFFFFF:
        length = reader.fixed(8)
    end = reader.end = reader.position + length
    assert reader.fixed(4) == 0
    version = reader.fixed(1)
    letters = data[reader.position : data.index(b"\0", reader.position)].decode()
    reader.position += len(letters) + 1
    code_align, data_align = reader.uleb(), reader.sleb()
    ra_column = reader.fixed(1) if version == 1 else reader.uleb()
    encoding = 0
    if letters.startswith("z"):
        size = reader.uleb()
        after = reader.position + size
        for letter in letters[1:]:
            if letter == "R":
                encoding = reader.fixed(1)
            elif letter == "L":
                reader.fixed(1)
            elif letter == "P":
                form = reader.fixed(1)
                reader.pointer(form & 0x0F, section_vaddr)
        reader.position = after
    return Cie(code_align, data_align, ra_column, encoding, letters[:1] == "z", (reader.position, end))


def rows_of(code: Reader, cie: Cie, data: bytes, *, is_aarch64: bool) -> list[Row]:
    """Return the rows after an FDE's instructions; of several at one location, the last one (6.4.3)."""
    machine = Machine(cie, is_aarch64=is_aarch64)
    machine.run(Reader(data, *cie.code, little=code.little))
    machine.location, machine.rows, machine.initial = 0, [], dict(machine.rules)
    machine.run(code)
    machine.end_row()
    last = {row.start: row for row in machine.rows}
    return [last[start] for start in sorted(last)]


def signed(value: int) -> int:
    """Wrap to a word, as the values of an unwinder are."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


class Machine:
    def __init__(self, cie: Cie, *, is_aarch64: bool) -> None:
        self.cie, self.is_aarch64 = cie, is_aarch64
        self.location = 0
        self.register: int | None = None
        self.offset: int | None = None
        self.expression: bytes | None = None
        self.rules: dict[int, Rule] = {}
        self.initial: dict[int, Rule] = {}
        self.stack: list[tuple[object, ...]] = []
        self.rows: list[Row] = []

    def end_row(self) -> None:
        cfa: Rule | None = None
        if self.expression is not None:
            cfa = ("value", self.expression)
        elif self.register is not None:
            cfa = ("unknown",) if self.offset is None else ("sum", self.register, signed(self.offset))
        self.rows.append(Row(self.location, cfa, dict(self.rules)))

    def advance(self, units: int) -> None:
        self.end_row()
        self.location += units * self.cie.code_align

    def toggle(self, bits: int) -> None:
        (state,) = self.rules.get(RA_SIGN_STATE, ("state", 0))[1:]
        assert isinstance(state, int)
        self.rules[RA_SIGN_STATE] = ("state", state ^ bits)

    def set(self, register: int, *rule: object) -> None:
        self.rules[register] = rule

    def restore(self, register: int) -> None:
        self.rules.pop(register, None)
        if register in self.initial:
            self.rules[register] = self.initial[register]

    def run(self, code: Reader) -> None:
        while code.position < code.end:
            self.step(code)

    def step(self, code: Reader) -> None:  # noqa: C901, PLR0912, PLR0915 - the table of 7.24
        scale = self.cie.data_align
        opcode = code.fixed(1)
        low = opcode & 0x3F
        match opcode & 0xC0 or opcode:
            case 0x40:
                self.advance(low)
            case 0x80:
                self.rules[low] = ("offset", signed(code.uleb() * scale))
            case 0xC0:
                self.restore(low)
            case 0x00:
                pass
            case 0x02 | 0x03 | 0x04:
                self.advance(code.fixed(1 << (opcode - 2)))
            case 0x05:
                self.set(code.uleb(), "offset", signed(code.uleb() * scale))
            case 0x06:
                self.restore(code.uleb())
            case 0x07:
                self.set(code.uleb(), "undefined")
            case 0x08:
                self.set(code.uleb(), "same value")
            case 0x09:
                self.set(code.uleb(), "register", code.uleb())
            case 0x0A:
                self.stack.append((self.register, self.offset, self.expression, dict(self.rules)))
            case 0x0B:
                self.register, self.offset, self.expression, self.rules = self.stack.pop()  # type: ignore[assignment]
            case 0x0C:
                self.register, self.offset, self.expression = code.uleb(), code.uleb(), None
            case 0x0D:
                if self.expression is not None and bytes((0x92, VG)) in self.expression:
                    # The offset before the expression lacks what was a multiple of VG.
                    self.offset = None
                self.register, self.expression = code.uleb(), None
            case 0x0E:
                self.offset = code.uleb()
            case 0x0F:
                self.expression = code.block()
            case 0x10:
                self.set(code.uleb(), "expression", code.block())
            case 0x11:
                self.set(code.uleb(), "offset", signed(code.sleb() * scale))
            case 0x12:
                self.register, self.offset, self.expression = code.uleb(), code.sleb() * scale, None
            case 0x13:
                self.offset = code.sleb() * scale
            case 0x14:
                self.set(code.uleb(), "val_offset", signed(code.uleb() * scale))
            case 0x15:
                self.set(code.uleb(), "val_offset", signed(code.sleb() * scale))
            case 0x16:
                self.set(code.uleb(), "val_expression", code.block())
            case 0x2C if self.is_aarch64:
                self.toggle(3)
            case 0x2D:
                # SPARC's window_save means nothing on the other ABIs.
                self.toggle(int(self.is_aarch64))
            case 0x2E:
                code.uleb()
            case 0x2F:
                self.set(code.uleb(), "offset", signed(-code.uleb() * scale))
            case _:
                raise AssertionError(hex(opcode))
