# SPDX-License-Identifier: Apache-2.0
"""Run a job: load the file, convert it, compare the result with the section that the file has, and write it.

A file that would not change stays as it is, or with an output is copied. Removing a section is the same flow with other
bytes to write.
"""

import gc
import os
from collections.abc import Callable
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from cfi2sframe import emit
from cfi2sframe.constants.elf import PT_LOAD
from cfi2sframe.conversion.convert import Conversion, convert_image
from cfi2sframe.conversion.reasons import SkipReason
from cfi2sframe.conversion.sources import find_cfi
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import stored_size
from cfi2sframe.errors import (
    Cfi2SFrameError,
    CfiError,
    ChangedError,
    EmbedError,
    ErrorKind,
    ForeignError,
    IncompleteError,
    InputError,
    OutputError,
    PayloadError,
    ReaderError,
    kind_of,
    reason_of,
)
from cfi2sframe.existing import Existing, Presence, existing_section
from cfi2sframe.files.write import InputFile, open_input, write_file, write_output
from cfi2sframe.jobs.existing import Action, Decision, decide, decide_early, options_for
from cfi2sframe.jobs.records import Job, Outcome, SkipKind
from cfi2sframe.process.guard import limited, unlimited
from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.text import counted

if TYPE_CHECKING:
    from cfi2sframe.report.coverage import Coverage

#: How often to try a file that others change in the meantime.
_ATTEMPT_COUNT: Final = 3
_MAX_WARNINGS: Final = 10
#: Sections that only a kernel module has.
_MODULE_SECTIONS: Final = frozenset({".modinfo", ".gnu.linkonce.this_module"})
#: From here on, addresses are the kernel's on all machines that SFrame is defined for.
_KERNEL_VADDR: Final = 1 << 63


def run_job(job: Job) -> Outcome:
    """Convert one file, or take its section out.

    A failure is an outcome, and is raised only if the job asks for that. Interrupts are raised, and `BrokenPipeError`
    when the reader of the output has closed it.
    """
    attempts_left = _ATTEMPT_COUNT if job.output is None else 1
    while True:
        attempts_left -= 1
        try:
            return _run(job)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever was raised, it concerns this file only
            # Another run may be converting the same file.
            if not attempts_left or kind_of(error) is not ErrorKind.CHANGED:
                # Free the memory for the next file.
                gc.collect()
                return _failed(job, error, Outcome(job.name, job.other_names, "failed"))


def _failed(job: Job, error: Exception, known: Outcome) -> Outcome:
    """Return the outcome of a job that raised something: the file has failed, or is skipped as unfit."""
    if job.raises:
        raise error
    kind, reason = kind_of(error), reason_of(error)
    if job.settings.skips_unfit and kind in (ErrorKind.UNFIT, ErrorKind.NOT_ELF):
        skip_kind = SkipKind.NOT_ELF if kind is ErrorKind.NOT_ELF else SkipKind.NO_CFI
        if isinstance(error, ReaderError | ForeignError):
            skip_kind = SkipKind.READER if isinstance(error, ReaderError) else SkipKind.FOREIGN
        return Outcome(job.name, job.other_names, "skipped", reason=reason, skip_kind=skip_kind)
    if job.settings.skips_unfit and isinstance(error, PayloadError):
        return known._replace(status="skipped", reason=reason, skip_kind=SkipKind.PAYLOAD)
    if isinstance(error, IsADirectoryError):
        reason += " (--in-place and --check process the ELF files in it)"
    if isinstance(error, OutputError):
        return known._replace(name=error.where, other_names=(), kind=kind, reason=error.reason)
    return known._replace(kind=kind, reason=reason)


def _run(job: Job) -> Outcome:
    settings = job.settings
    limits = unlimited if job.raises else limited
    with open_input(job.targets[0], in_place=job.output is None) as (data, file), limits(stored_size(data)):
        image = ElfImage(data, job.name)
        try:
            skip = skip_of(image, takes_objects=settings.takes_objects) if settings.is_in_tree else None
            if skip is not None:
                return Outcome(job.name, job.other_names, "skipped", reason=skip[1], skip_kind=skip[0])
            if settings.removes:
                return _remove(job, image, file)
            if settings.debug_file is None:
                return _convert(job, image, file)
            from cfi2sframe.elf.debug_file import with_debug_file

            with with_debug_file(image, settings.debug_file):
                return _convert(job, image, file)
        finally:
            image.close()


def skip_of(image: ElfImage, *, takes_objects: bool) -> tuple[SkipKind, str] | None:
    """Return why a file of a directory is left alone: linkers or kernels read it, or its code is in another file.

    `takes_objects`: relocatable objects and kernel modules are not left alone. Linkers read the sections of objects,
    and those before binutils 2.46 fail on version 3.
    """
    if image.is_relocatable:
        is_module = any(section.name in _MODULE_SECTIONS for section in image.sections)
        kind = SkipKind.MODULE if is_module else SkipKind.OBJECT
        what = f"a {kind.value}; --for ld or kernel-arm64 takes those in directories, too"
        return None if takes_objects else (kind, what)
    if image.is_debug_file:
        return SkipKind.DEBUG_FILE, "a separate debug file: its code is in another file"
    if any(segment.type == PT_LOAD and segment.vaddr >= _KERNEL_VADDR for segment in image.segments):
        return SkipKind.KERNEL, "a kernel image"
    return None


def _remove(job: Job, image: ElfImage, file: InputFile | None) -> Outcome:
    """Write the file without its section, or as it is if it has none."""
    if not image.has_sframe:
        warnings = _copy(job, image, file)
        return Outcome(job.name, job.other_names, "unchanged", reason=Presence.ABSENT.value, warnings=warnings)
    section, segment = image.sframe_section, image.sframe_segment
    size = section.size if section is not None else segment.file_size if segment is not None else 0
    removal = emit.remove(image)
    bare = ElfImage(removal.content, job.name)
    lost = (removal.lost,) if removal.lost else ()
    if existing_section(bare).presence not in (Presence.ABSENT, Presence.EMPTY):
        lost = (*lost, "the .sframe section that the conversion had replaced is restored")
    placement = f".sframe of {size:,} bytes"
    known = Outcome(job.name, job.other_names, "would remove", section_size=size, placement=placement, warnings=lost)
    if job.settings.only_checks:
        # Refuse now what the check of the written file would refuse.
        emit.check_removal(image, bare)
        return known
    warnings = _write_elf(job, removal.content, file, partial(emit.check_removal, image))
    return known._replace(status="removed", warnings=(*lost, *warnings))


def _convert(job: Job, image: ElfImage, file: InputFile | None) -> Outcome:
    settings = job.settings
    options = settings.options
    existing = Existing(Presence.ABSENT)
    if not settings.is_raw:
        existing = existing_section(image)
        early = decide_early(image, existing, replaces=settings.replaces)
        if early is not None:
            return _refused(job, Outcome(job.name, job.other_names, "failed"), early)
        if existing.presence is not Presence.READABLE:
            # A file that is up to date is not rewritten.
            try:
                emit.check_placeable(image)
            except EmbedError:
                # That a file has no CFI is the better message.
                find_cfi(image, options.source)
                raise
        options = options_for(existing, options)
    if settings.reader is None:
        conversion = convert_image(image, options)
    else:
        from cfi2sframe.api import convert_for

        conversion = convert_for(image, options, settings.reader)
    coverage = None
    # The account costs an import, and says nothing new if nothing is missing.
    if not conversion.is_whole or settings.wants_account or settings.fail_under is not None:
        from cfi2sframe.report.coverage import account

        coverage = account(conversion)
    known = _known_of(job, conversion, coverage)
    try:
        refusal = refusal_of(conversion, coverage, is_strict=settings.is_strict, fail_under=settings.fail_under)
        if refusal is not None:
            raise refusal
        return _write(job, conversion, existing, file, known)
    except (ChangedError, BrokenPipeError):
        raise
    except (Cfi2SFrameError, OSError) as error:
        return _failed(job, error, known)


def _known_of(job: Job, conversion: Conversion, coverage: "Coverage | None") -> Outcome:
    """Return the outcome so far: failed, unless something is written."""
    summary = account = ""
    if coverage is not None and job.settings.wants_account:
        import json

        from cfi2sframe.report.coverage import coverage_data
        from cfi2sframe.report.coverage_report import headline

        summary = f"{headline(coverage)}; {counted(coverage.sframe_size, 'byte')} of .sframe"
        if job.settings.debug_file is not None:
            summary += f"; debug file: {coverage.debug_file or 'none found'}"
        account = json.dumps({"schema": SCHEMA_VERSION, **coverage_data(coverage)})
    return Outcome(
        job.name,
        job.other_names,
        "failed",
        warnings=warnings_of(coverage),
        section_size=len(conversion.data),
        function_count=conversion.described_count,
        left_out_count=0 if conversion.is_whole else len(conversion.skips) + len(conversion.cfi.damaged),
        in_parts_count=0 if conversion.is_whole else len(conversion.in_parts),
        summary=summary,
        account=account,
    )


def warnings_of(coverage: "Coverage | None") -> tuple[str, ...]:
    """Return warnings about sources that were not read and functions that are left out, also in part.

    There are ten at most, and one that counts the rest.
    """
    if coverage is None:
        return ()
    from cfi2sframe.report.coverage_report import missing_sentences

    unread = (f"{item.name} is not used: {item.reason}" for item in coverage.unread)
    # No caller is lost where the stack ends, as in _start.
    lost = tuple([m for m in coverage.missing if m.kind != "left out" or m.reason != SkipReason.RA_UNDEFINED.name])
    shown = tuple(islice(chain(unread, missing_sentences(coverage._replace(missing=lost))), _MAX_WARNINGS))
    stub_count = len(coverage.of_kind("PLT stubs"))
    more = len(coverage.unread) + coverage.damaged_count + coverage.left_out_count + coverage.in_part_count + stub_count
    more -= len(shown) + len(coverage.missing) - len(lost)
    what = "left out or described in part" if coverage.in_part_count else "left out"
    return (*shown, f"{more:,} more functions {what}") if more else shown


def refusal_of(
    conversion: Conversion, coverage: "Coverage | None", *, is_strict: bool, fail_under: float | None = None
) -> Cfi2SFrameError | None:
    """Return the error to raise if the user's conditions forbid writing this conversion.

    `fail_under` is a percentage of the bytes of code, and needs the account.
    """
    if is_strict and conversion.cfi.damaged:
        return CfiError("--strict: an FDE is damaged; nothing written")
    if is_strict and conversion.cfi.unread:
        return IncompleteError(f"--strict: {conversion.cfi.unread[0].name} cannot be read; nothing written")
    if is_strict and not conversion.is_whole:
        is_missing = conversion.skips or conversion.code_map.stubs.left_out
        what = "cannot be represented" if is_missing else "are described in part"
        return IncompleteError(f"--strict: some functions {what}; nothing written")
    if coverage is not None and fail_under is not None and coverage.code_percent < fail_under:
        return IncompleteError(
            f"{coverage.code_percent:.2f} % of the bytes of code are described, less than {fail_under:g} %"
        )
    return None


def _write(job: Job, conversion: Conversion, existing: Existing, file: InputFile | None, known: Outcome) -> Outcome:
    """Write what the job asks for, unless the file has it already."""
    from cfi2sframe.verification.verify import Asked

    image, settings = conversion.image, job.settings
    wanted = settings.options.version, conversion.target.errata, settings.reader
    asked = Asked(*wanted, in_parts=True, over_padding=True)
    if not conversion.data:
        if settings.verifies:
            emit.check_section(conversion, conversion.section._replace(starts=(), sizes=(), bodies=()), asked)
        nothing = f"SFrame version {conversion.target.version} can describe none of the functions"
        if settings.is_raw:
            raise InputError(f"{nothing}; there is no section")
        _copy(job, image, file)
        warnings = (*known.warnings, f"{nothing}; the file gets no .sframe section")
        return known._replace(status="unchanged", warnings=warnings)
    if settings.is_raw and job.output is not None:
        warnings = (*emit.reader_warnings(conversion), *write_output(job.output, conversion.data, source=file))
        placement = f"offsets assume .sframe is loaded at 0x{conversion.section_vaddr:x}"
        return known._replace(
            status="converted",
            placement="" if image.is_relocatable else placement,
            warnings=(*known.warnings, *warnings),
        )
    decision = decide(conversion, existing, settings)
    if decision.action is Action.REFUSE:
        return _refused(job, known, decision)
    if decision.action is Action.KEEP:
        warnings = (*known.warnings, *_copy(job, image, file))
        return known._replace(status="unchanged", reason=decision.reason, warnings=warnings)
    emitted = emit.emit(conversion, settings.section_type)
    placement, warnings = f"{emitted.where}: {emitted.placement}", (*known.warnings, *emitted.warnings)
    if decision.reason:
        placement += f"; {decision.reason}"
        # For files in directories, only the report has what loses nothing.
        if decision.is_loss or not settings.is_in_tree:
            warnings = (*warnings, f".sframe {decision.reason}")
    known = known._replace(status="would convert", placement=placement, warnings=warnings)
    if settings.only_checks:
        return known
    warnings = (*warnings, *_write_elf(job, emitted.chunks, file, partial(emit.check, emitted, asked=asked)))
    return known._replace(status="converted", warnings=warnings)


def _refused(job: Job, known: Outcome, decision: Decision) -> Outcome:
    """Return the outcome for a file whose section stays: a failure, unless the file was found in a directory.

    Raises `EmbedError` if the job asks for that.
    """
    if job.settings.is_in_tree:
        return known._replace(status="skipped", reason=decision.reason, skip_kind=SkipKind.SECTION)
    return _failed(job, EmbedError(decision.reason), known)


def _copy(job: Job, image: ElfImage, file: InputFile | None) -> tuple[str, ...]:
    """Copy the input to the output, unless they are one file; return warnings."""
    if job.output is None:
        return ()
    try:
        if file is not None and os.path.samestat(os.stat(job.output), file.status):
            return ()
    except OSError:
        pass
    return write_output(job.output, image.data, source=file, is_copy=True, keeps_rights=job.settings.keeps_rights)


def _write_elf(
    job: Job, content: FileData, file: InputFile | None, check: Callable[[ElfImage], None]
) -> tuple[str, ...]:
    """Write a rewritten file to the output, or in place under all names that were given; return warnings.

    `check` gets the file as written, before it is renamed, and may raise.
    """
    wanted = (lambda data: check(ElfImage(data, job.name))) if job.settings.verifies else None
    keeps_rights = job.settings.keeps_rights
    if job.output is not None:
        return write_output(job.output, content, source=file, is_copy=True, keeps_rights=keeps_rights, check=wanted)
    warnings = write_file(job.targets, content, source=file, in_place=True, keeps_rights=keeps_rights, check=wanted)
    count = 0 if file is None else file.status.st_nlink - len(job.targets)
    if count == 1:
        return (*warnings, "1 other hard link keeps the old file")
    return (*warnings, f"{count:,} other hard links keep the old file") if count > 1 else warnings
