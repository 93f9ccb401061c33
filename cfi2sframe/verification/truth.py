# SPDX-License-Identifier: Apache-2.0
"""The claims about each address of a file: by the instructions of stubs, elsewhere by FDEs.

Only this module of verification reads DWARF's rows.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.dwarf.entries import DwarfCie
from cfi2sframe.dwarf.expression import rules_by_pc
from cfi2sframe.dwarf.fdes import CfiEntries, FdeIndex
from cfi2sframe.dwarf.rules import RowState
from cfi2sframe.elf.cfi import CfiKind
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.range_map import Distinct, RangeMap, Span, holder_of, united
from cfi2sframe.sframe.model import FrameState
from cfi2sframe.verification.code import StubRows
from cfi2sframe.verification.section_column import FoundState

#: A row is compared with at most this many FDEs of its address. Linkers produce two or three; a hostile file may have
#: thousands, and comparing all of them at each of their edges would be quadratic.
MAX_CANDIDATES: Final = 16


#: The evidence for a claim, by the fields of `Judged`.
Evidence = Literal["cfi", "go_table", "plt_cfi", "plt_code", "none"]
_OF_SOURCES: Final[dict[CfiKind, Evidence]] = {"gopclntab": "go_table", "code": "none"}


class Fde(NamedTuple):
    """An FDE that describes code, by its index, and its virtual addresses `[start, end)`."""

    start: int
    entry: FdeIndex
    end: int


class Judged(NamedTuple):
    """The number of addresses at which a section was compared, by evidence.

    `cfi`: FDEs. `go_table`: Go's table of functions. `plt_cfi`: FDEs of a PLT, evaluated at each PC. `plt_code`: its
    instructions, executed. `none`: what this package has derived from instructions, of a PLT too, which nothing else
    confirms.
    """

    cfi: int = 0
    go_table: int = 0
    plt_cfi: int = 0
    plt_code: int = 0
    none: int = 0

    def __str__(self) -> str:
        counts = self._asdict().items()
        return ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in counts if n or name == "none")


class Claim(NamedTuple):
    """A demand on an answer: one of `rows` is in force, each with the CIE of its FDE, or, in a stub, `state`.

    `fdes` are those of the rows where FDEs overlap: first the one that unwinders find.
    """

    rows: tuple[tuple[DwarfCie, RowState], ...] = ()
    state: FrameState | None = None
    fdes: tuple[Fde, ...] = ()
    evidence: Evidence = "cfi"


#: No function may be here.
NOTHING: Final = Claim()
#: Code of a PLT whose effect is unknown: its rows are not judged.
UNJUDGED: Final = Claim(evidence="none")


def fdes_with_code(entries: CfiEntries, image: ElfImage) -> list[Fde]:
    """Return the FDEs that describe code, by start, without those whose code is all described by better sources."""
    accepted: list[Fde] = []
    for group in entries.precedence:
        fdes = sorted([Fde(entries.starts[n], n, entries.starts[n] + entries.sizes[n]) for n in group])
        denied = set(image.not_code([fde.start for fde in fdes], [fde.end for fde in fdes]))
        fdes = [fde for place, fde in enumerate(fdes) if place not in denied and fde.start < fde.end]
        # Only later sources have better ones.
        if accepted:
            held = united((fde.start, fde.end) for fde in accepted)
            fdes = [fde for fde in fdes if holder_of(held, Span(fde.start, fde.end)) is None]
        accepted += fdes
    return sorted(accepted)


class Numbers:
    """Numbers of claims and answers; 0 is `NOTHING`, and no answer.

    A claim with which an answer is known to agree (`answer_to`) has the answer's number, so agreement is seen without
    looking at either. Claims that have one number agree with the same answers.
    """

    def __init__(self, answer_to: Callable[[Claim], FoundState | None]) -> None:
        self._answer_to = answer_to
        self._distinct = Distinct[Claim | FoundState | None](None)
        self._of_claims: dict[Claim, int] = {}
        #: The first claim of each number.
        self.claims: dict[int, Claim] = {0: NOTHING}

    def of_claim(self, claim: Claim) -> int:
        """Return the number of a claim."""
        number = self._of_claims.get(claim)
        if number is None:
            number = self._of_claims[claim] = self._distinct.number_of(self._answer_to(claim) or claim)
            self.claims.setdefault(number, claim)
        return number

    def of_answer(self, answer: FoundState) -> int:
        """Return the number of an answer."""
        return self._distinct.number_of(answer)

    def answer(self, number: int) -> FoundState | None:
        """Return the answer that has a number, or None."""
        value = self._distinct.values[number]
        return value if isinstance(value, FoundState) else None


def truth_column(
    entries: CfiEntries,
    fdes: Sequence[Fde],
    padding_ends: Mapping[int, int],
    stubs: Iterable[StubRows],
    numbers: Numbers,
    arch: Arch,
) -> RangeMap[int]:
    """Return the claims of FDEs and stubs at each address, as numbers.

    The last row of an FDE is claimed over the padding after it, too.
    """
    column = RangeMap(0)

    @cache
    def claim_of(cie: DwarfCie, row: RowState, evidence: Evidence) -> int:
        return numbers.of_claim(Claim(((cie, row),), evidence=evidence))

    # Few lists of rows are distinct.
    @cache
    def claims_of(cie: DwarfCie, states: tuple[RowState, ...], evidence: Evidence) -> list[int]:
        return [claim_of(cie, row, evidence) for row in states]

    program_of = entries.program_of
    evidence_of: dict[int, Evidence] = {
        program_of[fde]: evidence for kind, evidence in _OF_SOURCES.items() for fde in entries.sources.get(kind, ())
    }
    programs = [
        (table.starts, claims_of(cie, table.states, evidence_of.get(number, "cfi")))
        for number, (cie, table, _) in enumerate(entries.programs)
    ]
    for cluster in _clusters(fdes):
        if len(cluster) == 1:
            start, entry, end = cluster[0]
            deltas, claimed = programs[program_of[entry]]
            starts = [start + delta for delta in deltas]
        else:
            starts, claimed, end = _overlapping(numbers, entries, cluster, evidence_of)
        column.append(starts, claimed, padding_ends.get(end, end))
    _evaluate_at_pcs(column, numbers, arch)
    for start, end, state, _ in stubs:
        if state is not None:
            column.put([start], [numbers.of_claim(Claim(state=state, evidence="plt_code"))], end)
            continue
        vaddr = start
        while vaddr < end:
            _, following, claim = column.range_at(vaddr)
            if not claim:
                column.put([vaddr], [numbers.of_claim(UNJUDGED)], min(following, end))
            vaddr = following
    return column


def _clusters(fdes: Sequence[Fde]) -> Iterator[list[Fde]]:
    """Yield the runs of FDEs that overlap; most runs are one FDE."""
    cluster: list[Fde] = []
    end = 0
    for fde in fdes:
        if cluster and fde.start >= end:
            yield cluster
            cluster = []
        cluster.append(fde)
        end = max(end, fde.end)
    if cluster:
        yield cluster


def _overlapping(
    numbers: Numbers, entries: CfiEntries, fdes: Sequence[Fde], evidence_of: Mapping[int, Evidence]
) -> tuple[list[int], list[int], int]:
    """Return the claims of FDEs that overlap, sorted by start: addresses, the numbers of claims, and their end.

    Any FDE of the best source at an address may be the truth. The first one is that which unwinders find: the FDE that
    starts last, and of several such the first in the section.
    """
    keys = {fde: (entries.rank_of(fde.entry), -fde.start, place) for place, fde in enumerate(fdes)}
    opening, closing = list(reversed(fdes)), sorted(fdes, key=lambda fde: -fde.end)
    live: list[tuple[int, int, int]] = []
    starts: list[int] = []
    claimed: list[int] = []
    for low, high in pairwise(sorted({edge for fde in fdes for edge in (fde.start, fde.end)})):
        while closing[-1].end <= low:
            del live[bisect_left(live, keys[closing.pop()])]
        while opening and opening[-1].start <= low:
            insort(live, keys[opening.pop()])
        best = tuple([fdes[place] for rank, _, place in live[:MAX_CANDIDATES] if rank == live[0][0]])
        programs = [entries.program(fde.entry) for fde in best]
        points = {low}
        for fde, program in zip(best, programs, strict=True):
            # An FDE may have thousands of rows, and only few of them in this range.
            deltas = program.table.starts
            first, last = bisect_right(deltas, low - fde.start), bisect_left(deltas, high - fde.start)
            points.update([fde.start + delta for delta in deltas[first:last]])
        starts += sorted(points)
        for vaddr in sorted(points):
            rows = [
                (program.cie, program.table.states[bisect_right(program.table.starts, vaddr - fde.start) - 1])
                for fde, program in zip(best, programs, strict=True)
            ]
            evidence = evidence_of.get(entries.program_of[best[0].entry], "cfi")
            claimed.append(numbers.of_claim(Claim(tuple(rows), fdes=best, evidence=evidence)))
    return starts, claimed, max(fde.end for fde in fdes)


def _evaluate_at_pcs(column: RangeMap[int], numbers: Numbers, arch: Arch) -> None:
    """Give a CFA that depends on the PC its value at each address: that of a linker's PLT."""
    blocks_of: dict[int, tuple[int, list[tuple[int, int]]]] = {}
    # Thousands of rows may have one expression.
    rules_of = cache(partial(rules_by_pc, arch=arch))
    for index, claim in list(numbers.claims.items()):
        evaluation = rules_of(claim.rows[0][1].cfa) if len(claim.rows) == 1 else None
        if evaluation is not None:
            ((cie, row),) = claim.rows
            rows = [row._replace(cfa=rule) for rule in evaluation.rules]
            evaluated = [numbers.of_claim(claim._replace(rows=((cie, row),), evidence="plt_cfi")) for row in rows]
            blocks_of[index] = evaluation.size, list(zip(evaluation.deltas, evaluated, strict=True))
    places = [place for place, index in enumerate(column.values) if index in blocks_of] if blocks_of else ()
    for start, end, index in [column.range_at(column.starts[place]) for place in places]:
        column.put(*_repeated(start, end, *blocks_of[index]), end)


def _repeated(start: int, end: int, size: int, rows: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the rows in `[start, end)` of aligned blocks of `size` bytes, as columns."""
    blocks = range(start - start % size, end, size)
    row_at = {max(start, block + delta): row for block in blocks for delta, row in rows if block + delta < end}
    return list(row_at), list(row_at.values())
