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
from typing import Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import FileData, have_same, is_zero
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.notes import are_of_tools
from cfi2sframe.elf.referrers import referrers, relocated
from cfi2sframe.placing.loader_tables import BY_CONTENT, extent_of, is_pointer
from cfi2sframe.placing.pyelftools_view import FileView, expect, failure, is_sframe, parsing, span_of
from cfi2sframe.placing.segments_view import compare_segments, expect_table_found, expect_targets_kept
from cfi2sframe.placing.tools_view import Elsewhere, compare_sections
from cfi2sframe.range_map import RangeMap, Span, common, touches, united, walk_both, without

#: The smallest page of the kernels of all ABIs.
_PAGE_SIZE: Final = 1 << 12
#: Fields of the file header for the places of tables, and the numbers of their entries.
_TABLE_FIELDS: Final = {"e_phnum", "e_phoff", "e_shoff", "e_shnum", "e_shstrndx"}
#: Program headers that only loaders read.
_OF_LOADERS: Final = {"PT_INTERP", "PT_GNU_PROPERTY"}


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
        elsewhere += compare_segments(bare, full, by_others=by_others)
        # The table of program headers grows over these.
        left = without(full.addresses_of(full.table("ph")), bare.addresses_of(bare.table("ph")))
        left += [content.old for content in elsewhere]
        tables = _compare_dynamic(bare, full, left, symbols)
        elsewhere += tables
        left = united([*left, *(table.old for table in tables)])
        expect_targets_kept(bare, full, left)
        given_up = _expect_same_memory(bare, full, place, elsewhere, symbols)
        _expect_unread(bare, given_up, [table.old for table in tables])
        expect_table_found(bare, full, by_others=by_others)
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


# The dynamic section


def _compare_dynamic(bare: FileView, full: FileView, left: list[Span], symbols: Span) -> list[Elsewhere]:
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
    if bare.header.e_shoff == full.header.e_shoff:
        # patchelf 0.19 maps section headers, which are compared as such.
        headers += full.addresses_of(full.table("sh"))
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
    # patchelf 0.19 puts the program headers into a writable segment: with them, it may grow within its page.
    writable = [Span(p["p_vaddr"], p["p_vaddr"] + p["p_memsz"]) for p in full.loads if p["p_flags"] & c.PF_W]
    grown = common([*news, *full.addresses_of(full.table("ph"))], writable)
    for span in without(_rests_of_data(bare), [*mapped, *grown]):
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
    """Yield, for each segment, whether its first page has nothing of the one before, or the bare file has both so."""
    neighbors = {(a["p_vaddr"] + a["p_memsz"], b["p_vaddr"]) for a, b in pairwise(bare.loads)}
    yield True
    for before, after in pairwise(full.loads):
        end, start = before["p_vaddr"] + before["p_memsz"], after["p_vaddr"]
        page = max(_PAGE_SIZE, before["p_align"], after["p_align"])
        yield (end, start) in neighbors or -(-end // page) * page <= start // page * page


def _expect_fixed_heap(bare: FileView, full: FileView) -> None:
    """Check that the heap starts where it did, after all segments, if the program may be an image saved with its heap.

    Such a program fixes addresses, has no bytes of data that are not in the file, and names what it finds its heap by.
    """
    ends = [max((load["p_vaddr"] + load["p_memsz"] for load in view.loads), default=0) for view in (bare, full)]
    is_whole = [load["p_filesz"] == load["p_memsz"] for load in bare.loads if load["p_flags"] & c.PF_W][-1:] == [True]
    if bare.header.e_type == "ET_EXEC" and is_whole and ends[0] != ends[1] and bare.has_symbols:
        names = bare.memory_at(*extent_of(bare, c.DT_STRTAB))
        is_asked = re.search(rb"\0personality\0", names) and re.search(rb"\0s?brk\0", names)
        expect(not is_asked, "the heap starts elsewhere, and the program may be saved with it")


def _expect_layout(view: FileView) -> None:
    """Check that nothing overlaps in the file."""
    spans = [Span(0, view.header.e_ehsize), view.table("ph"), view.table("sh")]
    spans += [span for span in map(span_of, view.sections) if span.start < span.end]
    spans.sort()
    expect(all(one.end <= following.start for one, following in pairwise(spans)), "parts of the file overlap")
    expect(spans[-1].end <= len(view.data), "a section extends past the end of the file")
