# SPDX-License-Identifier: Apache-2.0
"""The door for linked files: insert a finished `.sframe` section, mapped and with PT_GNU_SFRAME, or remove it.

The section's address depends on its size, and its bytes depend on its address. So the plan is made first:

    plan = plan_embedding(data, section_size)        # plan.section_vaddr is known from here on
    chunks = write_embedding(data, plan, section)    # buffers, mostly ranges of `data`
    self_check(data, rewritten, plan)                # rereads the result, with independent code

Code and data keep their addresses. The caller sets the file's mode, owner and times. `remove_section` is the reverse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from cfi2sframe.elf.constants import PT_GNU_SFRAME, SHT_GNU_SFRAME
from cfi2sframe.elf.headers import SECTION_HEADER_SIZE
from cfi2sframe.elf.strings import shown_name
from cfi2sframe.errors import EmbedError
from cfi2sframe.rewrite.choose import Draft, HeaderSource, draft_in_place, last_draft
from cfi2sframe.rewrite.edits import Splice, apply, ordered, overwrite
from cfi2sframe.rewrite.front_page import (
    FrontPage,
    front_page,
    may_have_front_page,
    with_front_page,
    without_front_page,
)
from cfi2sframe.rewrite.gate import open_linked
from cfi2sframe.rewrite.insert import insertion_splices
from cfi2sframe.rewrite.remove import removal_splices
from cfi2sframe.rewrite.reread.check import Expected, check_removed, check_replaced, check_rewritten
from cfi2sframe.rewrite.reread.front import check_front_page
from cfi2sframe.rewrite.table_rights import without_execution

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData, Joined
    from cfi2sframe.elf.headers import Buffer
    from cfi2sframe.rewrite.gate import LinkedFile

Strategy = Literal["existing-section", "slack", "new-segment"]

_STRATEGY_TEXT: dict[Strategy, str] = {
    "existing-section": "over the existing section",
    "slack": "into unused bytes after a read-only segment",
    "new-segment": "into a new read-only segment after all others",
}
_HEADERS_TEXT: dict[HeaderSource, str] = {
    "existing-entries": "the program headers stay",
    "free-entries": "the program header table had room",
    "repeated-note": "its program header replaces the PT_NOTE that repeats PT_GNU_PROPERTY",
    "table-entry": "its program header replaces PT_PHDR, which a static executable does not need",
    "moved-sections": "small sections moved to make room for program headers",
    "front-page": "the program headers and the build-id moved to a new page in front of the first segment",
    "table-at-end": "the program headers moved there too",
}


class MovedSection(NamedTuple):
    """A section whose address changed to make room for program headers."""

    name: str
    old_vaddr: int
    new_vaddr: int


class EmbeddingPlan(NamedTuple):
    """Where the section will be, and how the file changes.

    `section_vaddr` is its link-time address, `section_file_offset` its file offset in the new file, `section_size`
    counts bytes, `section_type` is its sh_type. `strategy` tells where the bytes go, `headers` where the program
    headers come from; `table_file_offset` is the new file offset of these, None when they stay. `moved` are other
    sections with a new address. With `removes_existing`, the splices apply to the file without its old section, with
    `has_front_page` to that with a page in front of its first segment.
    """

    section_vaddr: int
    section_file_offset: int
    section_size: int
    section_type: int
    strategy: Strategy
    headers: tuple[HeaderSource, ...]
    moved: tuple[MovedSection, ...]
    warnings: tuple[str, ...]
    removes_existing: bool
    splices: tuple[Splice, ...]
    table_file_offset: int | None = None
    has_front_page: bool = False

    @property
    def description(self) -> str:
        """How the section is inserted, for messages."""
        text = "; ".join([_STRATEGY_TEXT[self.strategy], *(_HEADERS_TEXT[source] for source in self.headers)])
        if self.moved:
            text += f" ({', '.join(shown_name(section.name) for section in self.moved)})"
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

    `section_type` is SHT_GNU_SFRAME or, for tools before binutils 2.45, SHT_PROGBITS. With `replace`, an existing
    section is overwritten when it is large enough, and removed first when it is not. With `may_move_table`, the program
    headers may move to the end of the loaded part when nothing else is possible; some versions of GNU strip and objcopy
    damage such files. Raises `EmbedError` with the reason when the file cannot be rewritten safely.
    """
    if section_size <= 0:
        raise EmbedError("an empty section is never written")
    file = open_linked(data)
    exists = file.sframe_index() is not None or file.sframe_segment() is not None
    if not exists:
        return _fresh_plan(file, section_size, section_type, may_move_table=may_move_table)
    if not replace:
        raise EmbedError("the file already has an .sframe section (use --replace)")
    if plan := _plan_in_place(file, section_size, section_type):
        return plan
    bare = open_linked(remove_section(data))
    plan = _fresh_plan(bare, section_size, section_type, may_move_table=may_move_table)
    return plan._replace(removes_existing=True)


def _fresh_plan(file: LinkedFile, section_size: int, section_type: int, *, may_move_table: bool) -> EmbeddingPlan:
    """Return the plan for a file without a section: in place, with a page in front, or with the table at the end."""
    if draft := draft_in_place(file, section_size):
        return _plan_of(file, draft, section_type)
    if page := front_page(file):
        grown = open_linked(with_front_page(file, page))
        if draft := draft_in_place(grown, section_size):
            return _with_page(file, page, _plan_of(grown, draft, section_type))
    return _plan_of(file, last_draft(file, section_size, may_move_table=may_move_table), section_type)


def _with_page(file: LinkedFile, page: FrontPage, plan: EmbeddingPlan) -> EmbeddingPlan:
    moved = tuple(
        MovedSection(file.names[index], file.sections[index].vaddr, place.vaddr)
        for index, place in sorted(page.moved.items())
    )
    return plan._replace(
        headers=("front-page",), moved=(*moved, *plan.moved), warnings=page.warnings, has_front_page=True
    )


def _plan_of(file: LinkedFile, draft: Draft, section_type: int) -> EmbeddingPlan:
    block = draft.block
    moved = tuple(
        MovedSection(file.names[index], file.sections[index].vaddr, place.vaddr)
        for index, place in sorted(draft.moved.items())
    )
    return EmbeddingPlan(
        section_vaddr=block.section_vaddr,
        section_file_offset=block.section_file_offset,
        section_size=block.section_size,
        section_type=section_type,
        strategy="new-segment" if block.load_index is None else "slack",
        headers=draft.sources,
        moved=moved,
        warnings=draft.warnings,
        removes_existing=False,
        splices=insertion_splices(file, draft, section_type),
        table_file_offset=draft.table_file_offset,
    )


def _plan_in_place(file: LinkedFile, section_size: int, section_type: int) -> EmbeddingPlan | None:
    """Return the plan to overwrite a mapped section that is large enough, or None."""
    index, segment = file.sframe_index(), file.sframe_segment()
    if index is None or segment is None:
        return None
    section = file.sections[index]
    loaded = any(load.holds(section.vaddr, section.file_offset, section.size) for load in file.loads)
    if not loaded or segment.vaddr != section.vaddr or section.size < section_size or section.vaddr % 8:
        return None
    segments = [
        s._replace(file_size=section_size, memory_size=section_size)
        if s.type == PT_GNU_SFRAME
        else without_execution(s)
        for s in file.segments
    ]
    table = b"".join(s.pack(file.order) for s in segments)
    header = section._replace(size=section_size, type=section_type)
    header_offset = file.header.section_headers_offset + SECTION_HEADER_SIZE * index
    rest = section.size - section_size
    splices = [
        overwrite(file.header.program_headers_offset, table),
        Splice(section.file_offset, section_size, None, section_size),
        overwrite(header_offset, header.pack(file.order)),
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
    """Return the new file: buffers to be written one after the other, most of them parts of `data`.

    `data` is the file that the plan was made for. Raises `EmbedError` when the section does not have the planned size.
    """
    if len(section) != plan.section_size:
        raise EmbedError(f"the section has {len(section)} bytes, the plan has room for {plan.section_size}")
    base = remove_section(data) if plan.removes_existing else data
    return apply(_grown(base) if plan.has_front_page else base, plan.splices, bytes(section))


def _grown(data: FileData) -> FileData:
    """Return a file with the page in front that its plan needs. Raises `EmbedError` when it has become another file."""
    file = open_linked(data)
    page = front_page(file)
    if page is None:
        raise EmbedError("the file has changed: there is no room in front of its first segment")
    return with_front_page(file, page)


def remove_section(data: FileData) -> Joined:
    """Return the file without its `.sframe` section and PT_GNU_SFRAME.

    This reverses `write_embedding`: the section's segment is removed, sections that moved return, and a PT_NOTE whose
    program header was reused is restored. A section that a linker placed among others is overwritten with zeros. Raises
    `EmbedError` when there is no section, or when the file cannot be rewritten safely.
    """
    return without_front_page(_bare(data))


def _bare(data: FileData) -> Joined:
    """Return the file without its section, with the page in front if it has one."""
    file = open_linked(data)
    return apply(file.data, removal_splices(file))


def self_check(original: FileData, rewritten: FileData, plan: EmbeddingPlan, section: Buffer | None = None) -> None:
    """Reread the rewritten file with independent code and compare it with the original.

    Raises `EmbedError` when a header does not parse; when mapped bytes or access rights differ in ways that
    `reread.mapped` does not allow; when a section differs in bytes, name or address; or when `.sframe` is not at the
    planned address, in a read-only PT_LOAD, with the bytes `section` (unless that is None). Raises `InputError` when
    one of the files cannot be read.
    """
    place = Expected(plan.section_vaddr, plan.section_size, plan.table_file_offset)
    if plan.strategy == "existing-section":
        check_replaced(original, rewritten, place, section)
        return
    if plan.removes_existing:
        bare = remove_section(original)
        check_removal(original, bare)
        original = bare
    if plan.has_front_page:
        grown = _grown(original)
        check_front_page(original, grown)
        original = grown
    check_rewritten(original, rewritten, place, section)


def check_removal(original: FileData, rewritten: FileData) -> None:
    """Compare a file that `remove_section` has made with the original, as `self_check` does.

    Raises `EmbedError` when anything but the section changed, `InputError` when one of the files cannot be read.
    """
    if may_have_front_page(original):
        bare = _bare(original)
        if len(bare) != len(rewritten):
            check_front_page(rewritten, bare)
            rewritten = bare
    check_removed(original, rewritten)
