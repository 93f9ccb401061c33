# SPDX-License-Identifier: Apache-2.0
"""The judge of rewritten files: two linked files have to be equal except for an SFrame section, to all their readers.

`expect_equal` compares a file without a section with the one that has it, whichever of them was made from the other:

- the kernel and the dynamic loader: the file header; the program headers, in their order; each mapped address with its
  rights and its byte; where old and new kernels find the program headers; what each dynamic entry leads to
- the program: what may refer to bytes that have changed (`elf/referrers.py`, which insertion asks, too)
- tools: sections with their contents, symbols

Other differences have to be of these kinds, which is proved from the files: the table of program headers, its place and
where it grows; a table, note or name that is elsewhere, with the same content, where all of its readers find it;
indices of sections in symbols; and addresses that only the file with the section has. Where the old place of what
loaders follow headers to has other bytes, no relocation may refer to it; to any other bytes that changed, except unused
zeros, nothing that the search recognizes.

Nothing here knows how a section gets its place, or how it is removed. Not seen: addresses that code computes, and where
a static program expects its heap.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import FileData, have_same, is_zero
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.notes import are_of_tools, parse_notes
from cfi2sframe.elf.referrers import referrers, relocated
from cfi2sframe.placing.loader_tables import BY_CONTENT, extent_of, is_pointer
from cfi2sframe.placing.pyelftools_view import FileView, expect, failure, is_sframe, parsing, span_of
from cfi2sframe.placing.tools_view import Elsewhere, compare_sections
from cfi2sframe.range_map import RangeMap, Span, common, touches, united, walk_both, without

#: The smallest page of the kernels of all ABIs.
_PAGE_SIZE: Final = 1 << 12
#: Linux up to 6.12 loads no larger table of program headers than a page.
_MOST_SEGMENTS: Final = _PAGE_SIZE // 56
#: Fields of the file header for the places of tables, and the numbers of their entries.
_TABLE_FIELDS: Final = {"e_phnum", "e_phoff", "e_shoff", "e_shnum", "e_shstrndx"}
#: Program headers whose readers follow them, wherever they lead.
_FOLLOWED: Final = {"PT_INTERP", "PT_NOTE", "PT_GNU_PROPERTY"}
#: Those that only loaders read.
_OF_LOADERS: Final = {"PT_INTERP", "PT_GNU_PROPERTY"}
#: Program headers that span addresses of others.
_ENCLOSING: Final = {"PT_LOAD", "PT_PHDR", "PT_GNU_RELRO", "PT_GNU_STACK"}
#: GNU_PROPERTY_X86_ISA_1_NEEDED: glibc reads this of a PT_NOTE alone.
_ISA_NEEDED: Final = (0xC0008002).to_bytes(4, "little")
_ISA_BASELINE: Final = 1


class _Mapped(NamedTuple):
    """A mapping of addresses: their distance to file offsets (None: zeros), and the rights `flags`."""

    bias: int | None
    flags: int


def expect_equal(without_section: FileData, with_section: FileData, *, by_others: bool = False) -> Span:
    """Raise `EmbedError` unless two files are equal but for the SFrame section that one of them has.

    Return the file offsets of the section. `by_others`: the file with the section was there before, and earlier
    releases gave up more. Raises what readers of the files raise.
    """
    with parsing():
        bare, full = FileView(without_section), FileView(with_section)
        place = _section_of(full)
        expect(not bare.sframe and not any(map(is_sframe, bare.segments)), "it has a section")
        _expect_same_header(bare, full)
        elsewhere, symbols = compare_sections(bare, full)
        elsewhere += _followed(bare, full, by_others=by_others)
        # Where the table of program headers grows.
        left = without(full.addresses_of(full.table("ph")), bare.addresses_of(bare.table("ph")))
        left += [content.old for content in elsewhere]
        tables = _dynamic(bare, full, left, symbols)
        elsewhere += tables
        left = united([*left, *(table.old for table in tables)])
        for entry in bare.segments:
            leads = entry["p_type"] not in _ENCLOSING and entry in full.segments and not _is_empty(bare, entry)
            span = Span(entry["p_vaddr"], entry["p_vaddr"] + entry["p_memsz"])
            expect(not leads or not touches(left, span), f"a {entry['p_type']} leads to what is elsewhere")
        given_up = _expect_same_memory(bare, full, place, elsewhere, symbols)
        _expect_unread(bare, given_up, [table.old for table in tables])
        _expect_found_headers(bare, full, by_others=by_others)
        _expect_layout(full)
        return place


def _section_of(view: FileView) -> Span:
    """Return the file offsets of a file's section, to which all of its headers lead.

    Some producers write no PT_GNU_SFRAME; without section headers, there is nothing else.
    """
    entries = [segment for segment in view.segments if is_sframe(segment)]
    headers = [view.sections[number] for number in view.sframe]
    expect(len(entries) < 2 and len(headers) < 2 and bool(entries or headers), "not one SFrame section")
    places = [(header["sh_addr"], *span_of(header)) for header in headers]
    # Some have a size of their own in PT_GNU_SFRAME.
    places += [(entry["p_vaddr"], *span_of(entry)) for entry in entries]
    vaddr, start, end = places[0]
    expect(all(place[:2] == (vaddr, start) for place in places), "the headers of .sframe lead to different places")
    return Span(start, end)


def _expect_same_header(bare: FileView, full: FileView) -> None:
    same = bare.bytes_of(Span(0, 16)) == full.bytes_of(Span(0, 16))
    same = same and all(bare.header[key] == full.header[key] for key in bare.header if key not in _TABLE_FIELDS)
    expect(same, "the file header changed")


# Program headers


def _followed(bare: FileView, full: FileView, *, by_others: bool) -> Iterator[Elsewhere]:
    """Pair the program headers in their order; yield the contents of those that may lead elsewhere, and do."""
    news = [segment for segment in full.segments if segment["p_type"] != "PT_NULL" and not is_sframe(segment)]
    at = 0
    for old in bare.segments:
        if old["p_type"] == "PT_NULL":
            continue
        first = at
        while at < len(news) and news[at]["p_type"] == "PT_LOAD" and not _is_same(bare, full, old, news[at]):
            at += 1
        if at < len(news) and _is_same(bare, full, old, news[at]):
            new = news[at]
            at += 1
            if old["p_vaddr"] != new["p_vaddr"] and old["p_type"] in _FOLLOWED:
                yield Elsewhere(Span(old["p_vaddr"], old["p_vaddr"] + old["p_filesz"]), new["p_vaddr"])
        else:
            at = first
            expect(
                _may_be_absent(bare, old, by_others=by_others),
                f"a {old['p_type']} is missing, changed, or in another order",
            )
    expect(all(new["p_type"] == "PT_LOAD" for new in news[at:]), "a program header is new")
    starts = {old["p_vaddr"] for old in bare.loads}
    rights = {new["p_flags"] for new in full.loads if new["p_vaddr"] not in starts}
    expect(rights <= {c.PF_R}, "a new segment is not read-only")


def _is_same(bare: FileView, full: FileView, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether a program header says the same to its readers."""
    kind = old["p_type"]
    if kind != new["p_type"]:
        return False
    if kind == "PT_LOAD":
        # What it maps is compared address by address.
        return all(old[key] == new[key] for key in ("p_vaddr", "p_paddr", "p_flags", "p_align"))
    if kind == "PT_PHDR":
        # Nobody reads its rights and sizes; that it leads to the table is checked apart.
        same = old["p_flags"] & ~c.PF_X == new["p_flags"] & ~c.PF_X and old["p_align"] == new["p_align"]
        return bool(same and _is_paddr_kept(old, new))
    if kind not in _FOLLOWED or old == new:
        return bool(old == new)
    rest = {key: new[key] for key in ("p_offset", "p_vaddr", "p_paddr")}
    return bool(
        {**old, **rest} == new
        and _is_paddr_kept(old, new)
        and old["p_filesz"] == old["p_memsz"]
        and bare.maps(old["p_vaddr"], old["p_offset"], old["p_filesz"])
        and full.maps(new["p_vaddr"], new["p_offset"], new["p_filesz"])
        and bare.bytes_of(span_of(old)) == full.bytes_of(span_of(new))
    )


def _is_empty(view: FileView, entry: dict[str, Any]) -> bool:
    """Return whether a PT_GNU_PROPERTY has no note: patchelf leaves it over its own program headers."""
    return entry["p_type"] == "PT_GNU_PROPERTY" and view.bytes_of(span_of(entry))[12:16] != b"GNU\0"


def _is_paddr_kept(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether the physical address is still the virtual one, or still 0."""
    return (old["p_paddr"], new["p_paddr"]) in ((0, 0), (old["p_vaddr"], new["p_vaddr"]))


def _may_be_absent(bare: FileView, entry: dict[str, Any], *, by_others: bool) -> bool:
    """Return whether a program header has no readers: a PT_NOTE that PT_GNU_PROPERTY repeats, a PT_PHDR of Go."""
    if entry["p_type"] == "PT_PHDR":
        # Zig's programs read it, Go's do not; earlier releases removed it from all static programs.
        contents = [bare.bytes_of(span_of(s)) for s in bare.segments if s["p_type"] == "PT_NOTE"]
        is_go = any(note.owner == b"Go" for content in contents for note in parse_notes(content, bare.order))
        return bare.is_static and (by_others or is_go)
    needed = bare.bytes_of(span_of(entry)).partition(_ISA_NEEDED)[2][4:8]
    is_repeated = {**entry, "p_type": "PT_GNU_PROPERTY"} in bare.segments
    return entry["p_type"] == "PT_NOTE" and is_repeated and int.from_bytes(needed, "little") <= _ISA_BASELINE


def _expect_found_headers(bare: FileView, full: FileView, *, by_others: bool) -> None:
    """Check that loaders find the program headers: by PT_PHDR, and where kernels say that they are (AT_PHDR)."""
    for view in (bare, full):
        table = view.table("ph")
        for entry in view.segments:
            if entry["p_type"] == "PT_PHDR":
                is_there = view.maps(entry["p_vaddr"], table.start, table.end - table.start)
                expect(entry["p_offset"] == table.start and is_there, "PT_PHDR leads elsewhere")
    for at_phdr in (_holder_of_table, _old_at_phdr):
        expect(bool(at_phdr(full)) or not at_phdr(bare), "kernels give another AT_PHDR")
    if by_others:
        return
    types = {entry["p_type"] for entry in full.segments}
    finds_itself = "PT_PHDR" in types and "PT_INTERP" not in types and bare.header.e_entry
    has_moved = full.table("ph").start != bare.table("ph").start
    expect(not finds_itself or not has_moved, "the program headers moved away from the ELF header")
    counts = len(bare.segments), len(full.segments)
    expect(counts[1] <= _MOST_SEGMENTS or counts[0] > _MOST_SEGMENTS, "the program headers are more than a page")


def _old_at_phdr(view: FileView) -> bool:
    """Return whether kernels before 5.18 find them: at the file's distance from the start of the first segment."""
    holder = _holder_of_table(view)
    is_program = view.header.e_type == "ET_EXEC" or any(s["p_type"] == "PT_INTERP" for s in view.segments)
    if holder is None or not is_program:
        return True
    return bool(holder["p_vaddr"] - holder["p_offset"] == view.loads[0]["p_vaddr"] - view.loads[0]["p_offset"])


def _holder_of_table(view: FileView) -> dict[str, Any] | None:
    """Return the segment in which kernels find the program headers."""
    table = view.table("ph")
    return next((s for s in view.loads if s["p_offset"] <= table.start and table.end <= span_of(s).end), None)


# The dynamic section


def _dynamic(bare: FileView, full: FileView, left: list[Span], symbols: Span) -> list[Elsewhere]:
    """Compare the targets of the dynamic entries; return the tables that are elsewhere.

    `left` are addresses that other contents have left. The `symbols` have been compared.
    """
    expect([tag for tag, _ in bare.dynamic] == [tag for tag, _ in full.dynamic], "there are other dynamic entries")
    tables = []
    for (tag, old), (_, new) in zip(bare.dynamic, full.dynamic, strict=True):
        expect(old == new or tag in BY_CONTENT, f"the dynamic entry 0x{tag:x} changed")
        if old != new:
            tables.append(Elsewhere(extent_of(bare, tag), new))
    left = united([*left, *(table.old for table in tables)])
    for (tag, old), (_, new) in zip(bare.dynamic, full.dynamic, strict=True):
        expect(old != new or not is_pointer(tag) or not touches(left, Span(old, old + 1)), f"0x{tag:x} leads nowhere")
    for table in tables:
        if symbols.start <= table.old.start and table.old.end <= symbols.end:
            continue
        same = bare.memory_at(*table.old) == full.memory_at(*table.new)
        expect(same, "a table of the dynamic loader changed")
    return tables


# Memory


def _memory(view: FileView) -> RangeMap[_Mapped | None]:
    """Return how each address is mapped. Raises `EmbedError` where segments overlap, or are out of order."""
    ranges: list[tuple[int, int, _Mapped | None]] = []
    for load in view.loads:
        start, middle, end = (load["p_vaddr"] + size for size in (0, load["p_filesz"], load["p_memsz"]))
        expect(start <= middle <= end and (not ranges or ranges[-1][1] <= start), "segments overlap, or are unordered")
        bias = load["p_offset"] - start
        expect(middle == start or start + bias + load["p_filesz"] <= len(view.data), "a segment leaves the file")
        expect(start == end or bias % max(load["p_align"], 1) == 0, "a segment is misaligned")
        ranges.append((start, middle, _Mapped(bias, load["p_flags"])))
        ranges.append((middle, end, _Mapped(None, load["p_flags"])))
    return RangeMap(None, [part for part in ranges if part[0] < part[1]])


def _expect_same_memory(
    bare: FileView, full: FileView, place: Span, elsewhere: list[Elsewhere], symbols: Span
) -> list[Span]:
    """Compare the byte at each address, except for `symbols`; return the addresses that contents have left or taken.

    The old place of a section that is elsewhere has its bytes, or zeros, as tools write that rewrite files by sections.
    """
    memories = _memory(bare), _memory(full)
    olds, news = united(content.old for content in elsewhere), united(content.new for content in elsewhere)
    headers = bare.addresses_of(Span(0, bare.header.e_ehsize))
    entries = Span(bare.dynamic_span.start, bare.dynamic_span.start + 16 * len(bare.dynamic))
    section, table = full.addresses_of(place), bare.addresses_of(bare.table("ph"))
    written = without([*news, *section, *full.addresses_of(full.table("ph"))], table)
    apart = united([*headers, *table, *bare.addresses_of(entries), symbols, *written])
    mapped = list[Span]()
    for start, end, ours, theirs in walk_both(*memories):
        if ours is None:
            continue
        if theirs is None or ours.flags != theirs.flags:
            raise failure(f"0x{start:x} is not mapped as it was")
        mapped.append(Span(start, end))
        for span in without([Span(start, end)], [*apart, *olds]):
            expect(_have_same(bare, ours, full, theirs, span), f"the bytes from 0x{span.start:x} on changed")
        for span in without(common([Span(start, end)], olds), apart):
            same = _have_same(bare, ours, full, theirs, span)
            is_cleared = all(is_zero(full.data, part) for part in full.offsets_of([span]))
            expect(same or is_cleared, "something else is where a section was")
    for span in without(_rests_of_data(bare), mapped):
        same = all(_have_same(bare, _Mapped(None, 0), full, m, part) for part, m in _parts(memories[1], span))
        expect(same, f"something is in the last page of writable data, from 0x{span.start:x} on")
    for load, is_apart in zip(full.loads, _pages_apart(full, bare), strict=True):
        expect(is_apart, f"the segment at 0x{load['p_vaddr']:x} shares a page with the one before")
    _expect_fixed_heap(bare, full)
    expect(all(is_zero(bare.data, span) for span in bare.offsets_of(section)), "something was where the section is")
    return without(common([*olds, *written], mapped), section)


def _expect_unread(bare: FileView, given_up: list[Span], tables: Iterable[Span]) -> None:
    """Check that nothing refers to some addresses; for the loader's `tables`, only relocations are searched.

    For tools' notes, rare forms are not searched. Unused zeros have no readers; without section headers, it is not
    known what is unused.
    """
    unused = [part for part in bare.outside_sections(bare.offsets_of(given_up)) if is_zero(bare.data, part)]
    asked = without(given_up, [addresses for part in unused for addresses in bare.addresses_of(part)])
    loaders = [Span(s["p_vaddr"], s["p_vaddr"] + s["p_filesz"]) for s in bare.segments if s["p_type"] in _OF_LOADERS]
    notes = [s for s in bare.sections if s["sh_type"] == "SHT_NOTE"]
    tools = [
        addresses
        for note in notes
        if are_of_tools(bare.bytes_of(span_of(note)), bare.order, note["sh_addralign"])
        for addresses in bare.addresses_of(span_of(note))
    ]
    rest, image = without(asked, [*loaders, *tables]), ElfImage(bare.data, "")
    readers = chain(
        relocated(image, common(asked, [*loaders, *tables])),
        referrers(image, common(rest, tools), rare=False),
        referrers(image, without(rest, tools)),
    )
    for place, target in readers:
        raise failure(f"0x{place:x} refers to 0x{target:x}, where something else is")


def _have_same(bare: FileView, ours: _Mapped, full: FileView, theirs: _Mapped, span: Span) -> bool:
    """Return whether a span of addresses has the same bytes."""
    olds, news = (
        None if bias is None else Span(span.start + bias, span.end + bias) for bias in (ours.bias, theirs.bias)
    )
    if olds is None or news is None:
        return all(is_zero(view.data, span) for view, span in ((bare, olds), (full, news)) if span is not None)
    return have_same(bare.data, full.data, olds, news.start)


def _rests_of_data(view: FileView) -> Iterator[Span]:
    """Yield the rest of the last page of each writable segment: zeros, which an allocator may take."""
    for load in view.loads:
        if load["p_flags"] & c.PF_W:
            end, page = load["p_vaddr"] + load["p_memsz"], max(_PAGE_SIZE, load["p_align"])
            yield Span(end, -(-end // page) * page)


def _parts(memory: RangeMap[_Mapped | None], span: Span) -> Iterator[tuple[Span, _Mapped]]:
    """Yield the parts of a span that are mapped, and how."""
    for start, end, mapped in memory.held():
        yield from ((part, mapped) for part in common([span], [Span(start, end)]))


def _pages_apart(full: FileView, bare: FileView) -> Iterator[bool]:
    """Yield for each segment whether its first page has nothing of the one before, or had so in the bare file, too."""
    neighbors = {(a["p_vaddr"] + a["p_memsz"], b["p_vaddr"]) for a, b in pairwise(bare.loads)}
    yield True
    for before, after in pairwise(full.loads):
        end, start = before["p_vaddr"] + before["p_memsz"], after["p_vaddr"]
        page = max(_PAGE_SIZE, before["p_align"], after["p_align"])
        yield (end, start) in neighbors or -(-end // page) * page <= start // page * page


def _expect_fixed_heap(bare: FileView, full: FileView) -> None:
    """Check that the heap starts where it did, after all segments, in a program that fixes addresses and uses it."""
    ends = [max((load["p_vaddr"] + load["p_memsz"] for load in view.loads), default=0) for view in (bare, full)]
    if bare.header.e_type == "ET_EXEC" and ends[0] != ends[1] and bare.has_symbols:
        names = bare.memory_at(*extent_of(bare, c.DT_STRTAB))
        is_asked = re.search(rb"\0personality\0", names) and re.search(rb"\0s?brk\0", names)
        expect(not is_asked, "the heap starts elsewhere, and the program fixes its addresses")


def _expect_layout(view: FileView) -> None:
    """Check that nothing overlaps in the file."""
    spans = [Span(0, view.header.e_ehsize), view.table("ph"), view.table("sh")]
    spans += [span for span in map(span_of, view.sections) if span.start < span.end]
    spans.sort()
    expect(all(one.end <= following.start for one, following in pairwise(spans)), "parts of the file overlap")
    expect(spans[-1].end <= len(view.data), "a section extends past the end of the file")
