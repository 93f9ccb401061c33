# SPDX-License-Identifier: Apache-2.0
"""The door for linked files: insert a finished `.sframe` section, mapped and with PT_GNU_SFRAME, or remove it.

The section's address depends on its size, and its bytes depend on its address. So the plan is made first:

    plan = plan_embedding(data, section_size)        # plan.section_vaddr is known from here on
    chunks = write_embedding(data, plan, section)    # buffers, mostly ranges of `data`
    self_check(data, rewritten, plan)                # rereads the result, with independent code

Code and data keep their addresses. The caller sets the file's mode, owner and times. `remove_section` takes it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import PF_W, SHT_GNU_SFRAME
from cfi2sframe.elf.contents import Joined, is_equal
from cfi2sframe.elf.strings import shown_name
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.edits import Splice, apply
from cfi2sframe.placing.gate import open_linked
from cfi2sframe.placing.insert import insertion_splices
from cfi2sframe.placing.place import place_section
from cfi2sframe.placing.remove import removal_splices, restored
from cfi2sframe.placing.undo import undo_of

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import Buffer
    from cfi2sframe.placing.gate import LinkedFile
    from cfi2sframe.placing.place import Placement

#: The least bytes of moved sections that are worth a word.
_LARGE_MOVE: Final = 1 << 16


class EmbeddingPlan(NamedTuple):
    """Where the section will be, and how the file changes.

    `section_vaddr` is its link-time address, `section_file_offset` its file offset in the new file, `section_size`
    counts bytes, `section_type` is its sh_type. `description` tells for messages how it is inserted. `moved` names
    other sections with a new address. `bare` is the file without its old section, to which the splices apply; None
    where it has none.
    """

    section_vaddr: int
    section_file_offset: int
    section_size: int
    section_type: int
    description: str
    moved: tuple[str, ...]
    warnings: tuple[str, ...]
    splices: tuple[Splice, ...]
    bare: Joined | None = None


def plan_embedding(
    data: FileData, section_size: int, *, replace: bool = False, section_type: int = SHT_GNU_SFRAME
) -> EmbeddingPlan:
    """Plan to put a section of `section_size` bytes into the linked file `data`.

    `section_type` is SHT_GNU_SFRAME or, for tools before binutils 2.45, SHT_PROGBITS. With `replace`, a section that
    is there is removed first. Raises `EmbedError` with the reason when the file cannot be rewritten safely.
    """
    if section_size <= 0:
        raise EmbedError("an empty section is never written")
    file = open_linked(data)
    if file.sframe_index() is None and file.sframe_segment() is None:
        return _fresh_plan(file, section_size, section_type)
    if not replace:
        raise EmbedError("the file already has an .sframe section (use --replace)")
    if (original := _original(file)) is not None:
        file = open_linked(original)
    if file.sframe_index() is None and file.sframe_segment() is None:
        return _fresh_plan(file, section_size, section_type)._replace(bare=original)
    splices = removal_splices(file)
    # To be written back by whoever takes the new section out.
    old = tuple((s.file_offset, bytes(file.data[s.file_offset : s.file_offset + s.removed_size])) for s in splices)
    bare = apply(file.data, splices)
    return _fresh_plan(open_linked(bare), section_size, section_type, old)._replace(bare=bare)


def _fresh_plan(
    file: LinkedFile, section_size: int, section_type: int, old: tuple[tuple[int, bytes], ...] = ()
) -> EmbeddingPlan:
    placement = place_section(file, section_size)
    moved = tuple(file.sections[index].name for index in sorted(placement.moved))
    return EmbeddingPlan(
        placement.section_vaddr,
        placement.block.section_file_offset,
        section_size,
        section_type,
        _description(file, placement, moved),
        moved,
        placement.warnings,
        insertion_splices(file, placement, section_type, old),
    )


def _description(file: LinkedFile, placement: Placement, moved: tuple[str, ...]) -> str:
    """Return how the section is inserted, for messages."""
    block = placement.block
    if not block.is_inserted:
        text = "into unused bytes after a read-only segment"
    elif block.load_index is None:
        text = "into a new read-only segment after all others"
    elif file.loads[block.load_index].flags & PF_W:
        text = "into the last segment, on the page after .bss"
    else:
        text = "into the last segment"
    if placement.table_file_offset is not None:
        text += "; the program headers moved there too"
    if moved:
        text += f"; {', '.join(map(shown_name, moved))} moved to make room for program headers"
    if placement.moved_size >= _LARGE_MOVE:
        text += f", which leaves {placement.moved_size:,} bytes unused"
    return text


def write_embedding(data: FileData, plan: EmbeddingPlan, section: Buffer) -> Joined:
    """Return the new file: buffers to be written one after the other, most of them parts of `data`.

    `data` is the file that the plan was made for. Raises `EmbedError` when the section does not have the planned size.
    """
    if len(section) != plan.section_size:
        raise EmbedError(f"the section has {len(section)} bytes, the plan has room for {plan.section_size}")
    return apply(data if plan.bare is None else plan.bare, plan.splices, bytes(section))


def remove_section(data: FileData) -> Joined:
    """Return the file without its `.sframe` section and PT_GNU_SFRAME.

    That is the original, if the section was inserted and nothing else has written the file since, also where it took
    the place of another section. Otherwise the section's bytes become zeros, and all other bytes stay where they are.
    Raises `EmbedError` when there is no section, or when the file cannot be rewritten safely.
    """
    file = open_linked(data)
    original = _original(file)
    return apply(file.data, removal_splices(file)) if original is None else original


def _original(file: LinkedFile) -> Joined | None:
    """Return the original of a file into which a section was inserted, if inserting again gives the file; else None."""
    found, index = restored(file), file.sframe_index()
    if found is None or index is None:
        return None
    section = file.sections[index]
    try:
        plan = _fresh_plan(open_linked(found.bare), section.size, section.type, found.old)
    except EmbedError:
        return None
    again = apply(found.bare, plan.splices, file.section_bytes(index))
    return found.original if is_equal(again, file.data) else None


def self_check(original: FileData, rewritten: FileData, plan: EmbeddingPlan, section: Buffer | None = None) -> None:
    """Reread the rewritten file with independent code and compare it with the original.

    Raises `EmbedError` when anything differs but the section and what `reread` allows, or when `.sframe` is not at the
    planned address with the bytes `section` (unless that is None); `InputError` when one of the files cannot be read.
    """
    from cfi2sframe.placing.reread import check_inserted

    if plan.bare is not None:
        check_removal(original, plan.bare)
        original = plan.bare
    check_inserted(original, rewritten, plan.section_vaddr, section)


def check_removal(original: FileData, rewritten: FileData) -> None:
    """Compare a file that `remove_section` has made with the original, as `self_check` does."""
    from cfi2sframe.placing.reread import check_removed

    file = open_linked(rewritten)
    has_section = file.sframe_index() is not None or file.sframe_segment() is not None
    if has_section and is_inserted(original) and not is_inserted(rewritten):
        # The section had taken the place of another one, which is back.
        bare = apply(rewritten, removal_splices(file))
        check_removed(rewritten, bare)
        rewritten = bare
    check_removed(original, rewritten)


def is_inserted(data: FileData) -> bool:
    """Whether a file has a section that was inserted, as far as its record tells: strip removes that."""
    file = open_linked(data)
    return bool(file.sections) and undo_of(data, file.section_table.start) is not None
