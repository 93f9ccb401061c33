# SPDX-License-Identifier: Apache-2.0
"""Write what a job makes of a file, under all of the names that were given for it, or leave the file as it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.contents import is_equal
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import image_of
from cfi2sframe.files.write import write_file, write_output

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.emit import Emitted
    from cfi2sframe.files.write import InputFile
    from cfi2sframe.jobs.records import Job, Status

_NAMES = (".sframe", ".rela.sframe")


class Written(NamedTuple):
    """What became of a file; the fields are those of `Outcome`."""

    status: Status
    placement: str = ""
    warnings: tuple[str, ...] = ()
    section_size: int = 0
    reason: str = ""


def leave(job: Job, image: ElfImage, file: InputFile | None) -> Written:
    """Leave the input as it is; an output becomes a copy of it. Raises what `files.write.write_output` raises."""
    if job.output is None:
        return Written("unchanged")
    if file is not None and _names(job.output.path, file):
        return Written("unchanged")
    keeps_rights = job.settings.keeps_rights
    warnings = write_output(job.output.path, image.data, source=file, is_copy=True, keeps_rights=keeps_rights)
    return Written("unchanged", warnings=warnings)


def _names(path: str, file: InputFile) -> bool:
    """Whether a path leads to a file."""
    try:
        return os.path.samestat(os.stat(path), file.status)
    except OSError:
        return False


def write_elf(
    job: Job, content: FileData, file: InputFile | None, check: Callable[[ElfImage], None]
) -> tuple[str, ...]:
    """Write a rewritten file, in place under all of its given names; return warnings.

    `check` gets the written file and may raise; it is not called where the settings forbid that.
    """

    def check_content(data: FileData) -> None:
        check(image_of(data, job.name))

    wanted = check_content if job.settings.verifies else None
    keeps_rights = job.settings.keeps_rights
    if job.output:
        path = job.output.path
        return write_output(path, content, source=file, is_copy=True, keeps_rights=keeps_rights, check=wanted)
    warnings = write_file(job.targets, content, source=file, in_place=True, keeps_rights=keeps_rights, check=wanted)
    link_count = 0 if file is None else file.status.st_nlink - len(job.targets)
    return (*warnings, *_hard_links_left(link_count))


def _hard_links_left(count: int) -> tuple[str, ...]:
    if count <= 0:
        return ()
    if count == 1:
        return ("1 hard link to it that was not named keeps the old file",)
    return (f"{count} hard links to it that were not named keep the old file",)


def is_same(image: ElfImage, emitted: Emitted) -> bool:
    """Whether a file holds the section already that it was rewritten with.

    A linked file must be the same to the byte. The new sections of a rewritten object follow the old end of the file,
    so its section headers may differ in their file offsets; `.sframe` and `.rela.sframe` must have the same bytes.
    """
    if emitted.plan is not None:
        return is_equal(image.data, emitted.chunks)
    rewritten = ElfImage(emitted.chunks, image.name)
    return len(image.sections) == len(rewritten.sections) and all(
        old._replace(file_offset=0) == new._replace(file_offset=0)
        and (old.name not in _NAMES or image.section_bytes(old) == rewritten.section_bytes(new))
        for old, new in zip(image.sections, rewritten.sections, strict=True)
    )
