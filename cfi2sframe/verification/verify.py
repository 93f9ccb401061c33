# SPDX-License-Identifier: Apache-2.0
"""Compare a section with the CFI and the stubs of its file: two columns of addresses, walked together.

At each address where either column changes, the section's answer has to be what the other column claims. Pairs of a
claim and an answer are compared once.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, Literal, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.constants.sframe import SFRAME_VERSION_3
from cfi2sframe.dwarf.fdes import CfiEntries
from cfi2sframe.dwarf.rules import RowState
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.references import referred_addresses
from cfi2sframe.errors import ElfError
from cfi2sframe.range_map import ADDRESS_END, Span, holder_of, touches, united, walk_both
from cfi2sframe.sframe.model import FrameState, FunctionBody, Section
from cfi2sframe.sframe.read import DecodedSection
from cfi2sframe.text import counted
from cfi2sframe.verification.code import StubRows, padding_ends, stub_rows
from cfi2sframe.verification.expressible import Row, row_for
from cfi2sframe.verification.reader_checks import Breaches
from cfi2sframe.verification.readers import refused_functions, unmet_demands
from cfi2sframe.verification.row_difference import attribute_difference, row_difference
from cfi2sframe.verification.section_column import FoundState, function_ends, section_column
from cfi2sframe.verification.truth import NOTHING, UNJUDGED, Claim, Fde, Judged, Numbers, fdes_with_code, truth_column

Kind = Literal["wrong", "missing", "extra", "invariant", "unusual"]


class Asked(NamedTuple):
    """A request for a section: its version and errata (None: those that it has), and the reader that it is for.

    Functions that this reader does not take may be absent. `in_parts`: functions that can be expressed in part have to
    be there in part, as this package writes them; other producers leave them out. `over_padding`: functions reach over
    the padding after them, as this package's do.
    """

    version: int | None = None
    errata: int | None = None
    reader: str | None = None
    in_parts: bool = False
    over_padding: bool = False


#: Another producer's section.
NOT_ASKED: Final = Asked()


class Difference(NamedTuple):
    """A place where a section differs from what it should contain.

    `vaddr` is a virtual address in the code; of an `invariant`, the function's start or the section's address. `wrong`:
    a row or an attribute differs. `missing`: there is no function, though the version can express it. `extra`: neither
    CFI nor stubs describe the address. `invariant`: the specification demands something else. `unusual`: it allows
    this, and some readers do not take it.
    """

    kind: Kind
    vaddr: int
    message: str

    def __repr__(self) -> str:
        return f"0x{self.vaddr:x}: {self.kind}: {self.message}"


class Verification(NamedTuple):
    """The result: how much was compared, and all differences.

    `function_count` FDEs, without those of PLT stubs, were compared at `point_count` addresses. `left_out_count` FDEs
    are absent, or in part, because the version cannot express them, which is no difference. Not `is_compared`: the
    file has no CFI for its section, and only what readers require was checked. `notes` are what is unusual, and no
    difference. `judged` has the addresses by what they were compared with.
    """

    function_count: int
    point_count: int
    left_out_count: int
    differences: tuple[Difference, ...]
    is_compared: bool = True
    notes: tuple[Difference, ...] = ()
    judged: Judged = Judged()

    def __repr__(self) -> str:
        verdict = counted(len(self.differences), "difference") if self.differences else "no difference"
        return f"<Verification: {verdict}, {counted(self.function_count, 'FDE')} at {self.point_count:,} addresses>"

    @property
    def is_clean(self) -> bool:
        """True if the section was compared and there are no differences."""
        return self.is_compared and not self.differences


class _Problems(NamedTuple):
    """The ways that an answer differs from a claim: in the row, and in what holds for all rows of its function."""

    of_row: tuple[str, ...] = ()
    of_function: tuple[str, ...] = ()


class _Mismatch(NamedTuple):
    """Addresses `[start, end)` over which the answer of a section does not agree with the claim."""

    start: int
    end: int
    claim: Claim
    answer: FoundState | None
    problems: _Problems


#: Compilers align functions at this by default.
_ALIGNMENT: Final = 16
#: All versions store a function's size in 32 bits.
_MAX_FUNCTION_SIZE: Final = 0xFFFFFFFF
_NO_FUNCTION: Final = _Problems(("no function",))
_NO_CLAIM: Final = _Problems(("no CFI",))


def verify_section(image: ElfImage, entries: CfiEntries, section: Section, asked: Asked = NOT_ASKED) -> Verification:
    """Compare a section with an image's CFI and stubs; if it was read, check also what readers rely on.

    At the addresses of PLT stubs their instructions are the truth, everywhere else the CFI of the best source that has
    an FDE there. Over the padding after an FDE, a function may be absent.
    """
    fdes = fdes_with_code(entries, image)
    padding = padding_after(fdes, image)
    held = [(start, padding.get(end, end)) for start, _, end in fdes]
    stubs = [] if image.is_relocatable else stub_rows(image, section, held)
    errata = section.errata if asked.errata is None else asked.errata
    limits = _Limits(image, entries, section.version, asked._replace(errata=errata))
    numbers = Numbers(limits.answer_to)
    claimed = truth_column(entries, fdes, padding, stubs, numbers, image.arch)
    answered = section_column(section, claimed.starts, numbers.of_answer)

    point_count = 0
    unlike: list[tuple[int, int, int, int]] = []
    for step in walk_both(claimed, answered):
        _, _, claim, answer = step
        if claim != answer:
            unlike.append(step)
        elif claim:
            point_count += 1
    counts = Counter(map(itemgetter(2, 3), unlike))
    problems = {
        (claim, answer): problem
        for claim, answer in counts
        if any(problem := limits.problems(numbers.claims[claim], numbers.answer(answer)))
    }
    mismatches = [
        _Mismatch(start, end, numbers.claims[claim], numbers.answer(answer), problems[claim, answer])
        for start, end, claim, answer in unlike
        if (claim, answer) in problems
    ]
    unanswered = [Span(m.start, m.end) for m in mismatches if m.answer is None]
    gaps = [Span(start, end) for start, end in padding.items()] if unanswered else []
    in_gaps = {span: holder_of(gaps, span) for span in unanswered}
    lacking = [m for m in mismatches if m.answer is None and in_gaps[Span(*m[:2])] is None]
    absent, left_out_count = _absences(lacking, fdes, stubs, limits, section)
    # Without sections, nothing tells whether padding after a PLT belongs to it.
    if asked.over_padding and image.sections:
        bare = [gap for gap in in_gaps.values() if gap is not None and section.holder_of(gap.start - 1) is not None]
        absent += _bare_padding(sorted(set(bare)), fdes, image)
    extra = _extra([m for m in mismatches if m.claim is NOTHING], section)
    wrong = _wrong([m for m in mismatches if m.answer is not None and m.claim is not NOTHING], fdes, section)
    broken, unusual = _of_bytes(section, image)
    if asked.version not in (None, section.version):
        broken.append(Difference("invariant", 0, f"version {section.version}, not {asked.version}"))
    differences = _ordered([*broken, *absent, *extra, *wrong])
    # The claims of other evidence have numbers of their own.
    judged = Counter[str](cfi=point_count)
    for (claim, answer), count in counts.items():
        if claim and answer:
            judged[numbers.claims[claim].evidence] += count
    counted_by = Judged(**judged)
    function_count = _function_count(fdes, stubs)
    notes = _ordered(unusual)
    return Verification(function_count, sum(counted_by), left_out_count, differences, notes=notes, judged=counted_by)


def padding_after(fdes: Sequence[Fde], image: ElfImage) -> dict[int, int]:
    """Return the end of the padding after FDEs, by its start: it ends at the next FDE at the latest."""
    ends: list[int] = []
    limits: list[int] = []
    last = 0
    for start, _, end in fdes:
        if start > last > 0:
            ends.append(last)
            limits.append(start)
        last = max(last, end)
    return padding_ends(image, [*ends, last], [*limits, ADDRESS_END])


def _bare_padding(gaps: Sequence[Span], fdes: Sequence[Fde], image: ElfImage) -> Iterator[Difference]:
    """Yield a difference for padding that the function before it should reach over, and does not.

    That is sure where padding fills the few bytes up to the next function or the end of the code, if no table of the
    file leads into it. The linker decides what follows the last function of an object's section.
    """
    if any(section.is_stored and section.file_span.end > len(image.data) for section in image.sections):
        # Nothing is sure with false headers.
        return
    starts = [fde.start for fde in fdes]
    ends = {code.end_vaddr for code in image.code_ranges if not image.is_relocatable}
    sure = [
        gap
        for gap in gaps
        if gap.end - gap.start < _ALIGNMENT
        and (gap.end in ends or gap.end in starts[bisect_left(starts, gap.end) :][:1])
    ]
    try:
        referred = sorted(referred_addresses(image)) if sure else []
    except ElfError:
        return
    for gap in sure:
        if bisect_left(referred, gap.start) == bisect_left(referred, gap.end):
            yield Difference("missing", gap.start, "the function before this padding does not reach over it")


def _ordered(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    return tuple(sorted(set(differences), key=lambda d: (d.vaddr, d.kind, d.message)))


def _of_bytes(section: Section, image: ElfImage) -> tuple[list[Difference], list[Difference]]:
    """Return the demands that the bytes of a section break, if it was read, and what is unusual in them."""
    if not isinstance(section, DecodedSection):
        return [], []
    vaddr_of_section = section.vaddr

    def differences(kind: Kind, breaches: Breaches) -> list[Difference]:
        return [Difference(kind, vaddr_of_section if vaddr is None else vaddr, message) for vaddr, message in breaches]

    unmet = unmet_demands(section, image)
    return differences("invariant", unmet.broken), differences("unusual", unmet.unusual)


def _function_count(fdes: Sequence[Fde], stubs: Sequence[StubRows]) -> int:
    """Return how many FDEs describe code that is not all stubs, as all reports count functions."""
    in_stubs = united(stub[:2] for stub in stubs if stub.state)
    starts = [fde.start for fde in fdes]
    near = [(fdes[bisect_left(starts, span.start) : bisect_left(starts, span.end)], span.end) for span in in_stubs]
    return len(fdes) - sum(fde.end <= end for some, end in near for fde in some)


def _unless_one_agrees(problems: Sequence[str | None]) -> tuple[str, ...]:
    return () if None in problems else tuple([problem for problem in problems if problem is not None])


def _state_text(state: FrameState | None, arch: Arch) -> str:
    if state is None:
        return "nothing"
    if state.cfa is None:
        return "RA undefined"
    rules = (("CFA", state.cfa), ("RA", state.ra), ("FP", state.fp))
    return " ".join(f"{name}={rule.text(arch)}" for name, rule in rules if rule)


def _wrong(mismatches: Sequence[_Mismatch], fdes: Sequence[Fde], section: Section) -> Iterator[Difference]:
    """Report rows where they differ; attributes where the part of the FDE's function starts that has them."""
    for vaddr, _, claim, _, problems in mismatches:
        for problem in problems.of_row:
            yield Difference("wrong", vaddr, problem)
        for problem in problems.of_function:
            begin = _fdes_at(vaddr, claim, fdes)[0].start
            starts = section.ascending.starts
            yield Difference("wrong", max(begin, starts[bisect_right(starts, vaddr) - 1]), problem)


def _fdes_at(vaddr: int, claim: Claim, fdes: Sequence[Fde]) -> Sequence[Fde]:
    """Return the FDEs that have the rows of a claim."""
    return claim.fdes or (fdes[bisect_right(fdes, vaddr, key=lambda fde: fde.start) - 1],)


def _extra(mismatches: Sequence[_Mismatch], section: Section) -> Iterator[Difference]:
    """Report functions at addresses that neither CFI nor stubs describe."""
    starts = section.ascending.starts
    for _, group in groupby(mismatches, key=lambda mismatch: bisect_right(starts, mismatch.start)):
        for start, end in united(mismatch[:2] for mismatch in group):
            yield Difference("extra", start, f"no CFI for {counted(end - start, 'byte')} of a function")


class _Limits:
    """The limits that a version, or the reader that is asked for, sets to a file's FDEs."""

    def __init__(self, image: ElfImage, entries: CfiEntries, version: int, asked: Asked) -> None:
        self._image, self._entries, self._version, self.asked = image, entries, version, asked
        self._rows: dict[RowState, Row | None] = {}

    def problems(self, claim: Claim, answer: FoundState | None) -> _Problems:
        """Return how an answer differs from a claim."""
        if claim is UNJUDGED:
            return _Problems()
        if answer is None:
            return _Problems() if claim is NOTHING else _NO_FUNCTION
        if claim is NOTHING:
            return _NO_CLAIM
        state, arch = answer.state, self._image.arch
        if claim.state is not None:
            if state == claim.state:
                return _Problems()
            wanted, shown = _state_text(claim.state, arch), _state_text(state, arch)
            return _Problems((f"the stub has {wanted}, the row has {shown}",))
        rows = [row_difference(row, state, arch) for _, row in claim.rows]
        functions = [attribute_difference(cie, answer, self._version) for cie, _ in claim.rows]
        return _Problems(_unless_one_agrees(rows), _unless_one_agrees(functions))

    def answer_to(self, claim: Claim) -> FoundState | None:
        """Return the one answer that agrees with a claim of one FDE, if the version has it; None for other claims."""
        if len(claim.rows) != 1 or claim.fdes or claim.evidence != "cfi":
            return None
        ((cie, row),) = claim.rows
        sframe_row = self.row(row)
        if sframe_row is None:
            return None
        is_signal_frame = cie.is_signal_frame and self._version >= SFRAME_VERSION_3
        answer = FoundState.of(sframe_row.state, is_signal_frame=is_signal_frame, uses_b_key=cie.uses_b_key)
        return None if any(self.problems(claim, answer)) else answer

    def row(self, row: RowState) -> Row | None:
        """Return the row that the version has for one of the DWARF table; None where it has none."""
        if row not in self._rows:
            self._rows[row] = row_for(row, self._image.arch, self._version, self.asked.errata or 0)
        return self._rows[row]

    def rows_of(self, fde: Fde) -> list[Row | None]:
        """Return the rows of an FDE."""
        return list(map(self.row, self._entries.program(fde.entry).table.states))

    def is_refused(self, fde: Fde) -> bool:
        """Return whether the version, or the reader, takes no part of an FDE, whatever its rows."""
        if fde.end - fde.start > _MAX_FUNCTION_SIZE:
            return True
        rows = [row for row in self.rows_of(fde) if row is not None]
        if self.asked.reader is None or not rows:
            return False
        body = FunctionBody(
            tuple(range(len(rows))), tuple([row.state for row in rows]), any(r.is_flexible for r in rows)
        )
        alone = Section(self._version, self._image.arch.abi_id, (fde.start,), (fde.end - fde.start,), (body,))
        return bool(refused_functions(self.asked.reader, alone, self._image))

    def is_partial(self, fde: Fde) -> bool:
        """Return whether the version cannot express all rows of an FDE, or the FDE reaches past the code."""
        return None in self.rows_of(fde) or fde.entry in self._entries.clipped


def _absences(
    lacking: Sequence[_Mismatch], fdes: Sequence[Fde], stubs: Sequence[StubRows], limits: _Limits, section: Section
) -> tuple[list[Difference], int]:
    """Return which stubs and FDEs should have a function and lack one, and how many FDEs rightly lack one or parts."""
    due = [Span(stub.start, stub.end) for stub in stubs if stub.is_due]
    absent: set[Fde] = set()
    wanted: set[Fde] = set()
    bare: list[Span] = []
    for vaddr, end, claim, _, _ in lacking:
        if claim.state is not None:
            if holder_of(due, Span(vaddr, vaddr + 1)) is not None:
                bare.append(Span(vaddr, end))
            continue
        candidates = _fdes_at(vaddr, claim, fdes)
        absent.update(candidates)
        if claim.evidence == "plt_cfi":
            # Rows of a PLT whose instructions are unknown may be wrong, but need not exist.
            continue
        if all(limits.row(row) for _, row in claim.rows) and not any(map(limits.is_refused, candidates)):
            wanted.update(candidates)
    functions = list(map(Span, section.ascending.starts, function_ends(section))) if absent else []
    missing = [
        Difference("missing", start, f"no SFrame FDE for {counted(end - start, 'byte')} of PLT stubs")
        for start, end in united(bare)
    ]
    left_out_count = 0
    for fde in absent:
        is_partial = limits.is_partial(fde)
        may_be_absent = is_partial and not limits.asked.in_parts and not touches(functions, Span(fde.start, fde.end))
        if fde in wanted and not may_be_absent:
            missing.append(Difference("missing", fde.start, "no SFrame FDE, though this version can express it"))
        elif is_partial or limits.is_refused(fde):
            left_out_count += 1
    return missing, left_out_count
