# SPDX-License-Identifier: Apache-2.0
"""Run a job: open a file, have its new bytes made, and write them, in place or to an output.

Only `Job.make` knows the request.
"""

import gc
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from typing import Final, NamedTuple

from cfi2sframe.constants.elf import PT_LOAD
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import stored_size
from cfi2sframe.errors import (
    ChangedError,
    ErrorKind,
    ForeignError,
    NotElfError,
    OutputError,
    PayloadError,
    ReaderError,
    RequestError,
    SectionError,
    UnfitError,
    kind_of,
    reason_of,
)
from cfi2sframe.files.source import Source
from cfi2sframe.files.write import InputFile, foresee_rewrite, open_input, rewrite_file, write_output
from cfi2sframe.jobs.records import Note, Outcome, Product, SkipKind
from cfi2sframe.process.guard import limited

#: How often a job tries a file again that others change in the meantime.
_RETRY_COUNT: Final = 2
#: Sections that only a kernel module has.
_MODULE_SECTIONS: Final = frozenset({".modinfo", ".gnu.linkonce.this_module"})
#: From here on, addresses are the kernel's on all machines that SFrame is defined for.
_KERNEL_VADDR: Final = 1 << 63
#: Errors for which a file that the user has not named is skipped; the first match counts.
_SKIP_KINDS: Final = {
    NotElfError: SkipKind.NOT_ELF,
    ReaderError: SkipKind.READER,
    ForeignError: SkipKind.FOREIGN,
    UnfitError: SkipKind.NO_CFI,
    PayloadError: SkipKind.PAYLOAD,
    SectionError: SkipKind.SECTION,
}


class Job(NamedTuple):
    """A file to read, the function that makes the new bytes, and the place where they are written.

    `make` gets the image, the source, and the function that takes the outcome if it fails. `source` is rewritten in
    place or, with an `output`, read: a path, or `-` for standard output. In place, the first of its targets is read,
    and each is a name of the new file afterwards. A job without a source is for each of many files. `debug_file` is
    where to look for the separate debug file; None: none is read. `takes_objects`: relocatable objects in directories
    are not skipped. `keeps_rights`: refuse a file whose owner, set-ID bits or attributes cannot be kept.
    """

    make: Callable[[ElfImage, Source, Note], Product]
    source: Source = Source("", "")
    output: str | None = None
    debug_file: str | None = None
    takes_objects: bool = False
    keeps_rights: bool = False


def run_job(job: Job) -> Outcome:
    """Do a job; a failure is an outcome, too.

    Raises interrupts, and `BrokenPipeError` when the reader of the output has closed it.
    """
    noted: list[Outcome] = []
    try:
        return run_attempts(job, noted.append, limited)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
        # Free the memory for the next file.
        gc.collect()
        return _failed(job, error, noted[-1])


def run_attempts(job: Job, note: Note, limits: Callable[[int], AbstractContextManager[object]]) -> Outcome:
    """Do a job within `limits`, again if another run has changed the file meanwhile. Raises what ends it."""
    for _ in range(_RETRY_COUNT if job.output is None else 0):
        with suppress(ChangedError):
            return _attempt(job, note, limits)
    return _attempt(job, note, limits)


def _attempt(job: Job, note: Note, limits: Callable[[int], AbstractContextManager[object]]) -> Outcome:
    """Open the file of a job, make its new content, and write it."""
    # An earlier attempt has noted an outcome for other bytes.
    note(Outcome())
    job.source.raise_fault()
    _check_output(job)
    path = job.source.targets[0] if job.output is None else job.source.path
    with (
        open_input(path, in_place=job.output is None) as (data, file),
        limits(stored_size(data)),
        closing(ElfImage(data, job.source.name)) as image,
    ):
        skip = _skip_of(job, image)
        if skip is not None:
            return _named(skip, job.source)
        with _with_debug_file(image, job.debug_file) as joined:
            product = job.make(joined, job.source, note)
            warnings = _write(job, image, file, product)
            return _named(product.outcome._replace(warnings=(*product.outcome.warnings, *warnings)), job.source)


def _check_output(job: Job) -> None:
    """Raise `RequestError` where the output is a file that the job reads, also by way of symbolic links.

    A hard link is another file.
    """
    # "-" is standard output.
    if job.output in (None, "-") or not os.path.isfile(job.output):
        return
    output = os.path.realpath(job.output)
    if output in job.source.targets:
        raise RequestError("the output is the input file; --in-place (in_place=True) rewrites that")
    if job.debug_file is not None and output == os.path.realpath(job.debug_file):
        raise RequestError("the output is the debug file")


def _skip_of(job: Job, image: ElfImage) -> Outcome | None:
    """Return why a file of a directory is skipped: linkers or kernels read it, or its code is in another file.

    Linkers read the sections of relocatable objects, and those before binutils 2.46 fail on version 3: a job takes
    objects and kernel modules only for some readers.
    """
    if not job.source.is_found:
        return None
    kind, reason = None, ""
    if image.is_relocatable:
        if not job.takes_objects:
            is_module = any(section.name in _MODULE_SECTIONS for section in image.sections)
            kind = SkipKind.MODULE if is_module else SkipKind.OBJECT
            reason = f"a {kind.value}; --for ld or kernel-arm64 takes those in directories, too"
    elif image.is_debug_file:
        kind, reason = SkipKind.DEBUG_FILE, "a separate debug file: its code is in another file"
    elif any(segment.type == PT_LOAD and segment.vaddr >= _KERNEL_VADDR for segment in image.segments):
        kind, reason = SkipKind.KERNEL, "a kernel image"
    return None if kind is None else Outcome(status="skipped", reason=reason, skip_kind=kind)


def _with_debug_file(image: ElfImage, where: str | None) -> AbstractContextManager[ElfImage]:
    if where is None:
        return nullcontext(image)
    from cfi2sframe.elf.debug_file import with_debug_file

    return with_debug_file(image, where)


# The end


def _write(job: Job, image: ElfImage, file: InputFile | None, product: Product) -> tuple[str, ...]:
    """Write a product to the output, or in place under all given names; return warnings."""
    _, content, check_file, is_copy = product
    kept, targets = job.keeps_rights, job.source.targets
    check = None if check_file is None else lambda data: check_file(ElfImage(data, job.source.name))
    if job.output is not None:
        if content is None and _is_at(job.output, file):
            return ()
        content = image.data if content is None else content
        return write_output(job.output, content, source=file, is_copy=is_copy, keeps_rights=kept, check=check)
    if product.outcome.status in ("would convert", "would remove"):
        warnings = foresee_rewrite(targets, file, keeps_rights=kept)
    elif content is None:
        return ()
    else:
        warnings = rewrite_file(targets, content, file, keeps_rights=kept, check=check)
    count = 0 if file is None else file.status.st_nlink - len(targets)
    if count > 0:
        names = "1 other hard link keeps" if count == 1 else f"{count:,} other hard links keep"
        warnings = (*warnings, f"{names} the old file")
    return warnings


def _is_at(output: str, file: InputFile | None) -> bool:
    """Return whether the output is the file that was read, under another name."""
    try:
        return file is not None and os.path.samestat(os.stat(output), file.status)
    except OSError:
        return False


def _failed(job: Job, error: Exception, noted: Outcome) -> Outcome:
    """Return the outcome of a job that raised an error: the file has failed, or it was not named and is skipped."""
    kind, reason = kind_of(error), reason_of(error)
    skip_kind = next((skip_kind for unfit, skip_kind in _SKIP_KINDS.items() if isinstance(error, unfit)), None)
    if skip_kind is not None and (job.source.is_found if skip_kind is SkipKind.SECTION else job.source.may_be_unfit):
        return _named(noted._replace(status="skipped", reason=reason, skip_kind=skip_kind), job.source)
    if kind is ErrorKind.CHANGED:
        # The counts belong to a file that is gone.
        noted = Outcome()
    if isinstance(error, IsADirectoryError):
        reason += " (--in-place and --check process the ELF files in it)"
    if isinstance(error, OutputError):
        return noted._replace(name=error.where, kind=kind, reason=error.reason)
    return _named(noted._replace(kind=kind, reason=reason), job.source)


def _named(outcome: Outcome, source: Source) -> Outcome:
    return outcome._replace(name=source.name, other_names=source.other_names)
