# SPDX-License-Identifier: Apache-2.0
"""Read a rewritten file back with pyelftools, and compare it with the original: nothing but the section changed.

1. The file header is equal, except for counts and the places of tables.
2. Each segment keeps its place and rights; a read-only PT_LOAD may grow, or the last, and one may be new, after all.
   PT_INTERP, PT_NOTE and PT_GNU_PROPERTY may be elsewhere, with the same bytes. A PT_NOTE that repeats PT_GNU_PROPERTY
   may be missing.
3. Each section keeps everything but its index; read-only data may be elsewhere, with the same bytes.
4. The dynamic entries are equal, except for the addresses of tables that are elsewhere.
5. Symbols are equal, except for section indices, and values in sections that are elsewhere.
6. Every other loaded byte is equal. What is new in a segment is the section, what moved, or zeros.
7. Section header, PT_GNU_SFRAME and a PT_LOAD lead to the same bytes, those of the section. That is read-only, or it is
   the last, which has grown past its .bss.
8. Nothing overlaps, in the file or in memory, and kernels and PT_PHDR find the program headers.

Of the program's own code only readers of bytes and sets of spans are used.
"""

import struct
from collections import defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import FileData, have_same, is_zero
from cfi2sframe.elf.headers import SECTION_HEADER_SIZE, SYMBOL_SIZE, Buffer, ByteOrder
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.view import SFRAME_TYPES, FileView, expect, is_sframe, parsing, span_of
from cfi2sframe.range_map import Span, common, holder_of, touches, united, without

_FOLLOWING = {"PT_INTERP", "PT_NOTE", "PT_GNU_PROPERTY"}
_MOVABLE_TAGS = {c.DT_HASH, c.DT_GNU_HASH, c.DT_STRTAB, c.DT_SYMTAB, c.DT_VERSYM, c.DT_VERDEF, c.DT_VERNEED}
#: Program headers that are compared by themselves, or mean nothing.
_OWN = {"PT_PHDR", "PT_NULL"}
_FREE_FIELDS = {"e_phnum", "e_phoff", "e_shoff", "e_shnum", "e_shstrndx"}
_SYMBOL_TABLES = {"SHT_SYMTAB", "SHT_DYNSYM"}
#: The most bytes of address space between the last segment and a new one, which only alignment separates.
_MAX_DISTANCE = 1 << 31


class _Move(NamedTuple):
    """A section that is elsewhere: its index in the file without the section, and its old and new headers."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    old: dict[str, Any]
    new: dict[str, Any]

    @property
    def delta(self) -> int:
        """How far its address has moved."""
        return int(self.new["sh_addr"] - self.old["sh_addr"])

    def held(self, vaddr: int) -> bool:
        """Whether an address was in the section, or at its end."""
        return bool(0 <= vaddr - self.old["sh_addr"] <= self.old["sh_size"])


def check_inserted(original: FileData, rewritten: FileData, vaddr: int, section: Buffer | None) -> None:
    """Raise `EmbedError` unless `rewritten` is `original` with an SFrame section at `vaddr`, and nothing else.

    The section has to have the bytes `section`, unless that is None.
    """
    with parsing():
        bare, full = FileView(original), FileView(rewritten)
        _check_pair(bare, full, section)
        expect(all(s["p_vaddr"] == vaddr for s in full.segments if is_sframe(s)), "the section is elsewhere")
        _check_layout(full, bare)


def check_removed(original: FileData, rewritten: FileData, *, has_any_size: bool = False) -> None:
    """Raise `EmbedError` unless `rewritten` is `original` without its SFrame section, and nothing else.

    Either `original` is what inserting a section into `rewritten` gives, or the section became zeros. `has_any_size`:
    PT_PHDR of `rewritten` may have a wrong size, which inserting corrects.
    """
    with parsing():
        full, bare = FileView(original), FileView(rewritten)
        try:
            _check_pair(bare, full, None)
            _check_layout(bare, full, has_any_size=has_any_size)
        except EmbedError:
            if len(original) != len(rewritten):
                raise
            _check_cleared(full, bare)


def _check_pair(bare: FileView, full: FileView, section: Buffer | None) -> None:
    """Compare a file without an SFrame section with the same file that has one."""
    expect(not bare.sframe and len(full.sframe) == min(len(full.sections), 1), "not one SFrame section")
    place = _check_section(full, section)
    _check_header(bare, full)
    moves = _check_sections(bare, full)
    _check_loads(bare, full, place)
    _check_followers(bare, full, moves, place)
    _check_dynamic(bare, full, moves)
    _check_moves(bare, moves)
    _check_bytes(bare, full, place, moves)


def _check_cleared(before: FileView, after: FileView) -> None:
    """Check that the section became zeros, without headers that lead to it, and that nothing else changed."""
    _check_header(before, after)
    tables = [[v.header[key] for key in ("e_phoff", "e_shoff", "e_shstrndx")] for v in (before, after)]
    expect(tables[0] == tables[1], "headers are elsewhere")
    expect(not any(map(is_sframe, [*after.segments, *after.sections])), "the section is still there")
    cleared = [next(span_of(s) for s in [*before.sections, *before.segments] if is_sframe(s))]
    starts = [before.table("sh").start + SECTION_HEADER_SIZE * number for number in before.sframe]
    cleared += [Span(start, start + SECTION_HEADER_SIZE) for start in starts]
    expect(all(is_zero(after.data, span) for span in cleared), "something is left of the old section")
    missing = before.sections[len(after.sections) :]
    is_same_count = len(after.sections) + len(missing) == len(before.sections)
    expect(is_same_count and all(map(is_sframe, missing)), "a section is missing, or new")
    others = [[s for s in v.segments if s["p_type"] not in _OWN and not is_sframe(s)] for v in (before, after)]
    expect(len(others[0]) == len(others[1]), "a program header is missing, or new")
    for old, new in zip(*others, strict=True):
        # A read-only segment may end where the section began that was its end.
        size = cleared[0].start - old["p_offset"]
        is_shorter = old["p_type"] == "PT_LOAD" and size > 0 and span_of(old).end == cleared[0].end
        is_shorter = is_shorter and not old["p_flags"] & c.PF_W and old["p_filesz"] == old["p_memsz"]
        shorter = {**old, "p_filesz": size, "p_memsz": size} if is_shorter else old
        expect(new in (old, shorter), "a program header changed")
    known = [Span(0, before.header.e_ehsize), before.table("ph"), *cleared]
    for span in without([Span(0, len(before.data))], known):
        expect(have_same(before.data, after.data, span), "something else changed")
    _check_layout(after, before)


def _check_header(before: FileView, after: FileView) -> None:
    same = before.bytes_of(Span(0, 16)) == after.bytes_of(Span(0, 16))
    for field in before.header:
        same = same and (field in _FREE_FIELDS or before.header[field] == after.header[field])
    expect(same, "the file header changed")
    # Loaders never read the rights of PT_PHDR; PF_X is taken from it. `_check_layout` knows its place and sizes. Only
    # the kernel, by AT_PHDR, tells a static program where its program headers are.
    olds, news = ([s for s in v.segments if s["p_type"] == "PT_PHDR"] for v in (before, after))
    for old, new in zip(olds, news, strict=False):
        rest = {key: new[key] for key in ("p_offset", "p_vaddr", "p_filesz", "p_memsz")}
        paddr = old["p_paddr"] if old["p_vaddr"] == new["p_vaddr"] else new["p_vaddr"]
        flags = new["p_flags"] if new["p_flags"] == old["p_flags"] & ~c.PF_X else old["p_flags"]
        expect({**old, **rest, "p_paddr": paddr, "p_flags": flags} == new, "PT_PHDR changed")
    expect(len(olds) == len(news) or (before.is_static and not news), "PT_PHDR is missing, or new")


def _check_section(full: FileView, section: Buffer | None) -> Span:
    """Check that PT_GNU_SFRAME, the section header and a segment lead to the section; return its place."""
    entries = [s for s in full.segments if is_sframe(s)]
    expect(len(entries) == 1, "not one PT_GNU_SFRAME")
    entry, place = entries[0], span_of(entries[0])
    vaddr, size = entry["p_vaddr"], place.end - place.start
    fields = {"p_flags": c.PF_R, "p_paddr": vaddr, "p_memsz": size, "p_align": 8}
    expect({**entry, **fields} == entry and vaddr % 8 == 0, "PT_GNU_SFRAME has other fields")
    fields = {"sh_flags": c.SHF_ALLOC, "sh_addr": vaddr, "sh_offset": place.start, "sh_size": size}
    fields |= {"sh_link": 0, "sh_info": 0, "sh_addralign": 8, "sh_entsize": 0}
    headers = [full.sections[number] for number in full.sframe]
    expect(all({**header, **fields} == header for header in headers), "the header of .sframe has other fields")
    expect(full.maps(vaddr, place.start, size), "the section is not mapped")
    holders = [s for s in full.loads if common([place], [span_of(s)])]
    expect(len(holders) == 1 and holders[0]["p_flags"] & c.PF_R, "the section's segment cannot be read")
    expect(section is None or full.bytes_of(place) == bytes(section), "the bytes of .sframe differ")
    return place


def _check_sections(bare: FileView, full: FileView) -> list[_Move]:
    """Pair the sections, by what must not change and then by order; return those that moved."""
    numbering = _paired(bare, full)
    moves = []
    pairs = [(old, full.sections[number]) for old, number in zip(bare.sections, numbering, strict=True)]
    for index, (old, new) in enumerate(pairs):
        name, is_loaded = old["name"], old["sh_flags"] & c.SHF_ALLOC
        expect(new["sh_link"] == _renumbered(old["sh_link"], numbering), f"sh_link of {name} changed")
        is_index = old["sh_flags"] & c.SHF_INFO_LINK or old["sh_type"] in ("SHT_REL", "SHT_RELA")
        info = _renumbered(old["sh_info"], numbering) if is_index else old["sh_info"]
        expect(new["sh_info"] == info, f"sh_info of {name} changed")
        expect(old["sh_size"] or bool(old["sh_offset"]) == bool(new["sh_offset"]), f"sh_offset of {name} changed")
        if old["sh_addr"] != new["sh_addr"] or (is_loaded and old["sh_offset"] != new["sh_offset"]):
            expect(is_loaded and not old["sh_flags"] & (c.SHF_WRITE | c.SHF_EXECINSTR), f"{name} may not move")
            for view, header in ((bare, old), (full, new)):
                expect(view.maps(header["sh_addr"], header["sh_offset"], header["sh_size"]), f"{name} is not mapped")
            expect(new["sh_addr"] % max(new["sh_addralign"], 1) == 0, f"{name} is misaligned")
            moves.append(_Move(index, old, new))
    moved = {move.index: move for move in moves}
    for index, (old, new) in enumerate(pairs):
        if old["sh_type"] in _SYMBOL_TABLES:
            first, second = bare.bytes_of(span_of(old)), full.bytes_of(span_of(new))
            _check_symbols(first, second, bare.order, numbering, moved)
        elif index == bare.header.e_shstrndx:
            first, second = bare.bytes_of(span_of(old)), full.bytes_of(span_of(new))
            expect(second in (first, first + b".sframe\0"), "other names")
        elif index in moved or not old["sh_flags"] & c.SHF_ALLOC:
            same = have_same(bare.data, full.data, span_of(old), new["sh_offset"])
            expect(same, f"the bytes of {old['name']} changed")
    if numbering != list(range(len(numbering))):
        lists = any(s["sh_type"] in ("SHT_SYMTAB_SHNDX", "SHT_GROUP") for s in bare.sections)
        expect(not lists, "sections were renumbered, and the file has lists of indices")
    return moves


def _paired(bare: FileView, full: FileView) -> list[int]:
    """Return the number in the full file of each section of the bare one."""
    kinds = defaultdict(list)
    for number in reversed([n for n in range(len(full.sections)) if n not in full.sframe]):
        kinds[_kind(full, number)].append(number)
    numbering = []
    for index in range(len(bare.sections)):
        numbers = kinds[_kind(bare, index)]
        expect(bool(numbers), f"section {bare.sections[index]['name']} is missing, or changed")
        numbering.append(numbers.pop())
    expect(not any(kinds.values()), "there are other new sections")
    if numbering:
        expect(numbering[bare.header.e_shstrndx] == full.header.e_shstrndx, "the section names are elsewhere")
    return numbering


def _kind(view: FileView, index: int) -> tuple[Any, ...]:
    section = view.sections[index]
    size = 0 if index == view.header.e_shstrndx else section["sh_size"]
    # New names follow the old ones, so an offset is a name.
    return (*(section[key] for key in ("sh_name", "sh_type", "sh_flags", "sh_addralign", "sh_entsize")), size)


def _renumbered(index: int, numbering: list[int]) -> int:
    """Return the new index of a section; one past the table, as a damaged null section may have, is kept."""
    return numbering[index] if index < len(numbering) else index


def _check_symbols(
    first: bytes, second: bytes, order: ByteOrder, numbering: list[int], moved: dict[int, _Move]
) -> None:
    whole = len(first) // SYMBOL_SIZE * SYMBOL_SIZE
    expect(first[whole:] == second[whole:], "the end of a symbol table changed")
    entry = struct.Struct(order + "IBBHQQ")
    pairs = zip(entry.iter_unpack(first[:whole]), entry.iter_unpack(second[:whole]), strict=True)
    for at, ((*description, section, value, size), found) in enumerate(pairs):
        delta = moved[section].delta if section in moved and moved[section].held(value) else 0
        wanted = (*description, _renumbered(section, numbering), value + delta, size)
        expect(wanted == found, f"symbol {at} changed")


def _check_loads(bare: FileView, full: FileView, place: Span) -> None:
    expect(len(full.loads) - len(bare.loads) in (0, 1), "more or fewer PT_LOAD segments")
    for old, new in zip(bare.loads, full.loads, strict=False):
        growth = new["p_filesz"] - old["p_filesz"]
        # Its .bss is zeros of the file then, up to the end of its page.
        is_after_bss = bool(growth) and old["p_flags"] & c.PF_W and old is bare.loads[-1]
        in_memory = new["p_filesz"] if is_after_bss else old["p_memsz"] + growth
        same = {**old, "p_filesz": new["p_filesz"], "p_memsz": in_memory} == new
        expect(same, f"the segment at 0x{old['p_vaddr']:x} changed")
        may_grow = is_after_bss or (not old["p_flags"] & c.PF_W and old["p_filesz"] == old["p_memsz"])
        expect(not growth or (growth > 0 and may_grow), "a segment has another size")
        may_change = new["p_flags"] & c.PF_W and not is_after_bss
        expect(not (may_change and common([place], [span_of(new)])), "the section's segment is not read-only")
        if is_after_bss:
            page = max(old["p_align"], 4096)
            page_end = (old["p_vaddr"] + old["p_memsz"] + page - 1) // page * page
            expect(new["p_vaddr"] + place.start - new["p_offset"] >= page_end, "the section is on a page of .bss")
    for new in full.loads[len(bare.loads) :]:
        holds = new["p_offset"] <= place.start and place.end <= span_of(new).end
        plain = new["p_flags"] == c.PF_R and new["p_filesz"] == new["p_memsz"] and new["p_paddr"] == new["p_vaddr"]
        expect(holds and plain, "the new segment is not .sframe's")
        last = max(load["p_vaddr"] + load["p_memsz"] for load in bare.loads)
        expect(last <= new["p_vaddr"] < last + _MAX_DISTANCE, "the new segment is not right after the others")
        known = {4096, *(load["p_align"] for load in bare.loads)}
        expect(new["p_align"] in known, "the new segment has an alignment of its own")


def _check_followers(bare: FileView, full: FileView, moves: list[_Move], place: Span) -> None:
    """Compare the other program headers; those that describe single sections may be elsewhere."""
    special = {"PT_LOAD", *_OWN, *SFRAME_TYPES}
    olds, news = ([s for s in v.segments if s["p_type"] not in special] for v in (bare, full))
    repeated = [s for s in olds if s["p_type"] == "PT_NOTE" and {**s, "p_type": "PT_GNU_PROPERTY"} in olds]
    if len(news) < len(olds) and repeated:
        olds.remove(repeated[0])
    expect(len(olds) == len(news), "a program header is missing, or new")
    touched = united([place, *(span_of(header) for move in moves for header in (move.old, move.new))])
    for old, new in zip(olds, news, strict=True):
        if old == new:
            expect(not touches(touched, span_of(old)), "a program header leads to what has moved")
            continue
        rest = {key: new[key] for key in ("p_offset", "p_vaddr", "p_paddr")}
        expect(old["p_type"] in _FOLLOWING and {**old, **rest} == new, f"a {old['p_type']} changed")
        paddrs = old["p_paddr"], new["p_paddr"]
        expect(paddrs in ((0, 0), (old["p_vaddr"], new["p_vaddr"])), f"p_paddr of {old['p_type']} changed")
        for view, entry in ((bare, old), (full, new)):
            is_whole = entry["p_filesz"] == entry["p_memsz"]
            expect(is_whole and view.maps(entry["p_vaddr"], entry["p_offset"], entry["p_filesz"]), "is not mapped")
        expect(bare.bytes_of(span_of(old)) == full.bytes_of(span_of(new)), f"the contents of {old['p_type']} changed")


def _check_dynamic(bare: FileView, full: FileView, moves: list[_Move]) -> None:
    expect(bare.dynamic_span == full.dynamic_span, "PT_DYNAMIC is elsewhere")
    expect(len(bare.dynamic) == len(full.dynamic), "PT_DYNAMIC has more or fewer entries")
    deltas = {move.old["sh_addr"]: move.delta for move in moves}
    headers = [header for move in moves for header in (move.old, move.new)]
    left = united((header["sh_addr"], header["sh_addr"] + header["sh_size"]) for header in headers)
    for (tag, old), (other, new) in zip(bare.dynamic, full.dynamic, strict=True):
        wanted = old + deltas.get(old, 0) if tag in _MOVABLE_TAGS else old
        expect(tag == other and new == wanted, f"the dynamic entry 0x{tag:x} changed")
        stays = tag in _MOVABLE_TAGS and old == new
        expect(not stays or not touches(left, Span(old, old + 1)), f"dynamic entry 0x{tag:x} leads to what moved away")
    start, end = bare.dynamic_span
    rest = Span(start + 16 * len(bare.dynamic), end)
    expect(have_same(bare.data, full.data, rest), "bytes after the dynamic entries changed")


def _check_moves(bare: FileView, moves: list[_Move]) -> None:
    """Check that something leads to what moved."""
    followed = united(span_of(s) for s in bare.segments if s["p_type"] in _FOLLOWING)
    tables = {value for tag, value in bare.dynamic if tag in _MOVABLE_TAGS}
    for move in moves:
        old = move.old
        is_followed = old["sh_type"] == "SHT_NOTE" or holder_of(followed, span_of(old)) is not None
        expect(old["sh_addr"] in tables or is_followed, f"{old['name']} has moved, and nothing leads to it")


def _check_bytes(bare: FileView, full: FileView, place: Span, moves: list[_Move]) -> None:
    loaded = [united(map(span_of, view.loads)) for view in (bare, full)]
    olds = [span_of(move.old) for move in moves]
    new = [Span(0, bare.header.e_ehsize), place, full.table("ph"), full.table("sh")]
    new += [span_of(move.new) for move in moves]
    for span in without(common(loaded[1], olds), new):
        expect(is_zero(full.data, span), "something is left where a section was")
    patched = [bare.dynamic_span, *(span_of(s) for s in bare.sections if s["sh_type"] == "SHT_DYNSYM")]
    table = bare.table("ph")
    for span in without(common(*loaded), [*new, *patched, *olds, table]):
        same = have_same(bare.data, full.data, span)
        expect(same, f"loaded bytes from file offset 0x{span.start:x} on changed")
    for span in without([table], new):
        # Of the program headers that were, some may be no more.
        pairs = zip(bare.bytes_of(span), full.bytes_of(span), strict=True)
        expect(all(byte in (old, 0) for old, byte in pairs), "the old program headers changed")
    for span in without(loaded[1], [*loaded[0], *new]):
        expect(is_zero(full.data, span), "a new part of a segment is not empty")


def _check_layout(view: FileView, other: FileView, *, has_any_size: bool = False) -> None:
    """Check that nothing overlaps in the file or in memory, and that the program headers are where they say.

    Kernels before 5.18 have to find these as in the other file.
    """
    table = view.table("ph")
    spans = [Span(0, view.header.e_ehsize), table, view.table("sh")]
    spans += [span for span in map(span_of, view.sections) if span.start < span.end]
    spans.sort()
    for one, following in pairwise(spans):
        expect(one.end <= following.start, "parts of the file overlap")
    expect(spans[-1].end <= len(view.data), "a section extends past the end of the file")
    for before, after in pairwise(view.loads):
        expect(before["p_vaddr"] + before["p_memsz"] <= after["p_vaddr"], "segments overlap, or are out of order")
    for load in view.loads:
        expect(
            (not load["p_filesz"] or span_of(load).end <= len(view.data)) and load["p_filesz"] <= load["p_memsz"],
            "a segment extends past the end of the file",
        )
        expect((load["p_vaddr"] - load["p_offset"]) % max(load["p_align"], 1) == 0, "a segment is misaligned")
    for entry in view.segments:
        if entry["p_type"] == "PT_PHDR":
            size = table.end - table.start
            has_size = has_any_size or entry["p_filesz"] == entry["p_memsz"] == size
            expect(entry["p_offset"] == table.start and has_size, "PT_PHDR leads elsewhere")
            expect(view.maps(entry["p_vaddr"], table.start, size), "PT_PHDR is not mapped there")
    expect(_is_where_at_phdr_says(view) or not _is_where_at_phdr_says(other), "old kernels get another AT_PHDR")


def _is_where_at_phdr_says(view: FileView) -> bool:
    """Whether a program's headers are where kernels before 5.18 say: as far from its first segment as in the file."""
    table = view.table("ph")
    is_program = view.header.e_type == "ET_EXEC" or any(s["p_type"] == "PT_INTERP" for s in view.segments)
    holder = next((s for s in view.loads if s["p_offset"] <= table.start and table.end <= span_of(s).end), None)
    if holder is None or not is_program:
        return True
    return bool(holder["p_vaddr"] - holder["p_offset"] == view.loads[0]["p_vaddr"] - view.loads[0]["p_offset"])
