# SPDX-License-Identifier: Apache-2.0
"""Put a finished `.sframe` section into a linked ELF64 file, so that it is mapped and PT_GNU_SFRAME leads to it.

The size of the section is known before its address, so the plan comes first and the bytes after:

    plan = plan_embedding(data, section_size)        # plan.section_vaddr is known from here on
    chunks = write_embedding(data, plan, section)    # buffers, mostly ranges of `data`
    self_check(data, rewritten, plan)                # reads the result back, with other code

Existing code and data keep their addresses. Mode, owner and times of the file are the caller's business.
`remove_section` takes a section out again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from cfi2sframe.elf.constants import PT_GNU_SFRAME, SHT_GNU_SFRAME
from cfi2sframe.elf.records import SECTION_HEADER_SIZE
from cfi2sframe.errors import EmbedError
from cfi2sframe.rewrite.choose import Draft, HeaderSource, make_draft
from cfi2sframe.rewrite.edits import Splice, apply, ordered, overwrite
from cfi2sframe.rewrite.gate import parse_or_refuse
from cfi2sframe.rewrite.insert import assemble
from cfi2sframe.rewrite.remove import removal_splices
from cfi2sframe.rewrite.reread.check import Expected, check_removed, check_replaced, check_rewritten

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import Joined
    from cfi2sframe.elf.records import Buffer, FileData
    from cfi2sframe.rewrite.gate import Layout

Place = Literal["existing-section", "slack", "new-segment"]

_PLACE_TEXT: dict[Place, str] = {
    "existing-section": "over the existing section",
    "slack": "into unused bytes behind a read-only segment",
    "new-segment": "into a new read-only segment behind all others",
}
_HEADERS_TEXT: dict[HeaderSource, str] = {
    "existing-entries": "the program headers stay",
    "free-entries": "the program header table had room",
    "repeated-note": "the PT_NOTE that repeats PT_GNU_PROPERTY gave its program header",
    "table-entry": "PT_PHDR, which a static executable does not need, gave its program header",
    "moved-sections": "small sections gave way to the program headers",
    "table-at-end": "the program headers went there too",
}


class MovedSection(NamedTuple):
    """A section whose address changed to make room for program headers."""

    name: str
    old_vaddr: int
    new_vaddr: int


class EmbeddingPlan(NamedTuple):
    """Where the section goes and how the file changes.

    `section_vaddr` is its link-time address, `section_file_offset` its place in the new file,
    `section_size` in bytes. `strategy` names where the bytes go, `headers` where the program headers came
    from; `table_file_offset` is their new place, None when they stay. When `removes_existing`, the splices apply to
    the file without its old section.
    """

    section_vaddr: int
    section_file_offset: int
    section_size: int
    section_type: int
    strategy: Place
    headers: tuple[HeaderSource, ...]
    moved: tuple[MovedSection, ...]
    warnings: tuple[str, ...]
    removes_existing: bool
    splices: tuple[Splice, ...]
    table_file_offset: int | None = None

    @property
    def description(self) -> str:
        """Say in a sentence what is done to the file."""
        text = "; ".join([_PLACE_TEXT[self.strategy], *(_HEADERS_TEXT[source] for source in self.headers)])
        if self.moved:
            text += f" ({', '.join(section.name for section in self.moved)})"
        return text


def plan_embedding(
    data: FileData,
    section_size: int,
    *,
    replace: bool = False,
    section_type: int = SHT_GNU_SFRAME,
    may_move_table: bool = False,
) -> EmbeddingPlan:
    """Plan to put a section of `section_size` bytes into the linked file `data`.

    `section_type` is SHT_GNU_SFRAME or, for tools before binutils 2.45, SHT_PROGBITS. With `replace` an
    existing section is overwritten when it is large enough, and taken out first when it is not. With
    `may_move_table` the program headers may go to the end where nothing else is possible, which GNU strip and
    objcopy do not survive. Raises `EmbedError` with the reason when the file is better left alone.
    """
    if section_size <= 0:
        raise EmbedError("an empty section is never written")
    layout = parse_or_refuse(data)
    exists = layout.sframe_index() is not None or layout.sframe_segment() is not None
    if not exists:
        return _fresh_plan(layout, make_draft(layout, section_size, may_move_table=may_move_table), section_type)
    if not replace:
        raise EmbedError("the file has an .sframe section already; replacing it has to be asked for")
    if plan := _plan_in_place(layout, section_size, section_type):
        return plan
    bare = parse_or_refuse(remove_section(data))
    draft = make_draft(bare, section_size, may_move_table=may_move_table)
    return _fresh_plan(bare, draft, section_type)._replace(removes_existing=True)


def _fresh_plan(layout: Layout, draft: Draft, section_type: int) -> EmbeddingPlan:
    block = draft.block
    moved = tuple(
        MovedSection(layout.names[index], layout.sections[index].vaddr, vaddr)
        for index, (vaddr, _) in sorted(draft.moved.items())
    )
    return EmbeddingPlan(
        section_vaddr=block.vaddr_of(block.section_file_offset),
        section_file_offset=block.section_file_offset,
        section_size=block.section_size,
        section_type=section_type,
        strategy="new-segment" if block.load_index is None else "slack",
        headers=draft.sources,
        moved=moved,
        warnings=draft.warnings,
        removes_existing=False,
        splices=assemble(layout, draft, section_type),
        table_file_offset=draft.table_file_offset,
    )


def _plan_in_place(layout: Layout, section_size: int, section_type: int) -> EmbeddingPlan | None:
    """Return the plan to overwrite a mapped section that is large enough, or None."""
    index, segment = layout.sframe_index(), layout.sframe_segment()
    if index is None or segment is None:
        return None
    section = layout.sections[index]
    loaded = any(
        load.vaddr <= section.vaddr
        and section.vaddr + section.size <= load.vaddr + load.file_size
        and section.vaddr - load.vaddr == section.file_offset - load.file_offset
        for load in layout.loads
    )
    if not loaded or segment.vaddr != section.vaddr or section.size < section_size or section.vaddr % 8:
        return None
    segments = [
        s._replace(file_size=section_size, memory_size=section_size) if s.type == PT_GNU_SFRAME else s
        for s in layout.segments
    ]
    table = b"".join(s.pack(layout.order) for s in segments)
    header = section._replace(size=section_size, type=section_type)
    header_offset = layout.header.section_headers_offset + SECTION_HEADER_SIZE * index
    rest = section.size - section_size
    splices = [
        overwrite(layout.header.program_headers_offset, table),
        Splice(section.file_offset, section_size, None, section_size),
        overwrite(header_offset, header.pack(layout.order)),
    ]
    if rest:
        splices.append(overwrite(section.file_offset + section_size, bytes(rest)))
    return EmbeddingPlan(
        section_vaddr=section.vaddr,
        section_file_offset=section.file_offset,
        section_size=section_size,
        section_type=section_type,
        strategy="existing-section",
        headers=("existing-entries",),
        moved=(),
        warnings=(),
        removes_existing=False,
        splices=ordered(splices),
    )


def write_embedding(data: FileData, plan: EmbeddingPlan, section: Buffer) -> Joined:
    """Return the new file: buffers to be written one after the other; most are ranges of `data`.

    `data` is the file that the plan was made for. Raises `EmbedError` when the section's size is not the
    planned one.
    """
    if len(section) != plan.section_size:
        raise EmbedError(f"the section has {len(section)} bytes, the plan has room for {plan.section_size}")
    base = remove_section(data) if plan.removes_existing else data
    return apply(base, plan.splices, bytes(section))


def remove_section(data: FileData) -> Joined:
    """Return the file without its `.sframe` section and PT_GNU_SFRAME.

    What `write_embedding` did is undone: its segment goes, moved sections return, a recycled PT_NOTE comes
    back. A section that a linker placed among others leaves zero bytes behind. Raises `EmbedError` when
    there is none, or when the file is better left alone.
    """
    layout = parse_or_refuse(data)
    return apply(layout.data, removal_splices(layout))


def self_check(original: FileData, rewritten: FileData, plan: EmbeddingPlan, section: Buffer | None = None) -> None:
    """Read the rewritten file back with other code and compare it with the original.

    Raises `EmbedError` when a header does not parse; when another byte is mapped anywhere than before, or with other
    rights, but for what `embedding.memory` can explain; when a section differs in bytes, name or address; or when
    `.sframe` is not where the plan says, read-only, within a PT_LOAD, and (when given) made of `section`.
    """
    place = Expected(plan.section_vaddr, plan.section_size, plan.table_file_offset)
    if plan.strategy == "existing-section":
        check_replaced(original, rewritten, place, section)
        return
    if plan.removes_existing:
        bare = remove_section(original)
        check_removed(original, bare)
        original = bare
    check_rewritten(original, rewritten, place, section)


def check_removal(original: FileData, rewritten: FileData) -> None:
    """Compare a file that `remove_section` has made with the original, the way `self_check` does.

    Raises `EmbedError` unless everything else is as it was.
    """
    check_removed(original, rewritten)
