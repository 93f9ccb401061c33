# SPDX-License-Identifier: Apache-2.0
"""Insert a converted section into a copy of its file, check the copy, or remove a section."""

import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.constants.elf import SHT_GNU_SFRAME, SHT_SYMTAB
from cfi2sframe.constants.sframe import FDE_SIZE, HEADER_SIZE, SFRAME_VERSION_3
from cfi2sframe.conversion.convert import Conversion, place_again
from cfi2sframe.elf.contents import LazyBytes
from cfi2sframe.elf.headers import SYMBOL_SIZE
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import File, load
from cfi2sframe.errors import EmbedError, SectionError, SFrameError, VerificationError, check_type, with_file_name
from cfi2sframe.sframe.model import Section
from cfi2sframe.sframe.write import write_section
from cfi2sframe.text import counted

if TYPE_CHECKING:
    from cfi2sframe.placing.objects import ObjectRelocation
    from cfi2sframe.placing.undo import Removal
    from cfi2sframe.verification.verify import Asked

__all__ = ["Emitted", "check", "check_removal", "emit", "remove"]

#: The largest offset in a section that a 32-bit field of CFI can hold.
_MAX_SECTION_OFFSET: Final = 0xFFFFFFFF
_REFUSAL: Final = "a Linux kernel that validates sections (SFrame is in no release of Linux yet) would refuse this one"


class Emitted(NamedTuple):
    """A rewritten file: `chunks` are its bytes, to be written one after the other.

    Unchanged parts of a large file are read only while they are written, which may raise `InputError`. `conversion` has
    the section as inserted, `placement` describes where it is. `check_unchanged` raises `EmbedError` where anything but
    the section differs in the file that was written. `warnings` tell what the file loses, and which readers would
    refuse the section.
    """

    chunks: LazyBytes
    conversion: Conversion
    placement: str
    check_unchanged: Callable[[ElfImage], None]
    warnings: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The section and, in a linked file, its address."""
        is_object = self.conversion.image.is_relocatable
        return ".sframe" if is_object else f".sframe at 0x{self.conversion.section_vaddr:x}"

    def __repr__(self) -> str:
        return f"<Emitted: {self.conversion.image.name} with {self.where}, {len(self.chunks):,} bytes>"


def check_placeable(image: ElfImage) -> None:
    """Raise `EmbedError` where no section can be put into a file, whatever its CFI says."""
    with with_file_name(image.name):
        if image.is_relocatable:
            from cfi2sframe.placing.objects import refuse_object

            refuse_object(image)
        else:
            from cfi2sframe.placing.checks import open_linked

            open_linked(image.data)


def emit(
    conversion: Conversion, section_type: int = SHT_GNU_SFRAME, stamp: bytes = b"", *, replaces: bool = False
) -> Emitted:
    """Insert the section into a copy of the file, in place of one that is there already.

    `section_type` is its sh_type, `stamp` what the next run may read (`placing.stamp`). `replaces`: also where a symbol
    leads to another producer's section, and the new one is elsewhere. Raises `EmbedError` when the file cannot be
    rewritten safely, `RequestError` when a function's start does not fit its field, or for a file that is not
    converted.
    """
    check_type(conversion, Conversion, "a conversion", "convert returns one for a file")
    with with_file_name(conversion.image.name):
        if conversion.image.is_relocatable:
            return _emit_object(conversion, section_type, stamp)
        return _emit_linked(conversion, section_type, stamp, replaces=replaces)


def _emit_object(conversion: Conversion, section_type: int, stamp: bytes) -> Emitted:
    from cfi2sframe.placing import objects

    if conversion.image.has_sframe and objects.remove(conversion.image.data).is_cleared:
        _expect_sframe(conversion.image)
    # With RELA relocations the addends hold the whole value; assemblers leave the fields 0.
    section = write_section(conversion.section, conversion.image.arch, conversion.rows, None)
    chunks = objects.insert(conversion.image.data, section, _relocations(conversion), section_type, stamp)
    return Emitted(
        chunks, conversion, "as a section with relocations", partial(objects.check_insertion, conversion.image)
    )


def _relocations(conversion: Conversion) -> "list[ObjectRelocation]":
    """Return a relocation for each function, with the symbol and addend of the FDE's own relocation.

    Raises `EmbedError` when the sum may wrap around.
    """
    from cfi2sframe.placing.objects import ObjectRelocation

    target = conversion.target
    is_wide = target.version >= SFRAME_VERSION_3
    kind = target.arch.pc64_relocation if is_wide else target.arch.pc32_relocation
    record_size = FDE_SIZE[target.version]
    relocations = []
    symbols = _symbols_of(conversion.image)
    for index, start_vaddr in enumerate(conversion.section.starts):
        piece = conversion.piece_at(start_vaddr)
        if piece is None or piece.origin is None:
            raise EmbedError("an object has no stubs")
        entry = conversion.cfi.entries[piece.origin]
        # Without one, the FDE would be damaged.
        relocation = entry.section.relocations[entry.start_offset]
        # A function may be a later part of its FDE's range.
        addend = relocation.addend + start_vaddr - entry.start_vaddr
        # In the FDE's narrow field, the sum may wrap around into the code; in a wider field it would not.
        value, vaddr = symbols(relocation.symbol_index)
        is_near = 0 <= value + addend <= _MAX_SECTION_OFFSET
        if not is_near or vaddr is None or vaddr + relocation.addend != entry.start_vaddr:
            raise EmbedError(f"a symbol of the function at 0x{start_vaddr:x} is far outside its section")
        field_offset = HEADER_SIZE + index * record_size
        relocations.append(ObjectRelocation(field_offset, kind, relocation.symbol_index, addend))
    return relocations


def _symbols_of(image: ElfImage) -> Callable[[int], tuple[int, int | None]]:
    """Return a function that maps the index of an object's symbol to its value and its address in the image."""
    # With no symbol table, or several, `placing.objects` refuses the object.
    tables = [section for section in image.sections if section.type == SHT_SYMTAB]
    data = image.section_bytes(tables[0]) if tables else b""
    vaddrs = image.symbol_vaddrs(tables[0]) if tables else ()
    read = struct.Struct(image.byte_order + "8xQ").unpack_from

    def symbol_at(index: int) -> tuple[int, int | None]:
        return (int(read(data, SYMBOL_SIZE * index)[0]), vaddrs[index]) if index < len(vaddrs) else (0, None)

    return symbol_at


def _emit_linked(conversion: Conversion, section_type: int, stamp: bytes, *, replaces: bool) -> Emitted:
    from cfi2sframe.placing import linked

    size = HEADER_SIZE + FDE_SIZE[conversion.target.version] * len(conversion.section.starts) + conversion.rows.size
    plan = linked.plan_insertion(conversion.image.data, size, replaces=replaces)
    if plan.cleared:
        _expect_sframe(ElfImage(plan.original, conversion.image.name))
    placed = place_again(conversion, plan.section_vaddr)
    chunks = linked.insert(plan, placed.data, section_type, stamp)
    warnings = (*plan.warnings, *reader_warnings(placed))

    def check_unchanged(rewritten: ElfImage) -> None:
        linked.check_insertion(rewritten.data, plan, placed.data)

    return Emitted(chunks, placed, plan.description, check_unchanged, warnings)


def reader_warnings(conversion: Conversion) -> tuple[str, ...]:
    """Return a warning for each unmet demand of Linux, the only reader of running programs for version 3.

    They are those that no section can meet for code in several segments, and one about registers in which no program
    saves RA.
    """
    image, section = conversion.image, conversion.section
    if image.is_relocatable or section.version < SFRAME_VERSION_3:
        return ()
    from cfi2sframe.verification.reader_checks import large_register, segments

    warnings = [f"{_REFUSAL}: {message}" for message in segments(section, image)]
    misread = [message for body in section.bodies if body.is_flexible and (message := large_register(body))]
    if misread:
        warnings.append(f"Linux would misread the rules of {counted(len(misread), 'function')}: {misread[0]}")
    return tuple(warnings)


def check(emitted: Emitted, rewritten: File) -> None:
    """Check a rewritten file, given as for `load`: nothing but the section changed, and each row agrees with the CFI.

    Raises `EmbedError` or `VerificationError` when that is not so, `InputError` when the file cannot be read.
    """
    from cfi2sframe.api import asked_of

    check_asked(emitted, load(rewritten), asked_of(emitted.conversion))


def check_asked(emitted: Emitted, rewritten: ElfImage, asked: "Asked") -> None:
    """Check as `check` does, with a request that may differ from the conversion's own."""
    from cfi2sframe.api import decode_existing

    with with_file_name(rewritten.name):
        emitted.check_unchanged(rewritten)
        check_section(emitted.conversion, decode_existing(rewritten), asked, rewritten)


def check_section(conversion: Conversion, section: Section, asked: "Asked", rewritten: ElfImage | None = None) -> None:
    """Check a section that was made for a file, or the one in a `rewritten` file. Raises `VerificationError`."""
    from cfi2sframe.verification.verify import verify_section

    image, entries = rewritten or conversion.image, conversion.cfi.entries
    # The CFI is unchanged, and need not be read again, unless it reaches past code that now ends elsewhere.
    ends = [(entries.starts[fde], entries.starts[fde] + entries.sizes[fde]) for fde in entries.clipped]
    for start, end in ends:
        if [end] != list(image.code_ends_of([start])):
            raise VerificationError(f"the FDE at 0x{start:x} reaches past the code, and the section moves its end")
    verification = verify_section(image, entries, section, asked)
    wrong = (*verification.differences, *verification.notes)
    if wrong:
        first, places = wrong[0], counted(len(wrong), "place")
        raise VerificationError(
            f"the written section is wrong in {places}, first at 0x{first.vaddr:x}: {first.message}"
        )


def remove(image: File) -> "Removal":
    """Return a copy of a file, given as for `load`, without its section; the caller checks it with `check_removal`.

    Raises `EmbedError` when the file has no such section, or when it cannot be removed safely.
    """
    image = load(image)
    with with_file_name(image.name):
        if image.is_relocatable:
            from cfi2sframe.placing import objects

            removed = objects.remove(image.data)
        else:
            from cfi2sframe.placing import removal

            removed = removal.remove(image.data)
        if removed.is_cleared:
            _expect_sframe(image)
        return removed


def _expect_sframe(image: ElfImage) -> None:
    """Raise `SectionError` unless a section that headers call SFrame's is one, from its first to its last byte.

    A name is no proof: a program may have given it to bytes of its own, which nothing would restore.
    """
    from cfi2sframe.elf.cfi import relocated_bytes
    from cfi2sframe.sframe.read import read_damaged

    sections = [(s.vaddr, relocated_bytes(image, s)) for s in image.sections if s.is_sframe and s.is_stored]
    segment = image.sframe_segment
    if not sections and segment is not None:
        sections = [(segment.vaddr, image.bytes_at(segment.vaddr, segment.file_size) or b"")]
    for vaddr, data in sections:
        # Zeros are what an earlier removal left.
        if data.strip(b"\0"):
            try:
                damage = read_damaged(data, vaddr, is_object=image.is_relocatable)[1]
            except SFrameError as error:
                damage = error
            if damage is not None:
                raise SectionError(f"what is called .sframe is no SFrame section that is whole: {damage}")


def check_removal(original: File, rewritten: File) -> None:
    """Check a file that `remove` has made, both given as for `load`: nothing but the section changed.

    Every other mapped byte is at its address, loaders find the same tables, and sections and symbols are the same.
    Raises `EmbedError` when that is not so, `InputError` when the file cannot be read.
    """
    original, rewritten = load(original), load(rewritten)
    with with_file_name(rewritten.name):
        if original.is_relocatable:
            from cfi2sframe.placing import objects

            objects.check_removal(original, rewritten)
        else:
            from cfi2sframe.placing import removal

            removal.check_removal(original.data, rewritten.data)
