# SPDX-License-Identifier: Apache-2.0
"""Take the section out of a file: what a job does whose settings say `removes`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cfi2sframe import emit
from cfi2sframe.jobs.writing import Written, write_elf

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.files.write import InputFile
    from cfi2sframe.jobs.records import Job


def remove(job: Job, image: ElfImage, file: InputFile | None) -> Written:
    """Write the file without its section. A file of a folder that has none is left as it is.

    Raises `EmbedError` when a file that was named has no section, or when it cannot be taken out safely; and what
    writing raises.
    """
    if job.settings.is_in_tree and not image.has_sframe:
        return Written("unchanged", reason="no .sframe section")
    section = image.sframe_section
    size = 0 if section is None else section.size
    content = emit.remove(image)
    if job.settings.only_checks:
        return Written("would remove", f".sframe of {size:,} bytes", section_size=size)
    warnings = write_elf(job, content, file, partial(emit.check_removal, image))
    return Written("removed", warnings=warnings, section_size=size)
