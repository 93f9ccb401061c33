# SPDX-License-Identifier: Apache-2.0
"""The door for linked files: insert a finished `.sframe` section, mapped and with PT_GNU_SFRAME, and check the result.

The section's address depends on its size, and its bytes depend on its address. So the plan is made first:

    plan = plan_insertion(data, section_size)        # plan.section_vaddr is known from here on
    chunks = inserted(plan, section)                 # buffers, mostly ranges of `data`
    self_check(rewritten, plan)                      # rereads the result, with independent code

Code and data keep their addresses. The caller sets the file's mode, owner and times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.elf.contents import is_equal, spliced
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.gate import open_linked
from cfi2sframe.placing.place import place_section
from cfi2sframe.placing.record import original_of
from cfi2sframe.placing.removal import proven_original, zeroing_splices
from cfi2sframe.range_map import Span

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import Buffer
    from cfi2sframe.placing.place import Placement


def plan_insertion(data: FileData, section_size: int) -> Placement:
    """Plan to put a section of `section_size` bytes into the linked file `data`.

    A section that is there is removed first. Raises `EmbedError` with the reason when the file cannot be rewritten
    safely.
    """
    if section_size <= 0:
        raise EmbedError("an empty section is never written")
    known = proven_original(data)
    # A record that does not fit goes.
    file = open_linked(data if known is None else known.content)
    original = file.data
    if not file.has_sframe:
        return place_section(file, section_size)._replace(original=original)
    splices = zeroing_splices(file)
    cleared = tuple(Span(splice.file_offset, splice.file_offset + splice.removed_size) for splice in splices)
    bare = open_linked(spliced(file.data, splices))
    return place_section(bare, section_size)._replace(original=original, cleared=cleared)


def self_check(rewritten: FileData, plan: Placement, section: Buffer | None = None) -> None:
    """Reread the rewritten file with independent code and compare it with the original.

    Raises `EmbedError` when anything differs but the section and what `reread` allows, when `.sframe` is not at the
    planned address with the bytes `section` (unless that is None), or when the record does not restore the file;
    `InputError` when one of the files cannot be read.
    """
    from cfi2sframe.placing.reread import check_inserted, check_removed

    if plan.cleared:
        check_removed(plan.original, plan.file.data)
    check_inserted(plan.file.data, rewritten, plan.section_vaddr, section)
    # What is written has to pass the gate again, at the next conversion.
    open_linked(rewritten)
    restored = original_of(rewritten)
    if restored is None or not is_equal(restored.content, plan.original):
        raise EmbedError("the rewritten file fails its re-read: its record does not restore the original")
