# SPDX-License-Identifier: Apache-2.0
"""Convert an image, and compare the result with the section that it has.

A file that would not change stays as it is.
"""

from collections import Counter
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from cfi2sframe import emit
from cfi2sframe.api import asked_of, convert_for
from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.conversion.fates import Fate
from cfi2sframe.conversion.sources import find_cfi
from cfi2sframe.elf.cfi import CfiKind
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import (
    Cfi2SFrameError,
    CfiError,
    EmbedError,
    IncompleteError,
    InputError,
    PayloadError,
)
from cfi2sframe.existing import Existing, Presence
from cfi2sframe.files.source import Source
from cfi2sframe.jobs.decision import decide, options_for, replaceable_section
from cfi2sframe.jobs.records import Conditions, Note, Outcome, Product, Request
from cfi2sframe.jobs.stamps import key_of
from cfi2sframe.placing.stamp import Stamp, sealed
from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.text import counted
from cfi2sframe.verification.verify import Asked
from cfi2sframe.why import Reason

if TYPE_CHECKING:
    from cfi2sframe.report.coverage import Coverage

_MAX_WARNINGS: Final = 10


def convert_anew(request: Request, image: ElfImage, source: Source, note: Note) -> Product:
    """Convert a file; return the product that is asked for, or none of new content if the file is up to date.

    `note` gets the outcome that counts if something is raised later. Raises `CfiError` or `IncompleteError` by the
    user's conditions, `SectionError` where the old section stays, and what `convert_for` and `emit` raise.
    """
    existing = Existing(Presence.ABSENT) if request.is_raw else _replaceable(image, request.options.source)
    conversion = convert_for(image, options_for(existing, request.options), request.reader)
    coverage = None
    # The account costs an import, and says nothing new if nothing is missing.
    if not conversion.is_whole or request.wants_account or request.conditions.fail_under is not None:
        from cfi2sframe.report.coverage import account

        coverage = account(conversion)
    unwritten = _unwritten(request, conversion, coverage)
    note(unwritten)
    refusal = refusal_of(conversion, coverage, request.conditions)
    if refusal is not None:
        raise refusal
    # With the user's version, the check notices a conversion for another one.
    asked = asked_of(conversion, request.reader, request.options.version)
    if not conversion.data:
        return _nothing(request, conversion, unwritten, asked)
    if request.is_raw:
        return _raw(conversion, unwritten)
    decision = decide(conversion, existing, request)
    if not decision.is_written:
        warnings = (*unwritten.warnings, *_appended_to(image))
        return Product(unwritten._replace(status="unchanged", reason=decision.reason, warnings=warnings))
    # The next run, which may want a check, would believe the stamp of a file that nobody has checked.
    stamp = _stamp_for(unwritten, coverage).pack() if request.verifies else b""
    emitted = emit.emit(conversion, request.section_type, stamp, replaces=request.replaces)
    placement, warnings = f"{emitted.where}: {emitted.placement}", (*unwritten.warnings, *emitted.warnings)
    if decision.reason:
        placement += f"; {decision.reason}"
        # For files in directories, only the report tells of a replacement that loses nothing.
        if decision.is_loss or not source.is_found:
            warnings = (*warnings, f".sframe {decision.reason}")
    outcome = unwritten._replace(status="converted", placement=placement, warnings=warnings)
    if request.only_checks:
        return Product(outcome._replace(status="would convert"))
    check = partial(emit.check_asked, emitted, asked=asked) if request.verifies else None
    # Without a stamp, that of an earlier run may stand there, if the file was changed since.
    content = sealed(emitted.chunks, key_of(request, image)) if stamp else emitted.chunks
    return Product(outcome, content, check)


def _replaceable(image: ElfImage, source: CfiKind | None) -> Existing:
    """Return the section that a file has. Raises where neither that nor any other could be in the new file."""
    existing = replaceable_section(image)
    if existing.presence is not Presence.READABLE:
        # A file that is up to date is not rewritten.
        try:
            emit.check_placeable(image)
        except EmbedError:
            # That a file has no CFI is the better message.
            find_cfi(image, source)
            raise
    return existing


def _unwritten(request: Request, conversion: Conversion, coverage: "Coverage | None") -> Outcome:
    """Return the outcome if nothing is written: failed, with the conversion's counts and warnings."""
    summary = account = ""
    if coverage is not None and request.wants_account:
        import json

        from cfi2sframe.report.coverage import coverage_data
        from cfi2sframe.report.coverage_report import headline

        summary = f"{headline(coverage)}; {counted(coverage.sframe_size, 'byte')} of .sframe"
        if request.debug_file is not None:
            summary += f"; debug file: {coverage.debug_file or 'none found'}"
        account = json.dumps({"schema": SCHEMA_VERSION, **coverage_data(coverage)})
    fates = Counter(conversion.fates)
    return Outcome(
        warnings=warnings_of(coverage),
        section_size=len(conversion.data),
        described_count=fates[Fate.DESCRIBED],
        left_out_count=fates[Fate.LEFT_OUT] + len(conversion.cfi.damaged),
        in_part_count=fates[Fate.IN_PARTS],
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
    lost = tuple([m for m in coverage.missing if m.kind != "left out" or m.reason != Reason.RA_UNDEFINED.name])
    shown = tuple(islice(chain(unread, missing_sentences(coverage._replace(missing=lost))), _MAX_WARNINGS))
    stub_count = len(coverage.of_kind("PLT stubs"))
    more = len(coverage.unread) + coverage.damaged_count + coverage.left_out_count + coverage.in_part_count + stub_count
    more -= len(shown) + len(coverage.missing) - len(lost)
    what = "left out or described in part" if coverage.in_part_count else "left out"
    return (*shown, f"{more:,} more functions {what}") if more else shown


def refusal_of(conversion: Conversion, coverage: "Coverage | None", conditions: Conditions) -> Cfi2SFrameError | None:
    """Return the error to raise if conditions forbid writing this conversion; `fail_under` needs `coverage`."""
    is_strict, fail_under = conditions
    if is_strict and conversion.cfi.damaged:
        return CfiError("--strict: an FDE is damaged; nothing written")
    if is_strict and conversion.cfi.unread:
        name, reason = conversion.cfi.unread[0]
        return IncompleteError(f"--strict: {name} is not used: {reason}; nothing written")
    if is_strict and not conversion.is_whole:
        is_missing = conversion.skips or conversion.stubs_left_out
        what = "cannot be represented" if is_missing else "are described in part"
        return IncompleteError(f"--strict: some functions {what}; nothing written")
    if coverage is not None and fail_under is not None and coverage.code_percent < fail_under:
        return IncompleteError(
            f"{coverage.code_percent:.2f} % of the bytes of code are described, less than {fail_under:g} %"
        )
    return None


def _nothing(request: Request, conversion: Conversion, unwritten: Outcome, asked: Asked) -> Product:
    """Return the product where no function can be described: the file without a section."""
    if request.verifies:
        emit.check_section(conversion, conversion.section._replace(starts=(), sizes=(), bodies=()), asked)
    nothing = f"SFrame version {conversion.target.version} can describe none of the functions"
    if request.is_raw:
        raise InputError(f"{nothing}; there is no section")
    warnings = (*unwritten.warnings, f"{nothing}; the file gets no .sframe section")
    return Product(unwritten._replace(status="unchanged", warnings=warnings))


def _raw(conversion: Conversion, unwritten: Outcome) -> Product:
    """Return the bytes of the section alone."""
    placement = f"offsets assume .sframe is loaded at 0x{conversion.section_vaddr:x}"
    outcome = unwritten._replace(
        status="converted",
        placement="" if conversion.image.is_relocatable else placement,
        warnings=(*unwritten.warnings, *emit.reader_warnings(conversion)),
    )
    return Product(outcome, conversion.data, is_copy=False)


def _appended_to(image: ElfImage) -> tuple[str, ...]:
    """Return a warning where data was appended to an up-to-date file: such a file is never rewritten."""
    try:
        emit.check_placeable(image)
    except EmbedError as error:
        return (error.reason,) if isinstance(error, PayloadError) else ()
    return ()


def _stamp_for(outcome: Outcome, coverage: "Coverage | None") -> Stamp:
    """Return the stamp for a file that is to be written.

    Names are as the file has them, since not every machine has a demangler. An account that only a report or a
    condition asked for does not count: the file's bytes do not depend on these.
    """
    plain = coverage
    if coverage is not None:
        plain = coverage._replace(missing=tuple([m._replace(function=m.symbol) for m in coverage.missing]))
    counts = outcome.described_count, outcome.left_out_count, outcome.in_part_count
    return Stamp(outcome.section_size, *counts, warnings_of(plain))
