# SPDX-License-Identifier: Apache-2.0
"""All call frame information of an image: its sources, the best one first, their FDEs, and the FDEs' rows."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.dwarf.fdes import CfiEntries, DamagedFde, EntriesReader, FunctionTable, Program
from cfi2sframe.elf.cfi import SOURCE_NAMES, CfiKind, CfiSection, debug_file_frames, debug_frames, eh_frames
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import Cfi2SFrameError, CfiError, ElfError, InputError, RequestError, UnfitError

if TYPE_CHECKING:
    from cfi2sframe.instructions.states import Underived


def _go_table_cfi(image: ElfImage) -> tuple[FunctionTable, ...]:
    """Return the CFI of Go's table, which few files have, and no object: the translation is loaded for those."""
    if image.is_relocatable:
        return ()
    from cfi2sframe.gotable.header import find_table

    table = find_table(image)
    if table is None:
        return ()
    from cfi2sframe.gotable.translate import go_table_cfi

    return (go_table_cfi(image, table),)


#: In the order of `CFI_KINDS`; "code" is no part of a file.
_FINDERS: Final[dict[CfiKind, Callable[[ElfImage], Sequence[CfiSection | FunctionTable]]]] = {
    "eh_frame": eh_frames,
    "debug_frame": debug_frames,
    "gopclntab": _go_table_cfi,
    "debug_file": debug_file_frames,
}


class UnreadSource(NamedTuple):
    """CFI that was left unread, though its file has it: the name of its section, and why, without a full stop."""

    name: str
    reason: str

    @classmethod
    def of(cls, name: str, error: Cfi2SFrameError) -> "UnreadSource":
        """Return the record of a section that an error has kept from being read."""
        place = "" if error.offset is None else f"+0x{error.offset:x}"
        if error.where and error.where != name:
            place = f" in {error.where}{place}"
        elif place:
            place = f" at {place}"
        return cls(name, error.reason + place)


class FoundCfi(NamedTuple):
    """The CFI sections of an image, the best source first, and the lesser sources that cannot be read."""

    sections: tuple[CfiSection | FunctionTable, ...]
    unread: tuple[UnreadSource, ...] = ()


def find_cfi(image: ElfImage, kind: CfiKind | None = None) -> FoundCfi:
    """Return the image's CFI sections: of the kind asked for, or of all kinds in the order of `CFI_KINDS`.

    The kind "code" means all that the file has, which may be none. Otherwise raises `RequestError` when there is none
    of the kind asked for, and `UnfitError` when there is no CFI at all. Raises `UnfitError` for a separate debug file,
    `ElfError` or `CfiError` when the best source cannot be read. Lesser sources that cannot be read, and any that do
    not fit (of an old version of Go, or from before BOLT), are `unread`.
    """
    _refuse_debug_file(image)
    if kind is not None and kind != "code":
        sections_of_kind = _FINDERS[kind](image)
        if not sections_of_kind:
            raise RequestError("no debug file" if kind == "debug_file" else f"no .{kind} section")
        return FoundCfi(tuple(sections_of_kind))
    sections: list[CfiSection | FunctionTable] = []
    unread: list[UnreadSource] = []
    unfit: list[UnfitError] = []
    for found_kind, finder in _FINDERS.items():
        try:
            sections += finder(image)
        except (ElfError, CfiError) as error:
            if isinstance(error, UnfitError):
                unfit.append(error)
            elif not sections:
                raise
            unread.append(UnreadSource.of(SOURCE_NAMES[found_kind], error))
    if not sections and any(section.name.startswith(".gnu.lto_") for section in image.sections):
        raise UnfitError("LTO bytecode without machine code: convert the linked file")
    if not sections and kind is None:
        if unfit:
            raise unfit[0]
        hint = "a separate debug file (--debug-file) may have some, and convert --from code needs none"
        raise UnfitError(f"no call frame information: no .eh_frame, .debug_frame or .gopclntab; {hint}")
    return FoundCfi(tuple(sections), tuple(unread))


def _refuse_debug_file(image: ElfImage) -> None:
    """Raise `UnfitError` for a debug file: of sections that are loaded, it has only the bytes of notes."""
    loaded = [section for section in image.sections if section.flags & c.SHF_ALLOC and section.size]
    if image.is_debug_file and all(section.type in (c.SHT_NOBITS, c.SHT_NOTE) for section in loaded):
        raise UnfitError("a separate debug file: name the file that has the code, and this one with --debug-file")


class Cfi(NamedTuple):
    """All call frame information of an image; `damaged` is sorted by section and offset.

    `sections` are those that were read, `unread` those that could not be; the best source is never among these.
    `underived` is the code without CFI, and without rules of Go's table, from whose instructions no rows follow; None
    where such rows were not asked for.
    """

    sections: tuple[CfiSection | FunctionTable, ...]
    entries: CfiEntries
    damaged: tuple[DamagedFde, ...]
    unread: tuple[UnreadSource, ...] = ()
    underived: tuple["Underived", ...] | None = None

    def or_raise(self) -> "Cfi":
        """Return the CFI. Raises `InputError` when all FDEs are damaged."""
        if not self.entries and self.damaged:
            first = self.damaged[0].error
            raise InputError(f"no usable FDE; the first is damaged: {first.reason}", first.where, first.offset)
        return self

    def joined(self, other: "Cfi") -> "Cfi":
        """Return this CFI with that of lesser sources after it."""
        entries = self.entries.joined(other.entries)
        return self._replace(
            sections=self.sections + other.sections, entries=entries, damaged=self.damaged + other.damaged
        )

    @property
    def programs(self) -> Sequence[Program]:
        """The distinct programs, by their numbers."""
        return self.entries.programs


def read_programs(
    image: ElfImage, sections: Sequence[CfiSection | FunctionTable], unread: Sequence[UnreadSource] = ()
) -> Cfi:
    """Read the FDEs of an image's CFI sections, the best source first, and run their programs.

    `unread` are sources that are known not to be readable; a section that cannot be walked joins them. Raises
    `CfiError` when that is one of the best source.
    """
    best = [section for section in sections if section.kind == sections[0].kind]
    cfi = Cfi(tuple(best), *EntriesReader(image).read(best))
    not_read = list(unread)
    for section in sections[len(best) :]:
        try:
            cfi = cfi.joined(Cfi((section,), *EntriesReader(image).read([section])))
        except CfiError as error:
            not_read.append(UnreadSource.of(section.name, error))
    return cfi._replace(unread=tuple(not_read))
