# SPDX-License-Identifier: Apache-2.0
"""The rows of a section and of the CFI of its file at one address, and their agreement, as `verify` judges it."""

from bisect import bisect_right
from typing import Literal, NamedTuple

from cfi2sframe.constants.sframe import SFRAME_VERSION_3
from cfi2sframe.dwarf.fdes import CfiEntries
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RowState, describe_cfa, describe_rule
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.sframe.model import Found, Section, state_text
from cfi2sframe.verification.code import stub_rows
from cfi2sframe.verification.expressible import row_for
from cfi2sframe.verification.row_difference import attribute_difference, row_difference
from cfi2sframe.verification.section_column import FoundState
from cfi2sframe.verification.truth import NOTHING, UNJUDGED, Claim, Numbers, fdes_with_code, truth_column
from cfi2sframe.verification.verify import padding_after

Verdict = Literal["agree", "differ", "cannot be expressed", "only the section", "only the CFI", "neither"]


class HeldRow(NamedTuple):
    """The row in force at an address, as text, and its holder: a function, an FDE, or a part of a PLT.

    `source` is a section, or "PLT stub": its instructions. `start` is the row's start, counted from `vaddr`; None where
    the function's rows start later.
    """

    source: str
    vaddr: int
    size: int
    start: int | None
    row: str


class LookedUp(NamedTuple):
    """The rows of the section and of the CFI (None: they have nothing), and how they differ."""

    section: HeldRow | None
    cfi: HeldRow | None
    verdict: Verdict
    difference: str = ""


class Lookup:
    """Looks addresses of an image up in a section and in CFI; None where the image has none."""

    def __init__(self, image: ElfImage, entries: CfiEntries | None, section: Section | None) -> None:
        self._arch, self._section = image.arch, section
        self._entries = entries or CfiEntries((), (), (), (), (), (), {})
        self._fdes = fdes_with_code(self._entries, image)
        # Without a section, only names tell where stubs are.
        hints = Section(SFRAME_VERSION_3, image.arch.abi_id) if section is None else section
        stubs = [] if image.is_relocatable else stub_rows(image, hints, [(fde.start, fde.end) for fde in self._fdes])
        # With no answers to share, each claim has a number of its own.
        self._numbers = Numbers(lambda _claim: None)
        padding = padding_after(self._fdes, image)
        self._claimed = truth_column(self._entries, self._fdes, padding, stubs, self._numbers, image.arch)

    def at(self, vaddr: int) -> LookedUp:
        """Return the rows at a virtual address; in an object, of the image's layout."""
        answer = None if self._section is None else self._section.find(vaddr)
        ours = None
        if answer is not None:
            function, row = answer.function, answer.row
            start = None if row is None else row.start_delta
            ours = HeldRow(".sframe", function.start_vaddr, function.size, start, repr(answer))
        claim, theirs = self._claim_at(vaddr)
        # Functions may end before the padding after them.
        if theirs is None or (answer is None and theirs.vaddr + theirs.size <= vaddr):
            return LookedUp(ours, None, "neither" if answer is None else "only the section")
        return LookedUp(ours, theirs, *self._verdict(claim, answer))

    def _claim_at(self, vaddr: int) -> tuple[Claim, HeldRow | None]:
        """Return the claim of stubs or FDEs, and their row: where FDEs overlap, that of the one that unwinders find."""
        start, end, number = self._claimed.range_at(vaddr)
        claim = self._numbers.claims[number]
        if claim.state is not None:
            cfa, ra, fp = (None if rule is None else rule.text(self._arch) for rule in claim.state[:3])
            return claim, HeldRow("PLT stub", start, end - start, 0, state_text(cfa, ra, fp, mangled_ra=False))
        if claim in (NOTHING, UNJUDGED):
            return claim, None
        fde = claim.fdes[0] if claim.fdes else self._fdes[bisect_right(self._fdes, vaddr, key=lambda f: f.start) - 1]
        starts = self._entries.program(fde.entry).table.starts
        start = starts[bisect_right(starts, vaddr - fde.start) - 1]
        source, size = self._entries[fde.entry].section.name, fde.end - fde.start
        return claim, HeldRow(source, fde.start, size, start, self._text(claim.rows[0][1]))

    def _text(self, row: RowState) -> str:
        """Return a row of the DWARF table as text, in the form that `Found` has for one of a section."""
        if row.ra is NoRule.UNDEFINED:
            return state_text(None, None, None, mangled_ra=False)
        ra, fp = (
            None if rule in (NoRule.UNSPECIFIED, NoRule.SAME_VALUE) else describe_rule(rule, self._arch)
            for rule in (row.ra, row.fp)
        )
        return state_text(describe_cfa(row.cfa, self._arch), ra, fp, mangled_ra=row.signing is not RaSigning.NONE)

    def _verdict(self, claim: Claim, answer: Found | None) -> tuple[Verdict, str]:
        """Return the verdict on a section's answer where CFI or a stub claims something, and the difference."""
        section, arch = self._section, self._arch
        if section is None:
            return "only the CFI", ""
        if answer is None:
            has_rows = all(row_for(row, arch, section.version, section.errata) for _, row in claim.rows)
            return ("differ", "no function") if has_rows else ("cannot be expressed", "")
        if claim.state is not None:
            is_same = answer.state == claim.state
            return ("agree", "") if is_same else ("differ", "the instructions of the stub say otherwise")
        body = answer.function.body
        state = FoundState.of(answer.state, is_signal_frame=body.is_signal_frame, uses_b_key=body.uses_b_key)
        for differences in (
            [row_difference(row, answer.state, arch) for _, row in claim.rows],
            [attribute_difference(cie, state, section.version) for cie, _ in claim.rows],
        ):
            # Of several FDEs, any may be the truth.
            if None not in differences:
                return "differ", str(differences[0])
        return "agree", ""
