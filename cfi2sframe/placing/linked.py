# SPDX-License-Identifier: Apache-2.0
"""The door for linked files: insert a finished `.sframe` section, mapped and with PT_GNU_SFRAME, and check the result.

The section's address depends on its size, and its bytes depend on its address. So the plan is made first:

    plan = plan_embedding(data, section_size)        # plan.section_vaddr is known from here on
    chunks = write_embedding(plan, section)          # buffers, mostly ranges of `data`
    self_check(data, rewritten, plan)                # rereads the result, with independent code

Code and data keep their addresses. The caller sets the file's mode, owner and times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import PF_W, SHT_GNU_SFRAME
from cfi2sframe.elf.contents import spliced
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.gate import LinkedFile, open_linked
from cfi2sframe.placing.insert import inserted
from cfi2sframe.placing.place import Placement, place_section
from cfi2sframe.placing.remove import original_of, zeroing_splices
from cfi2sframe.placing.undo import undo_of
from cfi2sframe.printable import shown_name

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData, Joined
    from cfi2sframe.elf.headers import Buffer
    from cfi2sframe.placing.undo import OldBytes

#: The least bytes of moved sections that are worth a word.
_LARGE_MOVE: Final = 1 << 16


class EmbeddingPlan(NamedTuple):
    """Where the section will be: at `placement` in `file`, which has no SFrame section.

    `is_replacement`: it had one before, of which `old` are the bytes, unless that was inserted by this program.
    """

    file: LinkedFile
    placement: Placement
    is_replacement: bool = False
    old: OldBytes = ()

    @property
    def section_vaddr(self) -> int:
        """The section's link-time address."""
        return self.placement.block.section_vaddr

    @property
    def moved(self) -> list[str]:
        """The names of other sections with a new address."""
        return [self.file.sections[index].name for index in sorted(self.placement.moved)]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the file suffers."""
        return self.placement.warnings

    @property
    def description(self) -> str:
        """How the section is inserted, for messages."""
        block = self.placement.block
        if not block.is_inserted:
            text = "into unused bytes after a read-only segment"
        elif block.load_index is None:
            text = "into a new read-only segment after all others"
        elif self.file.loads[block.load_index].flags & PF_W:
            text = "into the last segment, on the page after .bss"
        else:
            text = "into the last segment"
        if self.placement.table_file_offset is not None:
            text += "; the program headers moved there too"
        if self.moved:
            text += f"; {', '.join(map(shown_name, self.moved))} moved to make room for program headers"
        if self.placement.moved_size >= _LARGE_MOVE:
            text += f", which leaves {self.placement.moved_size:,} bytes unused"
        return text


def plan_embedding(data: FileData, section_size: int) -> EmbeddingPlan:
    """Plan to put a section of `section_size` bytes into the linked file `data`.

    A section that is there is removed first. Raises `EmbedError` with the reason when the file cannot be rewritten
    safely.
    """
    if section_size <= 0:
        raise EmbedError("an empty section is never written")
    file = open_linked(data)
    if not file.has_sframe:
        return EmbeddingPlan(file, place_section(file, section_size))
    if (original := original_of(file)) is not None:
        file = open_linked(original)
    old: OldBytes = ()
    if file.has_sframe:
        splices = zeroing_splices(file)
        # To be written back by whoever takes the new section out.
        old = tuple((s.file_offset, bytes(file.data[s.file_offset : s.file_offset + s.removed_size])) for s in splices)
        file = open_linked(spliced(file.data, splices))
    return EmbeddingPlan(file, place_section(file, section_size), is_replacement=True, old=old)


def write_embedding(plan: EmbeddingPlan, section: Buffer, section_type: int = SHT_GNU_SFRAME) -> Joined:
    """Return the new file: buffers to be written one after the other, most of them parts of the old one.

    `section_type` is SHT_GNU_SFRAME or, for tools before binutils 2.45, SHT_PROGBITS. Raises `EmbedError` when the
    section does not have the planned size, or when section indices or symbols cannot be updated.
    """
    if len(section) != plan.placement.section_size:
        raise EmbedError(f"the section has {len(section)} bytes, the plan has room for {plan.placement.section_size}")
    return inserted(plan.file, plan.placement, section, section_type, plan.old)


def self_check(original: FileData, rewritten: FileData, plan: EmbeddingPlan, section: Buffer | None = None) -> None:
    """Reread the rewritten file with independent code and compare it with the original.

    Raises `EmbedError` when anything differs but the section and what `reread` allows, or when `.sframe` is not at the
    planned address with the bytes `section` (unless that is None); `InputError` when one of the files cannot be read.
    """
    from cfi2sframe.placing.reread import check_inserted

    if plan.is_replacement:
        check_removal(original, plan.file.data)
        original = plan.file.data
    check_inserted(original, rewritten, plan.section_vaddr, section)


def check_removal(original: FileData, rewritten: FileData) -> None:
    """Compare a file that `remove_section` has made with the original, as `self_check` does."""
    from cfi2sframe.placing.reread import check_removed

    file = open_linked(rewritten)
    if file.has_sframe and is_inserted(original) and not is_inserted(rewritten):
        # The section had taken the place of another one, which is back.
        bare = spliced(rewritten, zeroing_splices(file))
        check_removed(rewritten, bare)
        rewritten = bare
    check_removed(original, rewritten)


def is_inserted(data: FileData) -> bool:
    """Whether a file has a section that was inserted, as far as its record tells: strip removes that."""
    file = open_linked(data)
    return bool(file.sections) and undo_of(data, file.section_table.start) is not None
