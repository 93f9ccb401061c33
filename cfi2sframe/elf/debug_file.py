# SPDX-License-Identifier: Apache-2.0
"""Find the separate debug file of a linked file, and check that it belongs to the file.

Compilers that write no `.eh_frame` leave the CFI in `.debug_frame`, which `strip` removes from the program. The
search is made only on request, because the same input has to give the same bytes on every machine.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from copy import copy
from typing import Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.headers import Buffer, ByteOrder
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import File, in_root, load, open_regular, read_open, stored_size
from cfi2sframe.elf.notes import parse_notes
from cfi2sframe.errors import InputError, checked_path, reason_of
from cfi2sframe.process.guard import part

#: Search where gdb does.
AUTO: Final = "auto"
#: The directory in which distributions install debug files; gdb's debug file directory.
_SYSTEM_FOLDER: Final = "/usr/lib/debug"
_NT_GNU_BUILD_ID: Final = 3
_BLOCK_SIZE: Final = 1 << 20


class _DebugLink(NamedTuple):
    """`.gnu_debuglink`: the name of the debug file, and the CRC-32 of all its bytes."""

    name: str
    crc: int


@contextmanager
def with_debug_file(image: ElfImage, where: str | None, root: str = "") -> Iterator[ElfImage]:
    """Yield the image with the debug file that `find_debug_file` finds; the image alone if none, or `where` is None.

    In the block, the limits of a job allow for the size of both files. Raises what `find_debug_file` raises.
    """
    debug = None if where is None else find_debug_file(image, where, root)
    if debug is None:
        yield image
        return
    both = copy(image)
    both.debug_file = debug
    with closing(debug), part(stored_size(image.data) + stored_size(debug.data)):
        yield both


def find_debug_file(image: File, where: str | os.PathLike[str], root: str = "") -> ElfImage | None:
    """Return the separate debug file of a linked file, given as for `load`; None if there is none.

    `where` is its path, or a directory like `/usr/lib/debug`, or "auto" for that one. A directory is searched as gdb
    does: by build-id, then by the name in `.gnu_debuglink`, also beside the file and in `.debug/` there; files that do
    not belong to this one are passed over. `root` is the directory below which the file is, if it is of another process
    or machine: paths that the caller does not name are searched only there. Raises `InputError` when the file at a path
    cannot be used for the image, `RequestError` when `where` is no path.
    """
    where, image = checked_path(where), load(image)
    if where != AUTO and not os.path.isdir(where):
        try:
            debug = _open(where)
            reason = _why_not(image, debug)
        except (InputError, OSError) as error:
            raise InputError(reason_of(error), where) from None
        if reason:
            raise InputError(reason, where)
        return debug
    for path, top in _candidates(image, where, root):
        try:
            debug = _open(path, top)
            if not _why_not(image, debug):
                return debug
        except (InputError, OSError):
            continue
    return None


def _candidates(image: ElfImage, where: str, root: str) -> Iterator[tuple[str, str]]:
    """Yield the paths at which gdb looks for the debug file of a file, each with the root that it is below."""
    folder = _SYSTEM_FOLDER if where == AUTO else where

    def in_folder(*names: str) -> tuple[str, str]:
        path = os.path.join(folder, *names)
        return (path, root) if where == AUTO else in_root(path, root)

    build_id = build_id_of(image).hex()
    if build_id:
        yield in_folder(".build-id", build_id[:2], f"{build_id[2:]}.debug")
    link = _debug_link(image)
    # By its format, the name has no directories.
    if link is not None and os.sep not in link.name:
        # In another root, a damaged core may name the file by "..".
        own = os.path.dirname(os.path.abspath(image.name) if root else os.path.realpath(image.name))
        yield os.path.join(own, link.name), root
        yield os.path.join(own, ".debug", link.name), root
        yield in_folder(own.lstrip(os.sep), link.name)


def _open(path: str, root: str = "") -> ElfImage:
    """Open an ELF file. Raises `InputError`, `OSError`."""
    descriptor = open_regular(path, root)
    try:
        return ElfImage(read_open(descriptor), path)
    finally:
        os.close(descriptor)


def _why_not(image: ElfImage, debug: ElfImage) -> str:
    """Return why a file is not the debug file of an image; empty if it is. Raises `ElfError`, `ChangedError`."""
    if image.is_relocatable:
        return "debug files of relocatable objects are not read"
    if debug.is_relocatable:
        return "no debug file of a program: an object, or what dwz or -gsplit-dwarf has split off, which has no CFI"
    if image.arch != debug.arch:
        return f"a file for {debug.arch.name}; the code is for {image.arch.name}"
    own, other = build_id_of(image), build_id_of(debug)
    if own and other:
        if own != other:
            return f"the debug file of another build: its build-id is {other.hex()}, that of the code {own.hex()}"
    else:
        link = _debug_link(image)
        if link is None:
            return "nothing shows whether it belongs to the code: there are neither two build-ids nor a .gnu_debuglink"
        crc = _crc_of(debug.data)
        if crc != link.crc:
            return f"the debug file of another build: its CRC is {crc:08x}, that in .gnu_debuglink {link.crc:08x}"
    if _code_places(image, by_section=bool(image.sections)) != _code_places(debug, by_section=bool(image.sections)):
        return "the code is at other addresses than in this debug file: it was rewritten after linking"
    return ""


def _code_places(image: ElfImage, *, by_section: bool) -> set[tuple[int, int]]:
    if by_section:
        return {(code.start_vaddr, code.end_vaddr) for code in image.code_ranges}
    # Their sizes may differ: a section that was added may be at the end of a segment.
    return {(p.vaddr, 0) for p in image.segments if p.type == c.PT_LOAD and p.flags & c.PF_X}


def build_id_of(image: ElfImage) -> bytes:
    """Return the build-id of a file, empty without one. Raises `ElfError`."""
    # The program headers of a debug file may lead to other bytes.
    notes = [(image.section_bytes(s), s.alignment) for s in image.sections if s.type == c.SHT_NOTE]
    if not image.sections:
        segments = (p for p in image.segments if p.type == c.PT_NOTE)
        notes = [(image.bytes_at(p.vaddr, p.file_size) or b"", p.alignment) for p in segments]
    return build_id_in(notes, image.byte_order)


def build_id_in(contents: Iterable[tuple[Buffer, int]], byte_order: ByteOrder) -> bytes:
    """Return the build-id in the contents of note sections, given with their alignments; empty without one."""
    for data, alignment in contents:
        for note in parse_notes(data, byte_order, alignment):
            if (note.owner, note.type) == (b"GNU", _NT_GNU_BUILD_ID):
                return note.data
    return b""


def _debug_link(image: ElfImage) -> _DebugLink | None:
    for section in image.sections_named(".gnu_debuglink"):
        data = image.section_bytes(section)
        name, _, _ = data.partition(b"\0")
        # The number is aligned to 4 bytes.
        start = -(-(len(name) + 1) // 4) * 4
        if len(data) >= start + 4:
            return _DebugLink(os.fsdecode(name), struct.unpack_from(image.byte_order + "I", data, start)[0])
    return None


def _crc_of(data: FileData) -> int:
    import zlib

    crc = 0
    for start in range(0, len(data), _BLOCK_SIZE):
        crc = zlib.crc32(data[start : start + _BLOCK_SIZE], crc)
    return crc
