# SPDX-License-Identifier: Apache-2.0
"""The door for linked files: insert a finished `.sframe` section, mapped and with PT_GNU_SFRAME, and check the result.

The section's address depends on its size, and its bytes depend on its address. So the plan is made first:

    plan = plan_embedding(data, section_size)        # plan.section_vaddr is known from here on
    chunks = inserted(plan, section)                 # buffers, mostly ranges of `data`
    self_check(data, rewritten, plan)                # rereads the result, with independent code

Code and data keep their addresses. The caller sets the file's mode, owner and times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.elf.contents import spliced
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.gate import open_linked
from cfi2sframe.placing.place import place_section
from cfi2sframe.placing.remove import original_of, zeroing_splices
from cfi2sframe.placing.undo import undo_of

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import Buffer
    from cfi2sframe.placing.place import Placement
    from cfi2sframe.placing.undo import OldBytes


def plan_embedding(data: FileData, section_size: int) -> Placement:
    """Plan to put a section of `section_size` bytes into the linked file `data`.

    A section that is there is removed first. Raises `EmbedError` with the reason when the file cannot be rewritten
    safely.
    """
    if section_size <= 0:
        raise EmbedError("an empty section is never written")
    file = open_linked(data)
    if not file.has_sframe:
        return place_section(file, section_size)
    if (original := original_of(file)) is not None:
        file = open_linked(original)
    old: OldBytes = ()
    if file.has_sframe:
        splices = zeroing_splices(file)
        # To be written back by whoever takes the new section out.
        old = tuple((s.file_offset, bytes(file.data[s.file_offset : s.file_offset + s.removed_size])) for s in splices)
        file = open_linked(spliced(file.data, splices))
    return place_section(file, section_size)._replace(is_replacement=True, old=old)


def self_check(original: FileData, rewritten: FileData, plan: Placement, section: Buffer | None = None) -> None:
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
