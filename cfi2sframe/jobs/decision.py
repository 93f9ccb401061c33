# SPDX-License-Identifier: Apache-2.0
"""Decide whether convert replaces the section of a file: `--check` prints the decision, and a run carries it out.

The order is that of the table in docs/deploying.md. Bytes decide nothing: other tools and other releases write other
bytes with the same meaning.
"""

from typing import NamedTuple

from cfi2sframe.api import judge, verify
from cfi2sframe.constants.sframe import DEFAULT_ERRATA, SFRAME_VERSION_2, SFRAME_VERSION_3
from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import SectionError
from cfi2sframe.existing import Existing, Presence, existing_section
from cfi2sframe.jobs.records import Request
from cfi2sframe.placing.undo import Original, original_of
from cfi2sframe.range_map import Span, touches, united
from cfi2sframe.text import counted
from cfi2sframe.verification.readers import unmet_demands
from cfi2sframe.verification.section_column import first_lost_row, have_same_answers
from cfi2sframe.why import Reason, Why


class Decision(NamedTuple):
    """The choice to write the new section or to keep the file as it is, and why, for a message.

    `is_loss`: rows are lost, and a warning says so.
    """

    reason: str = ""
    is_written: bool = True
    is_loss: bool = False


def options_for(existing: Existing, options: Options) -> Options:
    """Return the options for a file that has a section: in version 2, its errata level if that is newer.

    The caller's choice of an errata level stays.
    """
    if options.version != SFRAME_VERSION_2 or options.errata is not None or existing.section is None:
        return options
    return options._replace(errata=max(DEFAULT_ERRATA, existing.section.errata))


def replaceable_section(image: ElfImage) -> Existing:
    """Return the section that a file has. Raises `SectionError` where no new section can replace it."""
    existing = existing_section(image)
    presence = existing.presence
    if presence is Presence.WITHOUT_BYTES:
        raise SectionError(presence.value)
    if presence is Presence.SEVERAL:
        hint = " (cfi2sframe remove removes all of them)" if image.is_relocatable else ""
        raise SectionError(f"{presence.value}{hint}")
    if presence is Presence.DAMAGED and not _is_own(image):
        # It may be anything, and no record would bring it back.
        raise SectionError(f"{existing.error}")
    return existing


def decide(conversion: Conversion, existing: Existing, request: Request) -> Decision:
    """Return whether the new section is written, given the one that the file has.

    Raises `SectionError` where rows of another producer would be lost, and the user has not asked for that.
    """
    if existing.presence is not Presence.READABLE:
        return Decision()
    image, old, new = conversion.image, existing.or_raise(), conversion.section
    is_same_version = (old.version, old.errata) == (new.version, new.errata)
    is_fit = is_same_version and _is_fit(image, existing, request)
    if is_fit and have_same_answers(old, new):
        return Decision(is_written=False)
    if request.replaces:
        return Decision()
    if _is_own(image):
        # The same version can only lack rows if the caller asks for less.
        lost = first_lost_row(old, new, image.may_execute) if is_same_version else None
        if lost is None:
            return Decision()
        reason = f"lacks a row at {image.place_text(lost.vaddr)} that the old one had"
        return Decision(f"{reason} (made with --debug-file or --from code?)", is_loss=True)
    if is_fit and _is_right(conversion, existing, request.reader):
        return Decision("another producer's .sframe section is correct and complete", is_written=False)
    # No reader loses the rows of a section that no segment leads to.
    has_readers = existing.is_loaded or image.is_relocatable
    lost = first_lost_row(old, new, image.may_execute, _stack_ends(conversion)) if has_readers else None
    replacing = f"replaces a section of version {old.version} with {counted(len(old.starts), 'function')}"
    if lost is None:
        return Decision(replacing)
    place = image.place_text(lost.vaddr)
    if _loses_by_request(conversion, existing, request):
        reason = f"loses what version {new.version} cannot express, such as the row at {place}"
        return Decision(f"{replacing}, and {reason}", is_loss=True)
    raise SectionError(f"the .sframe section of the file has a row at {place} that a new one lacks (use --replace)")


def _is_fit(image: ElfImage, existing: Existing, request: Request) -> bool:
    """Return whether headers lead to the old section, and it breaks no rule of its version."""
    is_found = existing.is_loaded
    if image.is_relocatable:
        # Linkers tell the sections of objects by their type, too.
        header = image.sframe_section
        is_found = header is not None and header.type == request.section_type
    return is_found and not any(unmet_demands(existing.or_raise(), image))


def _is_right(conversion: Conversion, existing: Existing, reader: str | None) -> bool:
    """Return whether the old section agrees with the CFI as the new one does, and the wanted reader reads it."""
    old = existing.or_raise()
    if not verify(conversion, old, reader=reader).is_clean:
        return False
    verdicts = judge(conversion.image, old, reader, is_in_file=True) if reader else ()
    return not verdicts or any(verdict.reads_it for verdict in verdicts)


def _stack_ends(conversion: Conversion) -> list[Span]:
    """Return the functions at which stacks end: GNU as up to 2.45 gives them a caller."""
    ends = [entry for entry, why in conversion.skips if why.reason is Reason.RA_UNDEFINED]
    return united((entry.start_vaddr, entry.start_vaddr + entry.size) for entry in ends)


def _loses_by_request(conversion: Conversion, existing: Existing, request: Request) -> bool:
    """Return whether the user has named a version or reader that cannot have any of the rows that are lost."""
    options = request.options
    if request.reader is None and options.version == SFRAME_VERSION_3 and options.errata is None:
        return False
    refused = united(piece[:2] for piece in conversion.pieces if isinstance(piece.said, Why))

    def may_have_rows(vaddr: int) -> bool:
        return conversion.image.may_execute(vaddr) and not touches(refused, Span(vaddr, vaddr + 1))

    return first_lost_row(existing.or_raise(), conversion.section, may_have_rows, _stack_ends(conversion)) is None


def _is_own(image: ElfImage) -> bool:
    """Return whether this program inserted the section, by the record for removal."""
    return isinstance(original_of(image.data), Original)
