# SPDX-License-Identifier: Apache-2.0
"""Look up one address in a section and in the CFI of its file, and compare the two as `verify` does."""

from bisect import bisect_right
from operator import attrgetter
from typing import Final, Literal, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.constants.sframe import SFRAME_VERSION_3
from cfi2sframe.dwarf.fdes import CfiEntries
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RegisterRule, RowState, describe_cfa, describe_rule
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.range_map import Span
from cfi2sframe.sframe.model import Found, Section, state_text
from cfi2sframe.verification.code import stub_rows
from cfi2sframe.verification.expressible import row_for
from cfi2sframe.verification.row_difference import attribute_difference, row_difference
from cfi2sframe.verification.section_column import FoundState
from cfi2sframe.verification.truth import NOTHING, UNJUDGED, Claim, Fde, Numbers, fdes_with_code, truth_column
from cfi2sframe.verification.verify import padding_after

Verdict = Literal["agree", "differ", "cannot be expressed", "only the section", "only the CFI", "neither"]

_UNCHANGED: Final = (NoRule.UNSPECIFIED, NoRule.SAME_VALUE)


class HeldRow(NamedTuple):
    """The row in force at an address, as text, and who has it, at virtual addresses.

    `source` is a section, or "PLT stub": its instructions. `span` is the function, the FDE or the part of the stub, and
    `row_vaddr` where the row starts: None where the function's rows start later.
    """

    source: str
    span: Span
    row_vaddr: int | None
    text: str


class LookedUp(NamedTuple):
    """The answers of section and CFI for an address (None: they have nothing), and how they differ."""

    section: HeldRow | None
    cfi: HeldRow | None
    verdict: Verdict
    difference: str = ""


class Lookup:
    """Looks addresses of an image up in a section and in CFI; None where the image has none."""

    def __init__(self, image: ElfImage, entries: CfiEntries | None, section: Section | None) -> None:
        self._image, self._section = image, section
        self._entries = entries or CfiEntries((), (), (), (), (), (), {})
        self._fdes = fdes_with_code(self._entries, image)
        # Without a section, only names tell where stubs are.
        described = Section(SFRAME_VERSION_3, image.arch.abi_id) if section is None else section
        spans = [(fde.start, fde.end) for fde in self._fdes]
        stubs = [] if image.is_relocatable else stub_rows(image, described, spans)
        padding = padding_after(self._fdes, image)
        # No answer is known: each claim has a number of its own.
        self._numbers = Numbers(lambda _claim: None)
        self._claimed = truth_column(self._entries, self._fdes, padding, stubs, self._numbers, image.arch)

    def at(self, vaddr: int) -> LookedUp:
        """Return what holds at a virtual address; in an object, of the image's layout."""
        answer, ours = None if self._section is None else self._section.find(vaddr), None
        if answer is not None:
            # The rows of a block repeat.
            function, row = answer.function, answer.row
            row_vaddr = None if row is None else function.start_vaddr + row.start_delta
            ours = HeldRow(".sframe", Span(function.start_vaddr, function.end_vaddr), row_vaddr, repr(answer))
        start, end, number = self._claimed.range_at(vaddr)
        claim = self._numbers.claims[number]
        if claim.state is not None:
            cfa, ra, fp = (None if rule is None else rule.text(self._image.arch) for rule in claim.state[:3])
            theirs = HeldRow("PLT stub", Span(start, end), start, state_text(cfa, ra, fp, mangled_ra=False))
            return LookedUp(ours, theirs, *self._verdict(claim, answer))
        fde = self._fde_at(vaddr, claim)
        # Functions may end before the padding after them.
        if fde is None or claim in (NOTHING, UNJUDGED) or (answer is None and fde.end <= vaddr):
            return LookedUp(ours, None, "neither" if answer is None else "only the section")
        return LookedUp(ours, self._row_of(fde, claim.rows[0][1], vaddr), *self._verdict(claim, answer))

    def _fde_at(self, vaddr: int, claim: Claim) -> Fde | None:
        """Return the FDE that a claim is of: where several overlap, the one that unwinders find."""
        number = bisect_right(self._fdes, vaddr, key=attrgetter("start")) - 1
        return next(iter(claim.fdes), self._fdes[number] if number >= 0 else None)

    def _row_of(self, fde: Fde, row: RowState, vaddr: int) -> HeldRow:
        table, arch = self._entries.program(fde.entry).table, self._image.arch
        start = fde.start + table.starts[bisect_right(table.starts, vaddr - fde.start) - 1]
        return HeldRow(self._entries[fde.entry].section.name, Span(fde.start, fde.end), start, _text(row, arch))

    def _verdict(self, claim: Claim, found: Found | None) -> tuple[Verdict, str]:
        """Return whether a section's answer is what the CFI claims, and how they differ."""
        section, arch = self._section, self._image.arch
        if section is None:
            return "only the CFI", ""
        if found is None:
            rows = [row_for(row, arch, section.version, section.errata) for _, row in claim.rows]
            return ("differ", "no function") if claim.state or all(rows) else ("cannot be expressed", "")
        state = found.state
        if claim.state is not None:
            return ("agree", "") if state == claim.state else ("differ", "the instructions of the stub say otherwise")
        body = found.function.body
        answer = FoundState.of(state, is_signal_frame=body.is_signal_frame, uses_b_key=body.uses_b_key)
        for differences in (
            [row_difference(row, state, arch) for _, row in claim.rows],
            [attribute_difference(cie, answer, section.version) for cie, _ in claim.rows],
        ):
            # Any of several FDEs may be the truth.
            if None not in differences:
                return "differ", str(differences[0])
        return "agree", ""


def _text(row: RowState, arch: Arch) -> str:
    """Return a row of the DWARF table as `Found` prints one of a section."""
    if row.ra is NoRule.UNDEFINED:
        return state_text(None, None, None, mangled_ra=False)
    is_signed = row.signing is not RaSigning.NONE
    return state_text(describe_cfa(row.cfa, arch), _rule(row.ra, arch), _rule(row.fp, arch), mangled_ra=is_signed)


def _rule(rule: RegisterRule, arch: Arch) -> str | None:
    return None if rule in _UNCHANGED else describe_rule(rule, arch)
