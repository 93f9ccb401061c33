# SPDX-License-Identifier: Apache-2.0
"""Find `.eh_frame` and `.debug_frame` in an image, and return their bytes: decompressed and, in objects, relocated.

Knows where CFI is and which relocations apply to it, but not what a CIE is.
"""

import struct
import sys
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.frame_header import frame_header
from cfi2sframe.elf.headers import ElfSection
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ElfError, UnfitError

CfiKind = Literal["eh_frame", "debug_frame", "gopclntab", "debug_file", "code"]

#: The sources of CFI, the best one first: an address belongs to the best source that has an FDE there. "debug_file" is
#: the `.debug_frame` of the separate debug file; "code" is what instructions say of code that no other source has. Both
#: are read only when asked for.
CFI_KINDS: Final[tuple[CfiKind, ...]] = ("eh_frame", "debug_frame", "gopclntab", "debug_file", "code")
#: The names of the sources in reports.
SOURCE_NAMES: Final[dict[CfiKind, str]] = {
    "eh_frame": ".eh_frame",
    "debug_frame": ".debug_frame",
    "gopclntab": ".gopclntab",
    "debug_file": ".debug_frame of the debug file",
    "code": "code",
}

#: Elf64_Chdr.
_COMPRESSION_HEADER_SIZE: Final = 24
_ZSTD_PIECE_SIZE: Final = 1 << 20
#: R_X86_64_NONE, R_AARCH64_NONE and so on.
_R_NONE: Final = 0


class Relocation(NamedTuple):
    """An entry of a relocation section. `.rela.sframe` gets those of function starts."""

    type: int
    symbol_index: int
    addend: int


class CfiSection(NamedTuple):
    """The bytes of one CFI section, relocated, and the addresses that its pointers may be relative to.

    `vaddr` is the address of the first byte (0 for `.debug_frame`, which is never loaded). `relocations` maps
    offsets in `data` to the relocations that were applied there; `unresolved` are the offsets of relocations that could
    not be applied. `is_of_object`: only relocations give addresses. `table_vaddr` is the address of the
    global offset table, None without one. `must_find_offset` is set where no section header gives the section's size:
    the section ends at the first terminator after that offset in `data`.
    """

    name: str
    kind: CfiKind
    data: bytes
    vaddr: int
    relocations: dict[int, Relocation]
    unresolved: frozenset[int]
    table_vaddr: int | None
    must_find_offset: int | None = None
    is_of_object: bool = False

    @property
    def size(self) -> int:
        """The section's size in bytes."""
        return len(self.data)


def eh_frames(image: ElfImage) -> tuple[CfiSection, ...]:
    """Return the `.eh_frame` of a linked file, or all sections of that name in an object; none without an FDE.

    Raises `ElfError` when it cannot be read.
    """
    sections = [s for s in image.sections_named(".eh_frame") if s.flags & c.SHF_ALLOC]
    if sections:
        # A section of terminators only, as static Go programs have it, holds no FDE.
        return tuple(s for s in _sections(image, sections, "eh_frame") if s.data.strip(b"\0"))
    if image.sections or image.is_relocatable:
        return ()
    frames = _eh_frame_by_header(image)
    return () if frames is None else (frames,)


def debug_frames(image: ElfImage) -> tuple[CfiSection, ...]:
    """Return all sections named `.debug_frame`, decompressed.

    Raises `ElfError` when one cannot be read, `UnfitError` when BOLT has rewritten the file.
    """
    sections = list(image.sections_named(".debug_frame"))
    if sections and any(image.sections_named(".note.bolt_info")):
        raise UnfitError("it describes the code as it was before BOLT (.note.bolt_info)", ".debug_frame")
    return _sections(image, sections, "debug_frame")


def debug_file_frames(image: ElfImage) -> tuple[CfiSection, ...]:
    """Return the sections named `.debug_frame` of the image's debug file, named after it; none without a debug file.

    Addresses are those of the image. Raises `ElfError` when one cannot be read.
    """
    debug = image.debug_file
    if debug is None:
        return ()
    return tuple(s._replace(name=f"{debug.name}({s.name})", kind="debug_file") for s in debug_frames(debug))


def _sections(image: ElfImage, sections: list[ElfSection], kind: CfiKind) -> tuple[CfiSection, ...]:
    """Read sections of CFI. Raises `ElfError` when they, their relocations or symbols add up to more than the file."""
    _refuse_overlap(image, sections)
    tables = _relocation_tables(image, sections) if image.is_relocatable else {}
    all_tables = [table for group in tables.values() for table in group]
    links = {table.link for table in all_tables}
    _refuse_overlap(image, all_tables)
    _refuse_overlap(image, [image.sections[link] for link in links if link < len(image.sections)])
    table_vaddr = _table_vaddr(image)
    return tuple(_section(image, s, kind, tables.get(s.index, ()), table_vaddr) for s in sections)


def _refuse_overlap(image: ElfImage, sections: list[ElfSection]) -> None:
    total = sum(section.size for section in sections)
    if total > len(image.data) and len(sections) > 1:
        raise ElfError(f"{total} bytes of such sections in a file of {len(image.data)} bytes", sections[0].name)


def _relocation_tables(image: ElfImage, sections: list[ElfSection]) -> dict[int, list[ElfSection]]:
    """Return, by the index of each section, the relocation sections that apply to it, in file order."""
    tables: dict[int, list[ElfSection]] = {section.index: [] for section in sections}
    for table in image.sections:
        if table.type in (c.SHT_RELA, c.SHT_REL) and table.info in tables:
            tables[table.info].append(table)
    return tables


def _section(
    image: ElfImage, section: ElfSection, kind: CfiKind, tables: Sequence[ElfSection], table_vaddr: int | None
) -> CfiSection:
    data = image.section_bytes(section)
    if section.flags & c.SHF_COMPRESSED:
        data = _decompressed(image, section, data)
    relocations: dict[int, Relocation] = {}
    unresolved: frozenset[int] = frozenset()
    vaddr = section.vaddr if kind == "eh_frame" else 0
    if image.is_relocatable:
        data, relocations, unresolved = _relocate(image, tables, data, vaddr)
    return CfiSection(
        section.name, kind, data, vaddr, relocations, unresolved, table_vaddr, is_of_object=image.is_relocatable
    )


def _table_vaddr(image: ElfImage) -> int | None:
    """Return the base of DW_EH_PE_datarel: the address of the global offset table."""
    for name in (".got.plt", ".got"):
        for section in image.sections:
            if section.name == name:
                return section.vaddr
    return None


def _decompressed(image: ElfImage, section: ElfSection, data: bytes) -> bytes:
    """Undo SHF_COMPRESSED (gABI, "Section Compression")."""
    if len(data) < _COMPRESSION_HEADER_SIZE:
        raise ElfError("truncated compression header", section.name)
    method, _reserved, size, _alignment = struct.unpack_from(image.byte_order + "IIQQ", data)
    packed = data[_COMPRESSION_HEADER_SIZE:]
    if method == c.ELFCOMPRESS_ZLIB:
        plain = _inflated(section, packed, size)
    elif method == c.ELFCOMPRESS_ZSTD:
        plain = _unzstd(section, packed, size)
    else:
        raise ElfError(f"unknown compression method {method}", section.name)
    if len(plain) != size:
        raise ElfError(f"decompresses to {len(plain)} bytes, not to the {size} that its header says", section.name)
    return plain


def _inflated(section: ElfSection, packed: bytes, size: int) -> bytes:
    import zlib

    try:
        return zlib.decompressobj().decompress(packed, min(size + 1, sys.maxsize))
    except zlib.error as error:
        raise ElfError(f"damaged compressed section: {error}", section.name) from None


def _unzstd(section: ElfSection, packed: bytes, size: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise ElfError("compressed with zstd; the package zstandard is needed to read it", section.name) from None
    data = bytearray()
    try:
        with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
            # In pieces: a false size in the header must not allocate memory.
            while piece := reader.read(min(size + 1 - len(data), _ZSTD_PIECE_SIZE)):
                data += piece
    except zstandard.ZstdError as error:
        raise ElfError(f"damaged compressed section: {error}", section.name) from None
    return bytes(data)


def relocated_bytes(image: ElfImage, section: ElfSection) -> bytes:
    """Return a section's bytes; in an object, with its relocations applied against the image's layout.

    Raises `ElfError` when the section or its relocations leave the file or are damaged.
    """
    data = image.section_bytes(section)
    if not image.is_relocatable:
        return data
    tables = _relocation_tables(image, [section])[section.index]
    _refuse_overlap(image, tables)
    return _relocate(image, tables, data, section.vaddr)[0]


def _relocate(
    image: ElfImage, tables: Sequence[ElfSection], data: bytes, vaddr: int
) -> tuple[bytes, dict[int, Relocation], frozenset[int]]:
    """Return relocated bytes, the applied relocations by offset, and the offsets of those that cannot be applied."""
    forms = image.arch.cfi_relocations
    out = bytearray(data)
    applied: dict[int, Relocation] = {}
    unresolved: set[int] = set()
    for table in tables:
        if table.type == c.SHT_REL:
            raise ElfError("relocations without addends (SHT_REL) are not used by this ABI", table.name)
        if table.link >= len(image.sections):
            raise ElfError("names a symbol table that does not exist", table.name)
        symbol_vaddrs = image.symbol_vaddrs(image.sections[table.link])
        for offset, info, addend in image.records(table, "QQq"):
            relocation = Relocation(info & 0xFFFFFFFF, info >> 32, addend)
            if relocation.type == _R_NONE:
                continue
            form = forms.get(relocation.type)
            index = relocation.symbol_index
            symbol_vaddr = symbol_vaddrs[index] if index < len(symbol_vaddrs) else None
            if form is None or symbol_vaddr is None or offset + form[0] > len(out):
                unresolved.add(offset)
                continue
            size, is_relative = form
            value = symbol_vaddr + addend - (vaddr + offset if is_relative else 0)
            if not -(1 << (8 * size - 1)) <= value < 1 << (8 * size):
                raise ElfError(f"relocation type {relocation.type} overflows {size} bytes", table.name, offset)
            out[offset : offset + size] = (value & ((1 << 8 * size) - 1)).to_bytes(
                size, "little" if image.byte_order == "<" else "big"
            )
            applied[offset] = relocation
    return bytes(out), applied, frozenset(unresolved)


def _eh_frame_by_header(image: ElfImage) -> CfiSection | None:
    """Find `.eh_frame` in a file without section headers, through PT_GNU_EH_FRAME."""
    header = frame_header(image)
    if header is None:
        return None
    start, last = header.frame_vaddr, max((fde for _, fde in header.table), default=0)
    load = image.segment_map.load_of(start)
    end = load.stored_vaddrs.end if load else start
    # Without start files there may be no terminator. Gold and mold place the header after the frames.
    end = min(end, header.vaddr) if header.vaddr > start else end
    body = image.bytes_at(start, end - start)
    if not body:
        raise ElfError("PT_GNU_EH_FRAME points to an .eh_frame outside the file's segments")
    return CfiSection(".eh_frame", "eh_frame", body, start, {}, frozenset(), None, max(last - start, 0))
