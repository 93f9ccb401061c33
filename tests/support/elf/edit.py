# SPDX-License-Identifier: Apache-2.0
"""ELF64 files of which tests change headers, by the names of their fields."""

import struct
from typing import Final, Self


def _layout(text: str, start: int = 0) -> dict[str, tuple[str, int]]:
    """Return the code and the place of each field, given as `name:code`, one after the other."""
    found = {}
    for name, _, code in (word.partition(":") for word in text.split()):
        found[name] = code, start
        start += struct.calcsize(code)
    return found


FILE_HEADER: Final = _layout(
    "type:H machine:H version:I entry:Q phoff:Q shoff:Q flags:I ehsize:H phentsize:H phnum:H shentsize:H shnum:H"
    " shstrndx:H",
    16,
)
PROGRAM_HEADER: Final = _layout("type:I flags:I offset:Q vaddr:Q paddr:Q filesz:Q memsz:Q align:Q")
SECTION_HEADER: Final = _layout("name:I type:I flags:Q addr:Q offset:Q size:Q link:I info:I addralign:Q entsize:Q")


class Header:
    """A header at a `place` in a file: each field is an attribute, named as in the gABI without its prefix."""

    place: int
    _file: bytearray
    _layout: dict[str, tuple[str, int]]

    def __init__(self, file: bytearray, place: int, layout: dict[str, tuple[str, int]]) -> None:
        self.__dict__.update(place=place, _file=file, _layout=layout)

    def _form(self, name: str) -> tuple[str, int]:
        code, at = self._layout[name]
        return ("<" if self._file[5] == 1 else ">") + code, self.place + at

    def __getattr__(self, name: str) -> int:
        code, at = self._form(name)
        return int(struct.unpack_from(code, self._file, at)[0])

    def __setattr__(self, name: str, value: int) -> None:
        code, at = self._form(name)
        struct.pack_into(code, self._file, at, value)

    def set(self, **values: int) -> Self:
        """Store values in fields."""
        for name, value in values.items():
            setattr(self, name, value)
        return self

    def add(self, **deltas: int) -> Self:
        """Add to fields."""
        return self.set(**{name: getattr(self, name) + delta for name, delta in deltas.items()})


class File(bytearray):
    """The bytes of a file."""

    @property
    def header(self) -> Header:
        return Header(self, 0, FILE_HEADER)

    def segment(self, kind: int, number: int = 0) -> Header:
        """Return the program header of a type; of several, the one with that number."""
        start, count = self.header.phoff, self.header.phnum
        headers = (Header(self, at, PROGRAM_HEADER) for at in range(start, start + 56 * count, 56))
        return [header for header in headers if header.type == kind][number]

    def section(self, which: str | int) -> Header:
        """Return the header of the first section of a name, or the one with that index, of which -1 is the last."""
        if isinstance(which, int):
            index = which if which >= 0 else which + self.header.shnum
            return Header(self, self.header.shoff + 64 * index, SECTION_HEADER)
        names = self.section(self.header.shstrndx).offset
        headers = map(self.section, range(self.header.shnum))
        return next(header for header in headers if self.startswith(which.encode() + b"\0", names + header.name))

    def flip(self, place: int) -> None:
        self[place] ^= 0x40
