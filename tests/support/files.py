# SPDX-License-Identifier: Apache-2.0
"""Files with holes or access control lists; static archives, made by hand: headers may say anything of what follows."""

import os
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.constants.elf import ELFCOMPRESS_ZLIB, SHF_COMPRESSED
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.edit import File
from tests.support.elf.samples import CODE, SHF_ALLOC, TEXT_VADDR, cie_of, object_file

ARCHIVE: Final = b"!<arch>\n"
THIN: Final = b"!<thin>\n"


def member(name: bytes, content: bytes = b"", size: int | None = None, *, is_apart: bool = False) -> bytes:
    """Return a member with its header, which says that it has `size` bytes; one that `is_apart` is only named."""
    stated = str(len(content) if size is None else size).encode()
    header = name.ljust(16) + b"0".ljust(12) + b"0".ljust(6) + b"0".ljust(6) + b"644".ljust(8) + stated.ljust(10)
    return header + b"`\n" + (b"" if is_apart else content + b"\n" * (len(content) % 2))


def named(name: bytes, size: int = 0) -> bytes:
    """Return the header with which a thin archive names a file."""
    return member(name, size=size, is_apart=True)


def with_access_list(path: Path, name: str = "system.posix_acl_access") -> bytes:
    """Give a file a POSIX access control list and return it; skip where there are none.

    One more user than the owner may do all, and the owning group may do nothing.
    """
    no_id = 0xFFFFFFFF
    entries = ((0x01, 7, no_id), (0x02, 7, 12345), (0x04, 0, no_id), (0x10, 7, no_id), (0x20, 0, no_id))
    content = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, name, content)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")
    return content


def sparse(path: Path, pieces: dict[int, bytes], size: int) -> int:
    """Write these pieces, by their places, into a hole; return the bytes on the disk. Skip where there are no holes."""
    try:
        with path.open("wb") as file:
            for start, data in pieces.items():
                file.seek(start)
                file.write(data)
            file.truncate(size)
            os.fsync(file.fileno())
    except OSError as error:
        pytest.skip(f"no such files here: {error}")
    stored = path.stat().st_blocks * 512
    if stored >= size // 2:
        pytest.skip("this file system has no holes")
    return stored


@cache
def zeros_packed(size: int) -> bytes:
    """Return a file whose `.debug_frame` is so many zeros, packed into a thousandth of them."""
    packer, block_size = zlib.compressobj(9), 1 << 22
    first = packer.compress(bytes(block_size)) + packer.flush(zlib.Z_FULL_FLUSH)
    packed = first + first[2:] * (size // block_size - 1)
    text = asm.Section(".text", bytes(64), 1, CODE, TEXT_VADDR)
    frame = asm.Section(".debug_frame", struct.pack("<IIQQ", ELFCOMPRESS_ZLIB, 0, size, 1) + packed, 1, SHF_COMPRESSED)
    return asm.elf_file(AMD64.elf_machine, (text, frame), file_type=3, segments=(asm.Segment(1, 5, (".text",)),))


def headers_over_words(kind: int, count: int = 200, word_count: int = 500) -> bytes:
    """Return an object with section headers of one type over the same words, which are words of many meanings."""
    words = b"".join(struct.pack("<QQQ", 8 * n, 8, 0) for n in range(word_count // 3))
    text, data = asm.Section(".text", bytes(64), 1, CODE), asm.Section(".data", words, 1, SHF_ALLOC)
    file = File(asm.elf_file(AMD64.elf_machine, (text, data, *[asm.Section(".many", b"", 1)] * count)))
    shared = file.section(2)
    fields = {"type": kind, "offset": shared.offset, "size": shared.size, "link": 2, "info": 1, "entsize": 24}
    for index in range(3, 3 + count):
        file.section(index).set(**fields, addralign=8)
    return bytes(file)


def object_with_function(name: str) -> bytes:
    """Return an object with a function whose row no SFrame can have, so that reports name it."""
    unsayable = asm.Fde(cie_of(AMD64, asm.def_cfa_expression(b"\x30")), 0, 64)
    symbol = asm.Symbol(name, size=64, info=0x12, section=".text")
    return object_file(AMD64, {".text": (unsayable,)}, text=bytes(64), symbols=(symbol,))


def endless_name(number: int) -> str:
    """Return a name that keeps a demangler busy for ever: each level doubles the text."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    levels = "".join(f"ES_IS{digit}_S{digit}_" for digit in digits[1:35])
    return f"_Z4f{number:03}1AIiiES_IS0_S0_{levels}E"
