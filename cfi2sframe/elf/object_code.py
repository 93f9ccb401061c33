# SPDX-License-Identifier: Apache-2.0
"""An image's code as it runs, and its tables: in an object, with relocations applied against the image's layout.

Each symbol that an object does not define gets an address of its own outside of all sections, where calls lead.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Literal

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.headers import ElfSection
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.sections import CodeRange
from cfi2sframe.errors import ElfError

#: A word of a table of jumps: bits, shift and size (see `Arch.branch_relocations`).
_WORD: Final = (64, 0, 8)
#: Addresses between two symbols that are not defined.
_IMPORT_SIZE: Final = 16
_IMPORT_ALIGNMENT: Final = 1 << 20


class RelocatedCode:
    """The bytes of an image's code, and `imports`: the names of an object's undefined symbols, by their addresses."""

    def __init__(self, image: ElfImage) -> None:
        self.image = image
        self.imports: dict[int, str] = {}
        self._sections: dict[int, bytes] = {}
        self._first_import = 0
        #: Relocation sections, by the index of the section that they apply to.
        self._relocations: dict[int, list[ElfSection]] = {}
        if image.is_relocatable:
            end = max((section.vaddr + section.size for section in image.sections), default=0)
            self._first_import = -(-end // _IMPORT_ALIGNMENT) * _IMPORT_ALIGNMENT + _IMPORT_ALIGNMENT
            self.imports = dict(self._undefined())
            for table in image.sections:
                if table.type == c.SHT_RELA and table.link < len(image.sections):
                    self._relocations.setdefault(table.info, []).append(table)

    def read(self, code: CodeRange, start_vaddr: int, end_vaddr: int) -> bytes:
        """Return the bytes at addresses in a code range; fewer where the file does not have them."""
        if not self.image.is_relocatable:
            return self.image.code_bytes(code, start_vaddr, end_vaddr)
        section = self.image.sections[code.section_index]
        return self._contents(section)[start_vaddr - section.vaddr : end_vaddr - section.vaddr]

    def data_at(self, vaddr: int, size: int) -> bytes | None:
        """Return `size` bytes of data at an address; None where the file does not have them."""
        if not self.image.is_relocatable:
            return self.image.bytes_at(vaddr, size)
        section = self.image.section_at(vaddr)
        if section is None:
            return None
        data = self._contents(section)[vaddr - section.vaddr : vaddr - section.vaddr + size]
        return data if len(data) == size else None

    def _contents(self, section: ElfSection) -> bytes:
        """Return a section's relocated bytes; none where it leaves the file."""
        if section.index not in self._sections:
            self._sections[section.index] = b""
            with suppress(ElfError):
                self._sections[section.index] = self._relocated(self.image.section_bytes(section), section)
        return self._sections[section.index]

    def _undefined(self) -> Iterator[tuple[int, str]]:
        for table in self.image.symbol_tables:
            if table.type == c.SHT_SYMTAB:
                with suppress(ElfError):
                    for number, symbol in enumerate(self.image.symbols(table)):
                        if symbol.section_index == c.SHN_UNDEF and symbol.name:
                            yield self._first_import + _IMPORT_SIZE * number, symbol.name

    def _relocated(self, content: bytes, section: ElfSection) -> bytes:
        """Return a section's bytes, with the relocations of calls, jumps, loads of addresses, and tables applied."""
        image = self.image
        arch = image.arch
        data = bytearray(content)
        forms = {arch.absolute_relocation: _WORD, arch.pc64_relocation: _WORD, **arch.branch_relocations}
        data_order: Literal["little", "big"] = "little" if arch.byte_order == "<" else "big"
        for table in self._relocations.get(section.index, ()):
            try:
                entries = image.records(table, "QQq")
                symbol_vaddrs = image.symbol_vaddrs(image.sections[table.link])
            except ElfError:
                continue
            for offset, info, addend in entries:
                form = forms.get(info & 0xFFFFFFFF)
                if form is None or offset + form[2] > len(data) or info >> 32 >= len(symbol_vaddrs):
                    continue
                target = symbol_vaddrs[info >> 32]
                if target is None:
                    target = self._first_import + _IMPORT_SIZE * (info >> 32)
                origin = 0 if info & 0xFFFFFFFF == arch.absolute_relocation else section.vaddr + offset
                # Big-endian AArch64 has little-endian instructions.
                order = data_order if form is _WORD else arch.instruction_order
                _write(data, offset, form, target + addend - origin, order)
        return bytes(data)


def _write(
    data: bytearray, offset: int, form: tuple[int, int, int], distance: int, order: Literal["little", "big"]
) -> None:
    """Write a distance into the lowest bits of a field."""
    bits, shift, size = form
    mask = (1 << bits) - 1
    word = int.from_bytes(data[offset : offset + size], order)
    data[offset : offset + size] = (word & ~mask | distance >> shift & mask).to_bytes(size, order)
