# SPDX-License-Identifier: Apache-2.0
"""What a job leaves: a copy of its input, a rewritten file, or a failure as an outcome."""

import errno
import os
from collections.abc import Callable

from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ErrorKind, ForeignError, OutputError, PayloadError, ReaderError, kind_of, reason_of
from cfi2sframe.files.write import InputFile, rewrite_file, write_output
from cfi2sframe.jobs.records import Job, Outcome, SkipKind


def failed_outcome(job: Job, error: Exception, known: Outcome) -> Outcome:
    """Return the outcome of a job that raised something: the file has failed, or is skipped as unfit."""
    if job.raises:
        raise error
    kind, reason = kind_of(error), reason_of(error)
    if job.source.may_be_unfit and kind in (ErrorKind.UNFIT, ErrorKind.NOT_ELF):
        skip_kind = SkipKind.NOT_ELF if kind is ErrorKind.NOT_ELF else SkipKind.NO_CFI
        if isinstance(error, ReaderError | ForeignError):
            skip_kind = SkipKind.READER if isinstance(error, ReaderError) else SkipKind.FOREIGN
        return job.outcome("skipped", reason, skip_kind=skip_kind)
    if job.source.may_be_unfit and isinstance(error, PayloadError):
        return known._replace(status="skipped", reason=reason, skip_kind=SkipKind.PAYLOAD)
    if isinstance(error, IsADirectoryError):
        reason += " (--in-place and --check process the ELF files in it)"
    if isinstance(error, OutputError):
        return known._replace(name=error.where, other_names=(), kind=kind, reason=error.reason)
    return known._replace(kind=kind, reason=reason)


def copy_input(job: Job, image: ElfImage, file: InputFile | None) -> tuple[str, ...]:
    """Copy the input to the output, unless they are one file; return warnings."""
    if job.output is None:
        return ()
    try:
        if file is not None and os.path.samestat(os.stat(job.output), file.status):
            return ()
    except OSError:
        pass
    return write_output(job.output, image.data, source=file, is_copy=True, keeps_rights=job.keeps_rights)


def check_writable(job: Job) -> None:
    """Raise `OSError` unless each directory of a file that would be rewritten takes a new one, which replaces it."""
    for folder in map(os.path.dirname, job.source.targets):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"cannot create a file in {folder}: {os.strerror(errno.EACCES)}")


def write_elf(
    job: Job, content: FileData, file: InputFile | None, check: Callable[[ElfImage], None]
) -> tuple[str, ...]:
    """Write a rewritten file to the output, or in place under all names that were given; return warnings.

    `check` gets the file as written, before it is renamed, and may raise.
    """
    wanted = (lambda data: check(ElfImage(data, job.source.name))) if job.verifies else None
    kept, targets = job.keeps_rights, job.source.targets
    if job.output is not None:
        return write_output(job.output, content, source=file, is_copy=True, keeps_rights=kept, check=wanted)
    warnings = rewrite_file(targets, content, file, keeps_rights=kept, check=wanted)
    count = 0 if file is None else file.status.st_nlink - len(targets)
    if count == 1:
        return (*warnings, "1 other hard link keeps the old file")
    return (*warnings, f"{count:,} other hard links keep the old file") if count > 1 else warnings
