# SPDX-License-Identifier: Apache-2.0
"""Run a job: open the file, make its new bytes unless a stamp shows that it is up to date, and write them.

Conversion and removal differ only in how the bytes are made.
"""

import errno
import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Final

from cfi2sframe.constants.elf import PT_LOAD
from cfi2sframe.constants.sframe import SFRAME_VERSION_3
from cfi2sframe.conversion.options import Level, Options, check_options
from cfi2sframe.elf.cfi import CfiKind
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
    checked_path,
    kind_of,
    reason_of,
    with_file_name,
)
from cfi2sframe.files.source import STANDARD_INPUT, named_source
from cfi2sframe.files.write import InputFile, open_input, rewrite_file, write_output
from cfi2sframe.jobs.records import Job, Outcome, Product, SkipKind
from cfi2sframe.jobs.stamps import up_to_date
from cfi2sframe.process.guard import limited

#: How often to try a file that others change in the meantime.
_ATTEMPT_COUNT: Final = 3
#: Sections that only a kernel module has.
_MODULE_SECTIONS: Final = frozenset({".modinfo", ".gnu.linkonce.this_module"})
#: From here on, addresses are the kernel's on all machines that SFrame is defined for.
_KERNEL_VADDR: Final = 1 << 63
#: Errors for which a file that nobody named is skipped; the first match counts.
_SKIP_KINDS: Final = {
    NotElfError: SkipKind.NOT_ELF,
    ReaderError: SkipKind.READER,
    ForeignError: SkipKind.FOREIGN,
    UnfitError: SkipKind.NO_CFI,
    PayloadError: SkipKind.PAYLOAD,
    SectionError: SkipKind.SECTION,
}


def run_job(job: Job, *, raises: bool = False) -> Outcome:
    """Convert one file, or take its section out.

    A failure is an outcome; with `raises` it is raised, and no limits are set, which belong to the caller. Interrupts
    are raised, and `BrokenPipeError` when the reader of the output has closed it.
    """
    attempts_left = _ATTEMPT_COUNT if job.output is None else 1
    while True:
        attempts_left -= 1
        notes = [job.outcome("failed")]
        try:
            with _opened(job, is_limited=not raises) as (image, file):
                product = _product_without_cfi(job, image)
                if product is None:
                    from cfi2sframe.jobs.conversion import convert_job

                    product = convert_job(job, image, notes.append)
                return _written(job, image, file, product)
        except Exception as error:
            # Another run may be converting the same file.
            if attempts_left and isinstance(error, ChangedError):
                continue
            if raises or isinstance(error, BrokenPipeError):
                raise
            # Free the memory for the next file.
            gc.collect()
            return _failed(job, error, notes[-1])


@contextmanager
def _opened(job: Job, *, is_limited: bool) -> Iterator[tuple[ElfImage, InputFile | None]]:
    """Give the image of a job's file, with its debug file if one is to be read, and the file if it is a regular one.

    Raises what `_check_output`, `open_input` and `find_debug_file` raise.
    """
    job.source.raise_fault()
    _check_output(job)
    limits = limited if is_limited else nullcontext
    path = job.source.targets[0] if job.output is None else job.source.path
    with (
        open_input(path, in_place=job.output is None) as (data, file),
        limits(stored_size(data)),
        closing(ElfImage(data, job.source.name)) as image,
    ):
        if job.debug_file is None or skip_of(job, image) is not None:
            yield image, file
            return
        from cfi2sframe.elf.debug_file import with_debug_file

        with with_debug_file(image, job.debug_file) as both:
            yield both, file


def _check_output(job: Job) -> None:
    """Raise `RequestError` where the output is a file that the job reads, also through symbolic links.

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


def _product_without_cfi(job: Job, image: ElfImage) -> Product | None:
    """Return the product for which no CFI is read: a file that is skipped or up to date, or a removal; else None."""
    skip = skip_of(job, image)
    if skip is not None:
        return Product(job.outcome("skipped", skip[1], skip_kind=skip[0]))
    if job.removes:
        return _removal(job, image)
    unchanged = up_to_date(job, image)
    return None if unchanged is None else Product(unchanged)


def skip_of(job: Job, image: ElfImage) -> tuple[SkipKind, str] | None:
    """Return why a file of a directory is skipped: linkers or kernels read it, or its code is in another file.

    Linkers read the sections of relocatable objects, and those before binutils 2.46 fail on version 3: a job takes
    objects and kernel modules only for some readers.
    """
    if not job.source.is_found:
        return None
    if image.is_relocatable:
        is_module = any(section.name in _MODULE_SECTIONS for section in image.sections)
        kind = SkipKind.MODULE if is_module else SkipKind.OBJECT
        what = f"a {kind.value}; --for ld or kernel-arm64 takes those in directories, too"
        return None if job.takes_objects else (kind, what)
    if image.is_debug_file:
        return SkipKind.DEBUG_FILE, "a separate debug file: its code is in another file"
    if any(segment.type == PT_LOAD and segment.vaddr >= _KERNEL_VADDR for segment in image.segments):
        return SkipKind.KERNEL, "a kernel image"
    return None


def _removal(job: Job, image: ElfImage) -> Product:
    """Return the file without its section, or as it is if it has none."""
    from cfi2sframe import emit
    from cfi2sframe.existing import Presence, existing_section

    if not image.has_sframe:
        return Product(job.outcome("unchanged", Presence.ABSENT.value))
    section, segment = image.sframe_section, image.sframe_segment
    size = section.size if section is not None else segment.file_size if segment is not None else 0
    removal = emit.remove(image)
    bare = ElfImage(removal.content, job.source.name)
    lost = (removal.lost,) if removal.lost else ()
    if existing_section(bare).presence not in (Presence.ABSENT, Presence.EMPTY):
        lost = (*lost, "the .sframe section that the conversion had replaced is restored")
    if job.only_checks:
        # Refuse now what the check of the written file would refuse.
        emit.check_removal(image, bare)
    outcome = job.outcome("would remove" if job.only_checks else "removed")
    outcome = outcome._replace(section_size=size, placement=f".sframe of {size:,} bytes", warnings=lost)
    return Product(outcome, removal.content, partial(emit.check_removal, image))


# The end


def _written(job: Job, image: ElfImage, file: InputFile | None, product: Product) -> Outcome:
    """Write a product to the output, or in place under all given names; return its outcome with further warnings."""
    outcome, content, check_file = product
    warnings: tuple[str, ...] = ()
    kept, targets = job.keeps_rights, job.source.targets
    check = None if check_file is None or not job.verifies else lambda data: check_file(ElfImage(data, job.source.name))
    if content is None:
        if job.output is not None and not _is_at(job.output, file):
            warnings = write_output(job.output, image.data, source=file, is_copy=True, keeps_rights=kept)
    elif job.output is not None:
        is_copy = not job.is_raw
        warnings = write_output(job.output, content, source=file, is_copy=is_copy, keeps_rights=kept, check=check)
    elif job.only_checks:
        _check_writable(targets)
    else:
        warnings = rewrite_file(targets, content, file, keeps_rights=kept, check=check)
        count = 0 if file is None else file.status.st_nlink - len(targets)
        if count > 0:
            names = "1 other hard link keeps" if count == 1 else f"{count:,} other hard links keep"
            warnings = (*warnings, f"{names} the old file")
    return outcome._replace(warnings=(*outcome.warnings, *warnings))


def _is_at(output: str, file: InputFile | None) -> bool:
    """Return whether the output is the file that was read, under another name."""
    try:
        return file is not None and os.path.samestat(os.stat(output), file.status)
    except OSError:
        return False


def _check_writable(targets: Iterable[str]) -> None:
    """Raise `OSError` unless each directory of a file that would be rewritten takes a new one, which replaces it."""
    for folder in map(os.path.dirname, targets):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"cannot create a file in {folder}: {os.strerror(errno.EACCES)}")


def _failed(job: Job, error: Exception, known: Outcome) -> Outcome:
    """Return the outcome of a job that raised an error: the file has failed, or nobody named it and it is skipped."""
    kind, reason = kind_of(error), reason_of(error)
    skip_kind = next((skip_kind for unfit, skip_kind in _SKIP_KINDS.items() if isinstance(error, unfit)), None)
    if skip_kind is not None and (job.source.is_found if skip_kind is SkipKind.SECTION else job.source.may_be_unfit):
        return known._replace(status="skipped", reason=reason, skip_kind=skip_kind)
    if kind is ErrorKind.CHANGED:
        # The counts belong to a file that is gone.
        known = job.outcome("failed")
    if isinstance(error, IsADirectoryError):
        reason += " (--in-place and --check process the ELF files in it)"
    if isinstance(error, OutputError):
        return known._replace(name=error.where, other_names=(), kind=kind, reason=error.reason)
    return known._replace(kind=kind, reason=reason)


# One file, for the library


def convert_file(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    version: int = SFRAME_VERSION_3,
    *,
    errata: int | None = None,
    source: CfiKind | None = None,
    level: Level | None = None,
    in_place: bool = False,
    replace: bool = False,
    debug_file: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Write a copy of a file with a section made from its CFI or, with `in_place`, rewrite the file itself.

    The new file is written beside its destination, read back, verified and renamed. A file that already has this
    section does not change (status "unchanged"); one with rows that the new one lacks is replaced only with `replace`.
    `debug_file` is where to look for the separate debug file (see `find_debug_file`). The other parameters are those of
    `convert`. Arguments and outcome can be pickled, for an executor that converts many files.

    Raises what `load` and `convert` raise; `EmbedError` when the file cannot be rewritten without risk;
    `VerificationError` when the result is wrong; `OutputError` when it cannot be written; `RequestError` unless one of
    `output` and `in_place` is given, and when the output is the file itself. Nothing is written then.
    """
    name = _named(path)
    options = Options(version, errata, source, level=level)
    check_options(options)
    if in_place == (output is not None):
        raise RequestError("convert_file takes either an output or in_place=True")
    job = Job(
        options,
        source=named_source(name),
        output=None if output is None else _named(output),
        debug_file=None if debug_file is None else checked_path(debug_file),
        replaces=replace,
    )
    with with_file_name(name):
        return run_job(job, raises=True)


def _named(path: str | os.PathLike[str]) -> str:
    """Return a path as jobs have it, where `-` is no file."""
    text = checked_path(path)
    return os.path.join(os.curdir, text) if text == STANDARD_INPUT else text
