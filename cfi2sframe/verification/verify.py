# SPDX-License-Identifier: Apache-2.0
"""Compare a section with the CFI and the stubs of its file: two columns of addresses, walked together.

At each address where either column changes, the section's answer has to be what the other column claims. Pairs of a
claim and an answer are compared once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.dwarf.expression import Shapes
from cfi2sframe.elf.ranges import Span, SpanCount, touches, united
from cfi2sframe.verification.answers import SectionFunctions, section_column, with_rows_by_pc, with_stubs
from cfi2sframe.verification.findings import Difference, Verification
from cfi2sframe.verification.invariants import check_invariants
from cfi2sframe.verification.row_difference import attribute_difference, row_difference
from cfi2sframe.verification.truth import ADDRESS_END, ANYTHING, NOTHING, fdes_with_code, truth_column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.abi import Arch
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.instructions.stub_records import StubScan
    from cfi2sframe.sframe.model import FrameState, Section
    from cfi2sframe.verification.answers import FoundState
    from cfi2sframe.verification.truth import AddressColumn, Claim, Fdes, Truth


def verify_section(image: ElfImage, truth: Truth, section: Section) -> Verification:
    """Compare a section with the image's CFI and stubs, and check invariants.

    `truth` is for the section's version. At the addresses of PLT stubs their instructions are the truth, everywhere
    else the CFI of the best source that has an FDE there.
    """
    functions, fdes = SectionFunctions.of(section), fdes_with_code(truth.entries, image)
    of_fdes = truth_column(truth, fdes, functions.own_ends)
    claims, missed = with_stubs(with_rows_by_pc(of_fdes, image.arch, functions), truth.stubs, functions)
    answers = section_column(functions, claims.addresses)
    problems = _Comparisons(image, section.version, claims, answers)
    point_count, points = _walk(claims, answers, problems)

    differences = set(check_invariants(section, image))
    differences.update([Difference("missing", vaddr, "no SFrame FDE for a PLT stub") for vaddr in missed])
    for vaddr, claim, answer in points:
        if claim > ANYTHING and answer:
            of_row, of_function = problems[claim, answer]
            differences.update([Difference("wrong", vaddr, problem) for problem in of_row])
            start = max(_begin_of(claims.answers[claim], vaddr, fdes), functions.start_before(vaddr))
            differences.update([Difference("wrong", start, problem) for problem in of_function])
    if any(claim == NOTHING for _, claim, _ in points):
        differences.update(_extra(claims, functions))
    gaps = [(vaddr, claims.answers[claim]) for vaddr, claim, answer in points if claim > ANYTHING and not answer]
    absences = _absences(gaps, fdes, truth, functions)
    differences.update(absences.missing)
    ordered = sorted(differences, key=lambda d: (d.vaddr, d.kind, d.message))
    count = _function_count(fdes, truth.stubs)
    return Verification(count, len(missed) + point_count, absences.left_out_count, tuple(ordered))


def _function_count(fdes: Fdes, stubs: StubScan) -> int:
    """Return how many FDEs describe code that is not all stubs, as all reports count functions."""
    in_stubs = SpanCount(united((stub.start_vaddr, stub.start_vaddr + stub.size) for stub in stubs.functions))
    return sum(in_stubs.between(*span) < span[1] - span[0] for span in zip(fdes.starts, fdes.ends, strict=True))


def _walk(
    claims: AddressColumn[Claim], answers: AddressColumn[FoundState | None], problems: _Comparisons
) -> tuple[int, list[tuple[int, int, int]]]:
    """Return at how many addresses something is claimed and either column changes, and where the two disagree.

    Those are addresses with the numbers of claim and answer.
    """
    here, there = [*claims.addresses, ADDRESS_END], [*answers.addresses, ADDRESS_END]
    claimed, answered = claims.numbers, answers.numbers
    found: list[tuple[int, int, int]] = []
    count = ours = theirs = vaddr = 0
    while vaddr < ADDRESS_END:
        claim, answer = claimed[ours], answered[theirs]
        if claim > ANYTHING:
            count += 1
        if any(problems[claim, answer]):
            found.append((vaddr, claim, answer))
        our_next, their_next = here[ours + 1], there[theirs + 1]
        if our_next <= their_next:
            ours += 1
            vaddr = our_next
        if their_next <= our_next:
            theirs += 1
            vaddr = their_next
    return count, found


class _Problems(NamedTuple):
    """How an answer differs from a claim: in the row, and in what holds for all rows of its function."""

    of_row: tuple[str, ...] = ()
    of_function: tuple[str, ...] = ()


class _Comparisons(dict[tuple[int, int], _Problems]):
    """How answers differ from claims, by their numbers in two columns. Each pair is compared once."""

    def __init__(
        self, image: ElfImage, version: int, claims: AddressColumn[Claim], answers: AddressColumn[FoundState | None]
    ) -> None:
        super().__init__()
        self._arch, self._version = image.arch, version
        self._claims, self._answers = claims.answers, answers.answers
        self._shapes = Shapes(image.byte_order)

    def __missing__(self, pair: tuple[int, int]) -> _Problems:
        number, answer = pair[0], self._answers[pair[1]]
        found = self[pair] = self._compare(number, self._claims[number], answer)
        return found

    def _compare(self, number: int, claim: Claim, answer: FoundState | None) -> _Problems:
        if number == ANYTHING or (answer is None and (number == NOTHING or claim.is_padding)):
            return _Problems()
        if number == NOTHING or answer is None:
            return _Problems(("no CFI" if number == NOTHING else "no function",))
        body, state = answer
        if claim.state is not None:
            if state == claim.state:
                return _Problems()
            texts = (_state_text(one, self._arch) for one in (claim.state, state))
            return _Problems(("the stub has {}, the row has {}".format(*texts),))
        # A key has an effect only where the RA is signed, and assemblers differ in it elsewhere.
        signs_ra = state is not None and state.mangled_ra
        rows = [row_difference(row, state, self._arch, self._shapes) for _, row in claim.rows]
        functions = [attribute_difference(cie, body, self._version, signs_ra=signs_ra) for cie, _ in claim.rows]
        return _Problems(_unless_one_agrees(rows), _unless_one_agrees(functions))


def _unless_one_agrees(problems: Sequence[str | None]) -> tuple[str, ...]:
    return () if None in problems else tuple([problem for problem in problems if problem is not None])


def _state_text(state: FrameState | None, arch: Arch) -> str:
    if state is None:
        return "nothing"
    if state.cfa is None:
        return "RA undefined"
    rules = (("CFA", state.cfa), ("RA", state.ra), ("FP", state.fp))
    return " ".join(f"{name}={rule.equation(arch)}" for name, rule in rules if rule)


def _begin_of(claim: Claim, vaddr: int, fdes: Fdes) -> int:
    """Return the start of the FDE that unwinders find at an address."""
    return claim.overlap.begin_vaddr if claim.overlap else fdes.starts[bisect_right(fdes.starts, vaddr) - 1]


def _extra(claims: AddressColumn[Claim], functions: SectionFunctions) -> Iterator[Difference]:
    """Report functions at addresses that neither CFI nor stubs describe."""
    edges = pairwise([*claims.addresses, ADDRESS_END])
    unknown = united([edge for edge, number in zip(edges, claims.numbers, strict=True) if number == NOTHING])
    ends = [span.end for span in unknown]
    for start, end in zip(functions.starts, functions.ends, strict=True):
        for span in unknown[bisect_right(ends, start) :]:
            if span.start >= end:
                break
            first, last = max(start, span.start), min(end, span.end)
            if first < last:
                yield Difference("extra", first, f"no CFI for {last - first} bytes of a function")


class _Absences(NamedTuple):
    """Which FDEs lack a function: those that should have one, and how many rightly lack it, or parts of it."""

    missing: list[Difference]
    left_out_count: int


def _absences(gaps: Sequence[tuple[int, Claim]], fdes: Fdes, truth: Truth, functions: SectionFunctions) -> _Absences:
    """Judge the addresses of FDEs that no function holds, with what is claimed there."""
    holes = united(truth.holes)
    missing: list[Difference] = []
    left_out_count = 0
    clusters = list(fdes.clusters()) if gaps else []
    starts = [fdes.starts[first] for first, _, _ in clusters]
    for place, group in groupby(gaps, key=lambda gap: bisect_right(starts, gap[0]) - 1):
        first, last, _ = clusters[place]
        # Of each source that speaks: where no function is, and where one should be.
        absent: dict[int, list[int]] = defaultdict(list)
        wanted: dict[int, list[int]] = defaultdict(list)
        for vaddr, claim in group:
            overlap = claim.overlap
            rank = overlap.rank if overlap else 0
            absent[rank].append(vaddr)
            is_skipped = overlap.may_be_absent if overlap else fdes.numbers[first] in truth.skipped
            if not is_skipped and not touches(holes, Span(vaddr, vaddr + 1)):
                wanted[rank].append(vaddr)
        for number, begin, end in zip(*(column[first:last] for column in fdes), strict=True):
            rank = truth.entries.rank_of(number) if last > first + 1 else 0
            may_be_absent = number in truth.may_lack_parts and functions.lack(begin, end)
            is_skipped = number in truth.skipped or touches(holes, Span(begin, end))
            if not may_be_absent and _has_any(wanted[rank], begin, end):
                missing.append(Difference("missing", begin, "no SFrame FDE, though this version can express it"))
            elif is_skipped and _has_any(absent[rank], begin, end):
                left_out_count += 1
    return _Absences(missing, left_out_count)


def _has_any(points: Sequence[int], begin: int, end: int) -> bool:
    """Whether one of ascending points lies in `[begin, end)`."""
    index = bisect_left(points, begin)
    return index < len(points) and points[index] < end
