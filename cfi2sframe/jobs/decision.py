# SPDX-License-Identifier: Apache-2.0
"""Decide whether convert replaces the section of a file: `--check` prints the decision, and a run carries it out.

The table here is that of docs/deploying.md. Bytes decide nothing: other tools and other releases write other bytes
with the same meaning.
"""

from collections.abc import Callable
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

from cfi2sframe.constants.sframe import DEFAULT_ERRATA, SFRAME_VERSION_2
from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import SectionError
from cfi2sframe.existing import Existing, Presence
from cfi2sframe.jobs.records import Request
from cfi2sframe.range_map import Span, touches, united
from cfi2sframe.text import counted
from cfi2sframe.why import Reason, Why


class Action(Enum):
    """The fate of the file's section."""

    WRITE = "the new section is written, in place of the old one if there is one"
    KEEP = "the file stays as it is"
    REFUSE = "an error; in a directory, the file is skipped"


class Decision(NamedTuple):
    """An action and, for a message, its reason; `is_loss`: rows are lost, and a warning says so."""

    action: Action
    reason: str = ""
    is_loss: bool = False


def options_for(existing: Existing, options: Options) -> Options:
    """Return the options for a file that has a section: in version 2, its errata level if that is newer.

    The caller's choice of an errata level stays.
    """
    if options.version != SFRAME_VERSION_2 or options.errata is not None or existing.section is None:
        return options
    return options._replace(errata=max(DEFAULT_ERRATA, existing.section.errata))


# Before the file is converted


def check_replaceable(image: ElfImage, existing: Existing) -> None:
    """Raise `SectionError` where no new section can replace the one that the file has."""
    presence = existing.presence
    if presence is Presence.WITHOUT_BYTES:
        raise SectionError(presence.value)
    if presence is Presence.SEVERAL:
        hint = " (cfi2sframe remove removes all of them)" if image.is_relocatable else ""
        raise SectionError(f"{presence.value}{hint}")
    if presence is Presence.DAMAGED and not _is_own(image):
        # It may be anything, and no record would bring it back.
        raise SectionError(f"{existing.error}")


# After it


class _Sections:
    """The section of a file, and the new one that may replace it; costly properties are computed on demand."""

    def __init__(self, conversion: Conversion, existing: Existing, request: Request) -> None:
        self.conversion, self.existing, self.request = conversion, existing, request
        self.image, self.old, self.new = conversion.image, existing.or_raise(), conversion.section

    @cached_property
    def is_fit(self) -> bool:
        """True if headers lead to the old section, and it has the wanted version and breaks no rule of that."""
        from cfi2sframe.verification.readers import unmet_demands

        is_found = self.existing.is_loaded
        if self.image.is_relocatable:
            # Linkers tell the sections of objects by their type, too.
            header = self.image.sframe_section
            is_found = header is not None and header.type == self.request.section_type
        return is_found and self.is_of_same_version and not any(unmet_demands(self.old, self.image))

    @property
    def is_of_same_version(self) -> bool:
        """True if both sections are of one version and errata level."""
        return (self.old.version, self.old.errata) == (self.new.version, self.new.errata)

    @property
    def is_same(self) -> bool:
        """True if old and new section give the same answer at every PC."""
        from cfi2sframe.verification.section_column import have_same_answers

        return self.is_fit and have_same_answers(self.old, self.new)

    @cached_property
    def is_own(self) -> bool:
        """True if this program inserted the old section."""
        return _is_own(self.image)

    @property
    def is_right(self) -> bool:
        """True if the old section agrees with the CFI as the new one does, and the wanted reader reads it."""
        from cfi2sframe.api import judge, verify

        reader = self.request.reader
        if not self.is_fit or not verify(self.conversion, self.old, reader=reader).is_clean:
            return False
        verdicts = judge(self.image, self.old, reader, is_in_file=True) if reader else ()
        return not verdicts or any(verdict.reads_it for verdict in verdicts)

    @cached_property
    def lost(self) -> int | None:
        """The first address at which the new section lacks a row that somebody finds in the old one."""
        if self.is_own:
            # The same version can only lack rows if the caller asks for less.
            return self._first_lost(self.image.may_execute) if self.is_of_same_version else None
        # Nobody loses the rows of a section that no segment leads to.
        has_readers = self.existing.is_loaded or self.image.is_relocatable
        return self._first_lost(self.image.may_execute, self._stack_ends) if has_readers else None

    @property
    def is_lost_by_request(self) -> bool:
        """True if the version or reader that the user names cannot have any of the rows that are lost."""
        unsaid = united(piece[:2] for piece in self.conversion.pieces if isinstance(piece.said, Why))

        def may_be_said(vaddr: int) -> bool:
            return self.image.may_execute(vaddr) and not touches(unsaid, Span(vaddr, vaddr + 1))

        return self.request.names_version and self._first_lost(may_be_said, self._stack_ends) is None

    @property
    def _stack_ends(self) -> list[Span]:
        """The functions at which a stack ends: GNU as up to 2.45 gives them a caller."""
        return united(
            (entry.start_vaddr, entry.start_vaddr + entry.size)
            for entry, why in self.conversion.skips
            if why.reason is Reason.RA_UNDEFINED
        )

    def _first_lost(self, counts: Callable[[int], bool], ends: list[Span] | None = None) -> int | None:
        from cfi2sframe.verification.section_column import first_lost_row

        lost = first_lost_row(self.old, self.new, counts, ends or [])
        return None if lost is None else lost.vaddr

    @property
    def replacing(self) -> str:
        """The clause of a message about the section of another producer that is replaced."""
        return f"replaces a section of version {self.old.version} with {counted(len(self.old.starts), 'function')}"

    @property
    def place(self) -> str:
        """The place of the first row that would be lost."""
        return "" if self.lost is None else self.image.place_text(self.lost)


class _Case(NamedTuple):
    """A kind of section, in the words of docs/deploying.md, and its fate."""

    section: str
    holds: Callable[[_Sections], bool]
    action: Action
    reason: Callable[[_Sections], str] = lambda _: ""
    is_loss: bool = False


_SAME: Final = "the same answers at every PC, whoever wrote or moved it"
_OWN: Final = "this program's, of another version, errata or release"
_RIGHT: Final = "another producer's, correct and complete"
_COVERED: Final = (
    "another producer's, of another version or wrong; the new section has a row at every PC where the old one has"
)
_UNCOVERED: Final = "another producer's, with a row where the new one has none"

#: The first one that holds decides.
CASES: Final = (
    _Case(_SAME, lambda it: it.is_same, Action.KEEP),
    _Case("any, with --replace", lambda it: it.request.replaces, Action.WRITE),
    _Case(_OWN, lambda it: it.is_own and it.lost is None, Action.WRITE),
    _Case(
        _OWN,
        lambda it: it.is_own,
        Action.WRITE,
        lambda it: f"lacks a row at {it.place} that the old one had (made with --debug-file or --from code?)",
        is_loss=True,
    ),
    _Case(
        _RIGHT,
        lambda it: it.is_right,
        Action.KEEP,
        lambda _: "another producer's .sframe section is correct and complete",
    ),
    _Case(_COVERED, lambda it: it.lost is None, Action.WRITE, lambda it: it.replacing),
    _Case(
        _UNCOVERED,
        lambda it: it.is_lost_by_request,
        Action.WRITE,
        lambda it: (
            f"{it.replacing}, and loses what version {it.new.version} cannot express, such as the row at {it.place}"
        ),
        is_loss=True,
    ),
    _Case(
        _UNCOVERED,
        lambda _: True,
        Action.REFUSE,
        lambda it: f"the .sframe section of the file has a row at {it.place} that a new one lacks (use --replace)",
    ),
)


def decide(conversion: Conversion, existing: Existing, request: Request) -> Decision:
    """Return whether the new section is written, by the first of `CASES` that holds."""
    if existing.presence is not Presence.READABLE:
        return Decision(Action.WRITE)
    sections = _Sections(conversion, existing, request)
    case = next(case for case in CASES if case.holds(sections))
    return Decision(case.action, case.reason(sections), case.is_loss)


def _is_own(image: ElfImage) -> bool:
    """Return whether this program inserted the section, by the record for removal."""
    from cfi2sframe.placing.undo import Original, original_of

    return isinstance(original_of(image.data), Original)
