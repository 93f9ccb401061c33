# SPDX-License-Identifier: Apache-2.0
"""The view that kernels and loaders have of a rewritten file's program headers: their targets, and where they are."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.notes import parse_notes
from cfi2sframe.placing.pyelftools_view import FileView, expect, is_sframe, span_of
from cfi2sframe.placing.tools_view import Elsewhere
from cfi2sframe.range_map import Span, touches

#: Linux up to 6.12 loads no larger table of program headers than a page.
_MOST_SEGMENTS: Final = (1 << 12) // 56
#: Program headers whose readers follow them, wherever they lead.
_FOLLOWED: Final = {"PT_INTERP", "PT_NOTE", "PT_GNU_PROPERTY"}
#: Program headers that span addresses of others.
_ENCLOSING: Final = {"PT_LOAD", "PT_PHDR", "PT_GNU_RELRO", "PT_GNU_STACK"}
#: GNU_PROPERTY_X86_ISA_1_NEEDED: glibc reads this of a PT_NOTE alone.
_ISA_NEEDED: Final = (0xC0008002).to_bytes(4, "little")
_ISA_BASELINE: Final = 1


def compare_segments(bare: FileView, full: FileView, *, by_others: bool) -> Iterator[Elsewhere]:
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
            may_be_absent = _may_be_absent(bare, old, by_others=by_others)
            expect(may_be_absent, f"a {old['p_type']} is missing, changed, or in another order")
    expect(all(new["p_type"] == "PT_LOAD" for new in news[at:]), "a program header is new")
    starts = {old["p_vaddr"] for old in bare.loads}
    rights = {new["p_flags"] for new in full.loads if new["p_vaddr"] not in starts}
    expect(rights <= {c.PF_R}, "a new segment is not read-only")


def _is_same(bare: FileView, full: FileView, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether a program header means the same to its readers."""
    kind = old["p_type"]
    if kind != new["p_type"]:
        return False
    if kind == "PT_LOAD":
        # The bytes that it maps are compared address by address.
        return all(old[key] == new[key] for key in ("p_vaddr", "p_paddr", "p_flags", "p_align"))
    if kind == "PT_PHDR":
        # Its rights and sizes have no readers; `expect_table_found` checks that it leads to the table.
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


def expect_targets_kept(bare: FileView, full: FileView, left: Sequence[Span]) -> None:
    """Check that no unchanged program header leads to addresses that contents have `left`."""
    for entry in bare.segments:
        leads = entry["p_type"] not in _ENCLOSING and entry in full.segments and not _is_empty(bare, entry)
        span = Span(entry["p_vaddr"], entry["p_vaddr"] + entry["p_memsz"])
        expect(not leads or not touches(left, span), f"a {entry['p_type']} leads to what is elsewhere")


def expect_table_found(bare: FileView, full: FileView, *, by_others: bool) -> None:
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
    """Return whether kernels before 5.18 find the headers: at the file's distance from the first segment's start."""
    holder = _holder_of_table(view)
    is_program = view.header.e_type == "ET_EXEC" or any(s["p_type"] == "PT_INTERP" for s in view.segments)
    if holder is None or not is_program:
        return True
    return bool(holder["p_vaddr"] - holder["p_offset"] == view.loads[0]["p_vaddr"] - view.loads[0]["p_offset"])


def _holder_of_table(view: FileView) -> dict[str, Any] | None:
    """Return the segment in which kernels find the program headers."""
    table = view.table("ph")
    return next((s for s in view.loads if s["p_offset"] <= table.start and table.end <= span_of(s).end), None)
