# SPDX-License-Identifier: Apache-2.0
"""What convert does with a file that has a section: one decision, which `--check` prints and a run carries out.

Bytes decide nothing: other tools and other releases write other bytes with the same meaning.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from cfi2sframe.constants.sframe import DEFAULT_ERRATA, SFRAME_VERSION_2
from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.existing import Existing, Presence
from cfi2sframe.jobs.records import Settings
from cfi2sframe.range_map import Span, touches, united
from cfi2sframe.text import counted
from cfi2sframe.why import Reason, Why


class Action(Enum):
    """What becomes of the file's section."""

    WRITE = "the new section is written, in place of the old one if there is one"
    KEEP = "the file stays as it is"
    REFUSE = "an error; in a directory, the file is skipped"


class Decision(NamedTuple):
    """An action and, if a message is needed, its reason; `is_loss`: rows are lost, which nobody may overlook."""

    action: Action
    reason: str = ""
    is_loss: bool = False


_WRITE: Final = Decision(Action.WRITE)


def options_for(existing: Existing, options: Options) -> Options:
    """Return the options for a file that has a section: in version 2, its errata level if that is newer.

    The caller's choice of an errata level stays.
    """
    if options.version != SFRAME_VERSION_2 or options.errata is not None or existing.section is None:
        return options
    return options._replace(errata=max(DEFAULT_ERRATA, existing.section.errata))


def decide_early(image: ElfImage, existing: Existing, *, replaces: bool) -> Decision | None:
    """Return what is decided before the file is converted; None where that depends on the new section."""
    if existing.presence is Presence.WITHOUT_BYTES:
        return Decision(Action.REFUSE, existing.presence.value)
    if existing.presence is Presence.SEVERAL:
        hint = " (cfi2sframe remove removes all of them)" if image.is_relocatable else ""
        return Decision(Action.REFUSE, f"{existing.presence.value}{hint}")
    if existing.presence is Presence.DAMAGED and not (replaces or _is_own(image)):
        return Decision(Action.REFUSE, f"{existing.error}; use --replace to write a new section")
    return None


def decide(conversion: Conversion, existing: Existing, settings: Settings) -> Decision:
    """Return whether the new section is written.

    Not if the old one gives the same answers at every PC. A section that this program inserted, one that nobody can
    read, and one that loses no answer are replaced; one of another producer that is right and complete is kept. Of this
    program's sections, the same version can only lack rows if the caller asks for less.
    """
    image, old, new = conversion.image, existing.section, conversion.section
    if old is None or existing.presence is not Presence.READABLE:
        return _WRITE
    from cfi2sframe.verification.readers import unmet_demands
    from cfi2sframe.verification.section_column import first_lost_row, have_same_answers

    # What leads readers to it; linkers tell the sections of objects by their type, too.
    header = image.sframe_section
    is_found = existing.is_loaded
    if image.is_relocatable:
        is_found = header is not None and header.type == settings.section_type
    is_same_version = (old.version, old.errata) == (new.version, new.errata)
    is_fit = is_found and is_same_version and not any(unmet_demands(old, image))
    if is_fit and have_same_answers(old, new):
        return Decision(Action.KEEP)
    if settings.replaces:
        return _WRITE
    if _is_own(image):
        lost = first_lost_row(old, new, image.may_execute) if is_same_version else None
        if lost is None:
            return _WRITE
        place = image.place_text(lost.vaddr)
        reason = f"lacks a row at {place} that the old one had (made with --debug-file or --from code?)"
        return Decision(Action.WRITE, reason, is_loss=True)
    if is_fit and _is_right(conversion, existing, settings.reader):
        return Decision(Action.KEEP, "another producer's .sframe section is correct and complete")
    # GNU as up to 2.45 gives these functions a caller.
    ends = united(
        (entry.start_vaddr, entry.start_vaddr + entry.size)
        for entry, why in conversion.skips
        if why.reason is Reason.RA_UNDEFINED
    )
    # Nobody loses the rows of a section that no segment leads to.
    has_readers = existing.is_loaded or image.is_relocatable
    lost = first_lost_row(old, new, image.may_execute, ends) if has_readers else None
    reason = f"replaces a section of version {old.version} with {counted(len(old.starts), 'function')}"
    if lost is None:
        return Decision(Action.WRITE, reason)
    place = image.place_text(lost.vaddr)
    if settings.names_version and first_lost_row(old, new, _may_be_said(conversion), ends) is None:
        reason += f", and loses what version {new.version} cannot express, such as the row at {place}"
        return Decision(Action.WRITE, reason, is_loss=True)
    reason = f"the .sframe section of the file has a row at {place} that a new one lacks"
    return Decision(Action.REFUSE, f"{reason} (use --replace)")


def _may_be_said(conversion: Conversion) -> Callable[[int], bool]:
    """Return whether an address is of code that the version and the reader of a conversion could describe."""
    unsaid = united(piece[:2] for piece in conversion.pieces if isinstance(piece.rows, Why))
    return lambda vaddr: conversion.image.may_execute(vaddr) and not touches(unsaid, Span(vaddr, vaddr + 1))


def _is_own(image: ElfImage) -> bool:
    """Whether this program inserted the section, as the record for removal tells."""
    from cfi2sframe.placing.undo import Original, original_of

    return isinstance(original_of(image.data), Original)


def _is_right(conversion: Conversion, existing: Existing, reader: str | None) -> bool:
    """Whether another producer's section says all that the new one does, and the wanted reader reads it."""
    from cfi2sframe.api import judge, verify

    section = existing.section
    if section is None or not verify(conversion, section, reader=reader).is_clean:
        return False
    verdicts = judge(conversion.image, section, reader, is_in_file=True) if reader else ()
    return not verdicts or any(verdict.reads_it for verdict in verdicts)
