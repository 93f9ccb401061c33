# SPDX-License-Identifier: Apache-2.0
"""Core files made field by field, right ones and wrong ones, and programs that they may be of."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cfi2sframe.abi import AMD64, S390X, Arch
from cfi2sframe.constants import elf as c
from cfi2sframe.trace import FileMapping, Frame
from tests.support.elf import elf_asm
from tests.support.elf.elf_asm import note
from tests.support.trace.stacks import SECTION_VADDR, STACK, Model, Stack, make_stack

NT_PRSTATUS, NT_AUXV, NT_FILE = 1, 6, 0x46494C45
PAGE: Final = 0x1000
BUILD_ID: Final = bytes(range(20))
#: Where position-independent programs are put.
BIAS: Final = 0x5555_0000_0000
TEXT_VADDR: Final = 0x100000
TEXT_SIZE: Final = 0x20000
NOTE_VADDR: Final = 0x400
#: The frames of an ordinary core's threads.
MODELS: Final = [Model(64, saves_fp=True), Model(0x200, saves_fp=False), Model(96, saves_fp=True)]


class Load(NamedTuple):
    """A PT_LOAD: its address, and its bytes."""

    vaddr: int
    data: bytes


class CoreFile(NamedTuple):
    """A core as stored."""

    arch: Arch
    frames: tuple[tuple[int, Frame], ...]
    loads: tuple[Load, ...] = ()
    mapped: Sequence[FileMapping] = ()
    auxv: tuple[tuple[int, int], ...] = ()
    notes: bytes = b""

    def assemble(self) -> bytes:
        """Return the bytes: file header, program headers, notes, memory."""
        order = self.arch.byte_order
        notes = b"".join(note(b"CORE", NT_PRSTATUS, status(self.arch, *f), order) for f in self.frames) + self.notes
        if self.auxv:
            auxv = b"".join(struct.pack(order + "QQ", *pair) for pair in self.auxv)
            notes += note(b"CORE", NT_AUXV, auxv, order)
        if self.mapped:
            notes += note(b"CORE", NT_FILE, mapped_files(order, self.mapped), order)
        count = 1 + len(self.loads)
        offset = 64 + 56 * count
        headers = struct.pack(order + "IIQQQQQQ", c.PT_NOTE, 0, offset, 0, 0, len(notes), 0, 4)
        body = notes + bytes(-len(notes) % 8)
        for load in self.loads:
            size = len(load.data)
            headers += struct.pack(order + "IIQQQQQQ", c.PT_LOAD, 6, offset + len(body), load.vaddr, 0, size, size, 1)
            body += load.data
        ident = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02") + b"\x01" + bytes(9)
        header = ident + struct.pack(
            order + "HHIQQQIHHHHHH", *(c.ET_CORE, self.arch.elf_machine, 1, 0, 64, 0, 0, 64, 56, count, 0, 0, 0)
        )
        return header + headers + body


def with_headers(core: bytes, order: str, table: bytes) -> bytes:
    """Return a core with another table of program headers, at its end."""
    changed = bytearray(core + bytes(-len(core) % 8))
    struct.pack_into(order + "Q", changed, 32, len(changed))
    struct.pack_into(order + "H", changed, 56, len(table) // 56)
    return bytes(changed + table)


def status(arch: Arch, thread: int, frame: Frame) -> bytes:
    """Return struct elf_prstatus."""
    head = struct.pack(arch.byte_order + "32xi76x", thread)
    return head + registers(arch, frame) + bytes(8)


def registers(arch: Arch, frame: Frame) -> bytes:
    """Return the general registers: those of the frame, the others 0."""
    if arch is AMD64:
        words = [0] * 27
        words[4], words[16], words[19] = frame.fp or 0, frame.pc, frame.sp
    elif arch is S390X:
        words = [0, frame.pc] + [0] * 25
        words[2 + 11], words[2 + 14], words[2 + 15] = frame.fp or 0, frame.ra or 0, frame.sp
    else:
        words = [0] * 34
        words[29], words[30], words[31], words[32] = frame.fp or 0, frame.ra or 0, frame.sp, frame.pc
    return struct.pack(f"{arch.byte_order}{len(words)}Q", *words)


def mapped_files(order: str, mapped: Sequence[FileMapping]) -> bytes:
    """Return what NT_FILE holds."""
    data = struct.pack(order + "QQ", len(mapped), PAGE)
    data += b"".join(struct.pack(order + "QQQ", m.start, m.end, m.file_offset // PAGE) for m in mapped)
    return data + b"".join(m.path.encode() + b"\0" for m in mapped)


def program(arch: Arch, section: bytes, build_id: bytes = BUILD_ID) -> bytes:
    """Return a position-independent program with empty functions and an SFrame section."""
    order = arch.byte_order
    sections = (
        elf_asm.Section(".note", note(b"GNU", 3, build_id, order), 7, 2, NOTE_VADDR, align=4),
        elf_asm.Section(".sframe", section, 1, 2, SECTION_VADDR, align=8),
        elf_asm.Section(".text", bytes(TEXT_SIZE), 1, 6, TEXT_VADDR, align=16),
    )
    segments = (
        elf_asm.Segment(c.PT_LOAD, 4, (".note",), headers=True),
        elf_asm.Segment(c.PT_LOAD, 4, (".sframe",)),
        elf_asm.Segment(c.PT_LOAD, 5, (".text",)),
        elf_asm.Segment(c.PT_NOTE, 4, (".note",)),
    )
    symbols = (elf_asm.Symbol("first", TEXT_VADDR, 0x100), elf_asm.Symbol("_ZN6second1fEv", TEXT_VADDR + PAGE, 0x100))
    return elf_asm.elf_file(
        arch.elf_machine, sections, file_type=c.ET_DYN, little_endian=order == "<", segments=segments, symbols=symbols
    )


def written_program(folder: Path, arch: Arch = AMD64, section: bytes | None = None, name: str = "program") -> str:
    """Write a program, with a section for a stack of `MODELS` where none is given; return its path."""
    (folder / name).write_bytes(program(arch, make_stack(arch, 3, MODELS).section if section is None else section))
    return str(folder / name)


def program_mappings(path: str, bias: int = BIAS) -> tuple[FileMapping, ...]:
    """Return how `program` is mapped."""
    text = bias + TEXT_VADDR
    return (
        FileMapping(bias, bias + PAGE, 0, path),
        FileMapping(bias + SECTION_VADDR, bias + SECTION_VADDR + PAGE, PAGE, path),
        FileMapping(text, text + TEXT_SIZE, 2 * PAGE, path),
    )


def moved(frame: Frame) -> Frame:
    """Return a frame of a program that is loaded elsewhere."""
    return frame._replace(pc=frame.pc + BIAS)


def stack_load(stack: Stack) -> Load:
    """Return a made-up stack's memory; words that lie in the program are its return addresses."""
    end = max(stack.memory, default=STACK) + 8
    data = bytearray(end - STACK)
    for address, word in stack.memory.items():
        in_text = TEXT_VADDR <= word & 0xFFFF_FFFF_FFFF < TEXT_VADDR + TEXT_SIZE
        struct.pack_into(stack.arch.byte_order + "Q", data, address - STACK, word + BIAS if in_text else word)
    return Load(STACK, bytes(data))


def plain_core(arch: Arch, path: str, models: list[Model] = MODELS) -> CoreFile:
    """Return a core of a made-up program, with nothing wrong."""
    stack = make_stack(arch, 3, models)
    return CoreFile(
        arch,
        ((77, moved(stack.frames[0])), (78, moved(stack.frames[0]))),
        (stack_load(stack),),
        program_mappings(path),
        auxv=((3, BIAS + 64), (9, BIAS + TEXT_VADDR), (0, 0)),
    )
