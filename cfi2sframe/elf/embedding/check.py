# SPDX-License-Identifier: Apache-2.0
"""Read a rewritten file back with code that had no part in writing it, and compare it with the original."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cfi2sframe.elf.constants import PF_R, PF_W, PT_GNU_SFRAME, SHF_INFO_LINK
from cfi2sframe.elf.contents import is_equal, part_of, stream_of
from cfi2sframe.errors import EmbedError, InputError

if TYPE_CHECKING:
    from cfi2sframe.elf.records import Buffer, FileData

#: Sections that say where others are: the string table grows, tags and symbols follow moved sections.
_BOOKKEEPING = frozenset({".shstrtab", ".sframe"})
_KEPT_SEGMENTS = frozenset({"PT_LOAD", "PT_DYNAMIC", "PT_TLS", "PT_GNU_RELRO", "PT_GNU_EH_FRAME"})
_FOLLOWING = frozenset({"SHT_DYNAMIC", "SHT_SYMTAB", "SHT_DYNSYM"})


class Expected(NamedTuple):
    """Where `.sframe` has to be, its size in bytes, and where the program headers are if they moved."""

    section_vaddr: int
    section_size: int
    table_file_offset: int | None = None


def check_rewritten(
    original: FileData,
    rewritten: FileData,
    moved: dict[str, int],
    place: Expected,
    section: Buffer | None,
) -> None:
    """Raise `EmbedError` unless `rewritten` is `original` with `.sframe` mapped at its place.

    `moved` maps names of sections to the addresses that they were moved to; `section` is what `.sframe`
    must hold. Raises `InputError` when one of the files cannot be read.
    """
    from elftools.common.exceptions import ELFError
    from elftools.construct import ConstructError
    from elftools.elf.elffile import ELFFile

    try:
        before = ELFFile(stream_of(original))
        after = ELFFile(stream_of(rewritten))
        old_sections = _sections(before)
        new_sections = _sections(after)
        old_segments, segments = _segments(before), _segments(after)
        old_ids, new_ids = _build_ids(before, old_segments), _build_ids(after, segments)
        for field in ("e_type", "e_machine", "e_entry", "e_flags"):
            _expect(before.header[field] == after.header[field], f"the header's {field} changed")
        table = before.header["e_phoff"] if place.table_file_offset is None else place.table_file_offset
        _expect(after.header["e_phoff"] == table, "the program headers are elsewhere")
        _expect(before.header["e_ident"] == after.header["e_ident"], "e_ident changed")
    except (ELFError, ConstructError, ValueError, KeyError, UnicodeDecodeError) as error:
        raise _failed_read(error) or EmbedError(f"the rewritten file does not parse: {error}") from error
    _check_sections(original, rewritten, old_sections, new_sections, moved)
    _check_loads(segments, len(rewritten))
    _check_old_segments(original, rewritten, old_segments, segments, has_sections=bool(old_sections))
    _expect(old_ids == new_ids, "the build-id differs")
    _check_table(after.header, segments)
    start = _check_sframe(segments, new_sections, place.section_vaddr, place.section_size)
    if section is not None:
        same = _equal(section, 0, rewritten, start, place.section_size)
        _expect(same and len(section) == place.section_size, "the bytes of .sframe are others")


def _failed_read(error: BaseException) -> InputError | None:
    """Return the failure to read a file that pyelftools may have put in the place of its own."""
    cause = error.__context__
    while cause is not None and not isinstance(cause, InputError):
        cause = cause.__context__
    return cause


def _expect(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise EmbedError(f"the rewritten file fails its re-read: {message}")


def _sections(elf: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - pyelftools carries no types
    """Return the section headers; not as section objects, whose hash tables would be read word by word."""
    from elftools.common.utils import struct_parse

    found = []
    start, size = elf.header["e_shoff"], elf.header["e_shentsize"]
    count = elf.num_sections()
    names: Any = elf.get_section(elf.get_shstrndx()) if count else None
    _expect(names is None or hasattr(names, "get_string"), "the section names are not where the header says")
    for index in range(count):
        header = dict(struct_parse(elf.structs.Elf_Shdr, elf.stream, start + index * size))
        header["name"] = names.get_string(header["sh_name"])
        found.append(header)
    return found


def _segments(elf: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - pyelftools carries no types
    """Return the program headers, with the type as the number or name that pyelftools knows."""
    from elftools.common.utils import struct_parse

    start, size = elf.header["e_phoff"], elf.header["e_phentsize"]
    return [
        dict(struct_parse(elf.structs.Elf_Phdr, elf.stream, start + index * size))
        for index in range(elf.num_segments())
    ]


def _is_sframe(segment: dict[str, Any]) -> bool:
    # The name came with pyelftools 0.32.
    return segment["p_type"] in (PT_GNU_SFRAME, "PT_GNU_SFRAME")


def _build_ids(elf: Any, segments: list[dict[str, Any]]) -> set[str]:  # noqa: ANN401 - see above
    """Return the build-ids found through PT_NOTE segments, the way of debuggers and core dumps."""
    from elftools.elf.notes import iter_notes

    return {
        str(note["n_desc"])
        for segment in segments
        if segment["p_type"] == "PT_NOTE"
        for note in iter_notes(elf, segment["p_offset"], segment["p_filesz"])
        if note["n_type"] == "NT_GNU_BUILD_ID"
    }


def _pairs(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[int]:
    """Return for each old section the index of the new one with its name; the nth of a name is the nth again."""
    places: dict[str, list[int]] = {}
    for index, section in enumerate(new):
        places.setdefault(section["name"], []).append(index)
    found = []
    for section in old:
        left = places.get(section["name"], [])
        _expect(bool(left), f"section {section['name']} is gone")
        found.append(left.pop(0))
    return found


def _renumbered(index: int, numbering: list[int]) -> int:
    """Return the new index of a section; one that is none, as a damaged null section may hold, stays."""
    return numbering[index] if index < len(numbering) else index


def _check_sections(
    original: FileData,
    rewritten: FileData,
    old: list[dict[str, Any]],
    new: list[dict[str, Any]],
    moved: dict[str, int],
) -> None:
    """Old sections keep name, type, flags, size, links, and unless moved their address and bytes."""
    numbering = _pairs(old, new)
    deltas = {moved[s["name"]] - s["sh_addr"] for s in old if s["name"] in moved}
    for index, before in enumerate(old):
        name, after = before["name"], new[numbering[index]]
        if name in _BOOKKEEPING:
            continue
        for field in ("sh_type", "sh_flags", "sh_size", "sh_addralign", "sh_entsize"):
            _expect(before[field] == after[field], f"{field} of section {name} changed")
        _expect(_renumbered(before["sh_link"], numbering) == after["sh_link"], f"section {name} is linked to another")
        is_index = before["sh_flags"] & SHF_INFO_LINK or before["sh_type"] in ("SHT_REL", "SHT_RELA")
        info = _renumbered(before["sh_info"], numbering) if is_index else before["sh_info"]
        _expect(info == after["sh_info"], f"sh_info of section {name} changed")
        expected = moved.get(name, before["sh_addr"])
        _expect(after["sh_addr"] == expected, f"section {name} is at 0x{after['sh_addr']:x}")
        _expect(after["sh_addr"] % max(after["sh_addralign"], 1) == 0, f"section {name} is misaligned")
        if before["sh_type"] in ("SHT_NOBITS", "SHT_NULL"):
            continue
        same = _equal(original, before["sh_offset"], rewritten, after["sh_offset"], before["sh_size"])
        if not same and before["sh_type"] in _FOLLOWING:
            same = _differs_as_planned(original, rewritten, before, after, numbering, deltas)
        _expect(same, f"the bytes of section {name} changed")


def _differs_as_planned(
    original: FileData,
    rewritten: FileData,
    before: dict[str, Any],
    after: dict[str, Any],
    numbering: list[int],
    deltas: set[int],
) -> bool:
    """Say whether only addresses of moved sections and section indices differ between two tables."""
    order: Literal["little", "big"] = "little" if original[5:6] == b"\1" else "big"
    size = before["sh_size"]
    old = bytes(original[before["sh_offset"] : before["sh_offset"] + size])
    new = bytes(rewritten[after["sh_offset"] : after["sh_offset"] + size])
    if before["sh_type"] != "SHT_DYNAMIC":
        old = _with_section_indices(old, numbering, order)
    return all(
        int.from_bytes(new[at : at + 8], order) - int.from_bytes(old[at : at + 8], order) in deltas
        for at in range(0, size, 8)
        if new[at : at + 8] != old[at : at + 8]
    )


def _with_section_indices(symbols: bytes, numbering: list[int], order: Literal["little", "big"]) -> bytes:
    result = bytearray(symbols)
    for at in range(6, len(symbols), 24):
        index = int.from_bytes(symbols[at : at + 2], order)
        if index < len(numbering):
            result[at : at + 2] = numbering[index].to_bytes(2, order)
    return bytes(result)


def _equal(first: FileData, first_start: int, second: FileData, second_start: int, size: int) -> bool:
    if first_start + size > len(first) or second_start + size > len(second):
        return False
    return is_equal(part_of(first, first_start, first_start + size), part_of(second, second_start, second_start + size))


def _check_loads(segments: list[dict[str, Any]], file_size: int) -> None:
    loads = [segment for segment in segments if segment["p_type"] == "PT_LOAD"]
    for load in loads:
        _expect(load["p_offset"] + load["p_filesz"] <= file_size, "a PT_LOAD leaves the file")
        _expect(load["p_filesz"] <= load["p_memsz"], "a PT_LOAD is smaller in memory than in the file")
        alignment = max(load["p_align"], 1)
        congruent = (load["p_vaddr"] - load["p_offset"]) % alignment == 0
        _expect(congruent, "a PT_LOAD is not congruent to its file offset")
    for before, after in pairwise(loads):
        end = before["p_vaddr"] + before["p_memsz"]
        _expect(end <= after["p_vaddr"], "PT_LOAD segments overlap or are out of order")


def _check_table(header: Any, segments: list[dict[str, Any]]) -> None:  # noqa: ANN401 - pyelftools carries no types
    """The program headers are loaded, PT_PHDR leads to them, and programs of old kernels find them too.

    Kernels before 5.18 count from the first segment, wherever the table is.
    """
    start, size = header["e_phoff"], header["e_phentsize"] * header["e_phnum"]
    loads = [segment for segment in segments if segment["p_type"] == "PT_LOAD"]
    holder = next((s for s in loads if s["p_offset"] <= start and start + size <= s["p_offset"] + s["p_filesz"]), None)
    for entry in (segment for segment in segments if segment["p_type"] == "PT_PHDR"):
        _expect((entry["p_offset"], entry["p_filesz"]) == (start, size), "PT_PHDR leads elsewhere")
        same = holder is not None and holder["p_vaddr"] - holder["p_offset"] == entry["p_vaddr"] - entry["p_offset"]
        _expect(same, "PT_PHDR gives another address than its segment")
    is_program = header["e_type"] == "ET_EXEC" or any(segment["p_type"] == "PT_INTERP" for segment in segments)
    if holder is not None and is_program:
        first = loads[0]["p_vaddr"] - loads[0]["p_offset"]
        _expect(holder["p_vaddr"] - holder["p_offset"] == first, "old kernels would look for the headers elsewhere")


def _check_old_segments(
    original: FileData,
    rewritten: FileData,
    old: list[dict[str, Any]],
    new: list[dict[str, Any]],
    *,
    has_sections: bool,
) -> None:
    """Every PT_LOAD of the original is still there, at its address, with its flags, no shorter; so are the others."""
    for before in old:
        if before["p_type"] not in _KEPT_SEGMENTS:
            continue
        same = ("p_type", "p_vaddr", "p_flags", "p_offset", "p_align")
        after = next((s for s in new if all(s[field] == before[field] for field in same)), None)
        if after is None:
            raise EmbedError(f"the rewritten file fails its re-read: segment 0x{before['p_vaddr']:x} is gone")
        _expect(after["p_filesz"] >= before["p_filesz"], "a segment became shorter")
        _expect(after["p_memsz"] >= before["p_memsz"], "a segment became shorter in memory")
        grown = (after["p_filesz"] - before["p_filesz"], after["p_memsz"] - before["p_memsz"])
        _expect(grown[0] == grown[1], "a segment grew in the file by another size than in memory")
        _expect(not (before["p_flags"] & PF_W and any(grown)), "a writable segment changed its size")
        # Without a section table nothing else compares the contents; its headers are the first bytes.
        if not has_sections and before["p_type"] == "PT_LOAD":
            start = max(before["p_offset"], 4096)
            size = before["p_offset"] + before["p_filesz"] - start
            _expect(_equal(original, start, rewritten, start, size), "bytes of a segment changed")


def _check_sframe(
    segments: list[dict[str, Any]], sections: list[dict[str, Any]], section_vaddr: int, section_size: int
) -> int:
    """Return the file offset of the section."""
    entries = [segment for segment in segments if _is_sframe(segment)]
    _expect(len(entries) == 1, f"{len(entries)} PT_GNU_SFRAME segments instead of one")
    entry = entries[0]
    place = (entry["p_vaddr"], entry["p_filesz"], entry["p_memsz"])
    _expect(place == (section_vaddr, section_size, section_size), "PT_GNU_SFRAME is elsewhere")
    holders = [
        load
        for load in segments
        if load["p_type"] == "PT_LOAD"
        and load["p_vaddr"] <= entry["p_vaddr"]
        and entry["p_vaddr"] + entry["p_memsz"] <= load["p_vaddr"] + load["p_filesz"]
        and entry["p_vaddr"] - load["p_vaddr"] == entry["p_offset"] - load["p_offset"]
    ]
    _expect(len(holders) == 1, "PT_GNU_SFRAME lies in no PT_LOAD")
    _expect(holders[0]["p_flags"] & (PF_R | PF_W) == PF_R, "PT_GNU_SFRAME is not read-only")
    if sections:
        named = [section for section in sections if section["name"] == ".sframe"]
        _expect(len(named) == 1, f"{len(named)} sections called .sframe")
        found = (named[0]["sh_addr"], named[0]["sh_offset"], named[0]["sh_size"])
        _expect(found == (entry["p_vaddr"], entry["p_offset"], section_size), "the section header is elsewhere")
    return int(entry["p_offset"])
