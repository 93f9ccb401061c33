# SPDX-License-Identifier: Apache-2.0
"""An assembler of Go's table of functions: records in, a linked file with `.gopclntab` out."""

import struct
from typing import Final, NamedTuple

from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import CODE, SHF_ALLOC, SHT_NOBITS, TEXT_VADDR, loaded_file

TABLE_VADDR: Final = 0x40000
MODULE_VADDR: Final = 0x60000
TOP_FRAME: Final = 1
SP_WRITE: Final = 2
GO_1_18: Final = 0xFFFFFFF0
GO_1_20: Final = 0xFFFFFFF1
QUANTA: Final = {AMD64.name: 1, AARCH64_LE.name: 4, S390X.name: 2}


class GoFunction(NamedTuple):
    """A function at `start`, counted from the code's start, with `depths`: (bytes of code, depth of the frame)."""

    start: int
    depths: tuple[tuple[int, int], ...] = ()
    name: str = "main.main"
    flags: int = 0
    #: In place of what follows from `depths`: the offset of the list among the values by PC.
    depths_offset: int | None = None
    #: In place of `start`, in the function's record.
    own_start: int | None = None


class GoTable(NamedTuple):
    """A table of functions, which end at `end`, counted from the code's start."""

    functions: tuple[GoFunction, ...]
    end: int
    magic: int = GO_1_18
    text_vaddr: int = TEXT_VADDR
    #: Values by PC, in place of those of the functions.
    values: bytes | None = None

    def assemble(self, arch: Arch) -> bytes:
        """Return the table's bytes."""
        order, quantum = arch.byte_order, QUANTA[arch.name]
        names, name_offsets = b"\0", list[int]()
        values, value_offsets = b"\0", list[int]()
        for function in self.functions:
            name_offsets.append(len(names))
            names += function.name.encode() + b"\0"
            value_offsets.append(len(values) if function.depths else 0)
            if function.depths:
                values += depth_list(function.depths, quantum)
        if self.values is not None:
            values = self.values
        functab_size = 8 * len(self.functions) + 4
        functab, records = b"", b""
        for function, name, depths in zip(self.functions, name_offsets, value_offsets, strict=True):
            functab += struct.pack(order + "II", function.start, functab_size + len(records))
            own_start = function.start if function.own_start is None else function.own_start
            offset = depths if function.depths_offset is None else function.depths_offset
            records += struct.pack(order + "9I", own_start, name, 0, 0, offset, 0, 0, 0, 0)
            if self.magic == GO_1_20:
                records += b"\xff" * 4  # startLine
            records += bytes((0, function.flags, 0, 0))
        functab += struct.pack(order + "I", self.end)
        names_offset = 72
        values_offset = names_offset + len(names)
        functions_offset = values_offset + len(values)
        header = struct.pack(order + "IHBB", self.magic, 0, quantum, 8)
        header += struct.pack(
            order + "8Q",
            *(len(self.functions), 0, self.text_vaddr),
            *(names_offset, values_offset, values_offset, values_offset, functions_offset),
        )
        return header + names + values + functab + records


def depth_list(depths: tuple[tuple[int, int], ...], quantum: int) -> bytes:
    """Return depths as values by PC: pairs of a change (zigzag) and of a distance, ended by 0."""
    out, last = b"", -1
    for size, depth in depths:
        change = depth - last
        out += asm.uleb128(2 * change if change >= 0 else -2 * change - 1) + asm.uleb128(size // quantum)
        last = depth
    return out + b"\0"


def go_file(
    arch: Arch,
    table: GoTable | bytes,
    *more: asm.Section,
    name: str = ".gopclntab",
    code_size: int = 0x1000,
    code: bytes = b"",
) -> bytes:
    """Return a linked file with a table, and with more sections; without `code`, its size has to do."""
    text_type, size = (1, 0) if code else (SHT_NOBITS, code_size)
    data = table if isinstance(table, bytes) else table.assemble(arch)
    text = asm.Section(".text", code, text_type, CODE, TEXT_VADDR, nobits_size=size)
    return loaded_file(arch, (text, asm.Section(name, data, 1, SHF_ALLOC, TABLE_VADDR, align=32), *more))
