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
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.range_map import Span, holder_of, touches, united, walk
from cfi2sframe.sframe.model import FrameState, Section
from cfi2sframe.sframe.read import DecodedSection
from cfi2sframe.stubs import StubScan
from cfi2sframe.text import counted
from cfi2sframe.verification.reader_checks import Breaches
from cfi2sframe.verification.readers import unmet_demands
from cfi2sframe.verification.row_difference import attribute_difference, row_difference
from cfi2sframe.verification.section_column import FoundState, function_ends, section_column
from cfi2sframe.verification.truth import NOTHING, Claim, Fde, Truth, fdes_with_code, padding_between, truth_column

Kind = Literal["wrong", "missing", "extra", "invariant", "unusual"]


class Difference(NamedTuple):
    """Where a section differs from what it should contain.

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
    difference.
    """

    function_count: int
    point_count: int
    left_out_count: int
    differences: tuple[Difference, ...]
    is_compared: bool = True
    notes: tuple[Difference, ...] = ()

    def __repr__(self) -> str:
        found = counted(len(self.differences), "difference") if self.differences else "no difference"
        return f"<Verification: {found}, {counted(self.function_count, 'FDE')} at {self.point_count:,} addresses>"

    @property
    def is_clean(self) -> bool:
        """Whether the section was compared and there are no differences."""
        return self.is_compared and not self.differences


class _Problems(NamedTuple):
    """How an answer differs from a claim: in the row, and in what holds for all rows of its function."""

    of_row: tuple[str, ...] = ()
    of_function: tuple[str, ...] = ()


class _Mismatch(NamedTuple):
    """Addresses `[start, end)` over which a section says something else than what is claimed."""

    start: int
    end: int
    claim: Claim
    answer: FoundState | None
    problems: _Problems


_NO_FUNCTION: Final = _Problems(("no function",))
_NO_CLAIM: Final = _Problems(("no CFI",))


def verify_section(image: ElfImage, truth: Truth, section: Section) -> Verification:
    """Compare a section with the image's CFI and stubs; if it was read, check also what readers rely on.

    `truth` is for the section's version. At the addresses of PLT stubs their instructions are the truth, everywhere
    else the CFI of the best source that has an FDE there.
    """
    fdes = fdes_with_code(truth.entries, image)
    padding = padding_between(fdes, truth)
    claimed, claims = truth_column(truth, fdes, padding, image.arch)
    found, answers = section_column(section, claimed.starts)

    counts = Counter(map(itemgetter(2, 3), walk(claimed, found)))
    point_count = sum([count for (claim, _), count in counts.items() if claim])
    problems = {
        (claim, answer): problem
        for claim, answer in counts
        if any(problem := _problems(claims[claim], answers[answer], image.arch, section.version))
    }
    mismatches = [
        _Mismatch(start, end, claims[claim], answers[answer], problems[claim, answer])
        for start, end, claim, answer in (walk(claimed, found) if problems else ())
        if (claim, answer) in problems and (answer or holder_of(padding, Span(start, end)) is None)
    ]
    absent, left_out_count = _absences([m for m in mismatches if m.answer is None], fdes, truth, section)
    extra = _extra([m for m in mismatches if m.claim is NOTHING], section)
    wrong = _wrong([m for m in mismatches if m.answer is not None and m.claim is not NOTHING], fdes, section)
    broken, unusual = _of_bytes(section, image)
    differences = _ordered([*broken, *absent, *extra, *wrong])
    function_count = _function_count(fdes, truth.stubs)
    return Verification(function_count, point_count, left_out_count, differences, notes=_ordered(unusual))


def _ordered(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    return tuple(sorted(set(differences), key=lambda d: (d.vaddr, d.kind, d.message)))


def _of_bytes(section: Section, image: ElfImage) -> tuple[list[Difference], list[Difference]]:
    """Return what the bytes of a section that was read break, and what they have that is unusual."""
    if not isinstance(section, DecodedSection):
        return [], []
    vaddr_of_section = section.vaddr

    def differences(kind: Kind, breaches: Breaches) -> list[Difference]:
        return [Difference(kind, vaddr_of_section if vaddr is None else vaddr, message) for vaddr, message in breaches]

    unmet = unmet_demands(section, image)
    return differences("invariant", unmet.broken), differences("unusual", unmet.unusual)


def _function_count(fdes: Sequence[Fde], stubs: StubScan) -> int:
    """Return how many FDEs describe code that is not all stubs, as all reports count functions."""
    in_stubs = united((stub.start_vaddr, stub.end_vaddr) for stub in stubs.functions)
    starts = [fde.start for fde in fdes]
    near = [(fdes[bisect_left(starts, span.start) : bisect_left(starts, span.end)], span.end) for span in in_stubs]
    return len(fdes) - sum(fde.end <= end for some, end in near for fde in some)


def _problems(claim: Claim, answer: FoundState | None, arch: Arch, version: int) -> _Problems:
    if answer is None:
        return _Problems() if claim is NOTHING else _NO_FUNCTION
    if claim is NOTHING:
        return _NO_CLAIM
    attributes, state = answer
    if claim.state is not None:
        if state == claim.state:
            return _Problems()
        texts = (_state_text(one, arch) for one in (claim.state, state))
        return _Problems(("the stub has {}, the row has {}".format(*texts),))
    # A key has an effect only where the RA is signed, and assemblers differ in it elsewhere.
    signs_ra = state is not None and state.mangled_ra
    rows = [row_difference(row, state, arch) for _, row in claim.rows]
    functions = [attribute_difference(cie, attributes, version, signs_ra=signs_ra) for cie, _ in claim.rows]
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


def _wrong(found: Sequence[_Mismatch], fdes: Sequence[Fde], section: Section) -> Iterator[Difference]:
    """Report rows where they differ; attributes where the part of the FDE's function starts that has them."""
    for vaddr, _, claim, _, problems in found:
        for problem in problems.of_row:
            yield Difference("wrong", vaddr, problem)
        for problem in problems.of_function:
            begin = _fdes_at(vaddr, claim, fdes)[0].start
            starts = section.ascending.starts
            yield Difference("wrong", max(begin, starts[bisect_right(starts, vaddr) - 1]), problem)


def _fdes_at(vaddr: int, claim: Claim, fdes: Sequence[Fde]) -> Sequence[Fde]:
    """Return the FDEs that a claim of rows is of."""
    return claim.fdes or (fdes[bisect_right(fdes, vaddr, key=lambda fde: fde.start) - 1],)


def _extra(found: Sequence[_Mismatch], section: Section) -> Iterator[Difference]:
    """Report functions at addresses that neither CFI nor stubs describe."""
    starts = section.ascending.starts
    for _, group in groupby(found, key=lambda mismatch: bisect_right(starts, mismatch.start)):
        for start, end in united(mismatch[:2] for mismatch in group):
            yield Difference("extra", start, f"no CFI for {end - start} bytes of a function")


def _absences(
    found: Sequence[_Mismatch], fdes: Sequence[Fde], truth: Truth, section: Section
) -> tuple[list[Difference], int]:
    """Return which stubs and FDEs should have a function and lack one, and how many FDEs rightly lack one or parts."""
    holes = united(truth.holes)
    stub_starts = [stub.start_vaddr for stub in truth.stubs.functions]
    absent: set[Fde] = set()
    wanted: set[Fde] = set()
    missing: list[Difference] = []
    for vaddr, _, claim, _, _ in found:
        if claim.state is not None:
            start = stub_starts[bisect_right(stub_starts, vaddr) - 1]
            missing.append(Difference("missing", start, "no SFrame FDE for a PLT stub"))
            continue
        candidates = _fdes_at(vaddr, claim, fdes)
        absent.update(candidates)
        if not touches(holes, Span(vaddr, vaddr + 1)) and not any(fde.entry in truth.skipped for fde in candidates):
            wanted.update(candidates)
    functions = list(map(Span, section.ascending.starts, function_ends(section))) if absent else []
    left_out_count = 0
    for fde in absent:
        may_be_absent = fde.entry in truth.may_lack_parts and not touches(functions, Span(fde.start, fde.end))
        if fde in wanted and not may_be_absent:
            missing.append(Difference("missing", fde.start, "no SFrame FDE, though this version can express it"))
        elif fde.entry in truth.skipped or touches(holes, Span(fde.start, fde.end)):
            left_out_count += 1
    return missing, left_out_count
