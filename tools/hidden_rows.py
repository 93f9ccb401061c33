# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions, derived from a file whose CFI is hidden, held to that CFI; for tools/hidden_cfi.py.

Where two rows differ, the states of the audit, which knows where functions start, say whether both lead to the same
places.
"""

from __future__ import annotations

import gc
from bisect import bisect_left, bisect_right
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from hidden_image import hidden_image

from cfi2sframe.audit.agreement import Judge
from cfi2sframe.audit.auditing import first_of_go
from cfi2sframe.audit.held_code import follow
from cfi2sframe.audit.records import Answer
from cfi2sframe.audit.rows_in_force import RowsInForce
from cfi2sframe.code.rows import RowMaker
from cfi2sframe.code_map import map_code
from cfi2sframe.conversion import read_cfi
from cfi2sframe.describe import describe_rule
from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.dwarf.rules import NoRule, RegisterOffset, RowState
from cfi2sframe.errors import UnfitError
from cfi2sframe.sframe.constants import SFRAME_VERSION_3
from cfi2sframe.sources import find_cfi

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.arch import Arch
    from cfi2sframe.audit.agreement import Opinions
    from cfi2sframe.code.flow import FlowAnalysis
    from cfi2sframe.code.values import State
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.dwarf.rules import RegisterRule
    from cfi2sframe.elf.image import ElfImage

_UNCHANGED: Final = (NoRule.UNSPECIFIED, NoRule.SAME_VALUE)


class Verdict(Enum):
    """What is known of a derived row and of the CFI's at the same address. The value is the text of the table."""

    SAME = "the same row"
    SAME_PLACES = "another row, which leads to the same places"
    CONFIRMED = "another row, which the instructions confirm; they do not tell of the CFI's"
    WRONG = "wrong: the instructions contradict the derived row"
    CFI_WRONG = "the instructions contradict the CFI"
    OUTERMOST = "only one of the rows says that there is no caller"
    SIGNAL_FRAME = "the CFI describes interrupted code (a signal frame)"
    UNDECIDED = "another row, and the instructions do not tell"
    ONE_WRONG = "the CFA at another distance from the same register: one row is wrong, and nothing tells which"
    NOT_REACHED = "another row, where no known path leads"


#: Verdicts that say nothing against either row, and those that somebody has to look at.
SOUND: Final = frozenset((Verdict.SAME, Verdict.SAME_PLACES, Verdict.SIGNAL_FRAME))
WRONG: Final = frozenset((Verdict.WRONG, Verdict.ONE_WRONG))


class Pair(NamedTuple):
    """Addresses where a derived row and a row of the CFI are both in force; `number` is that of the CFI's FDE."""

    vaddr: int
    end_vaddr: int
    derived: RowState
    cfi: RowState
    number: int


class Difference(NamedTuple):
    """Addresses with one verdict, which is not among `SOUND`, and the two rows as text.

    `function_vaddr` is where the function's FDE starts, `name` its symbol, empty without one.
    """

    vaddr: int
    size: int
    function_vaddr: int
    name: str
    verdict: Verdict
    derived_row: str
    cfi_row: str


class Comparison(NamedTuple):
    """The result for a file: functions (FDEs), bytes of their code, of those with a derived row, and by verdict."""

    function_count: int
    code_size: int
    derived_size: int
    sizes: dict[Verdict, int]
    differences: tuple[Difference, ...]


def compare(image: ElfImage, *, strip: bool = False) -> Comparison:
    """Hide the CFI of an image, derive rows, and compare these with the CFI where both are; PLT stubs are left out.

    `strip` hides symbols, too. Raises `UnfitError` when there is no CFI, or it cannot be hidden; else as `read_cfi`.
    """
    entries = read_programs(image, find_cfi(image, None)).entries
    rows = RowsInForce(image, entries)
    pieces = map_code(image, entries, SFRAME_VERSION_3).pieces
    derived = _derived_rows(hidden_image(image, strip=strip))
    sizes: Counter[Verdict] = Counter()
    unlike: list[Pair] = []
    for start, end in zip(pieces.starts, pieces.ends, strict=True):
        for pair in _pairs(derived, rows, start, end):
            if _is_same(pair.derived, pair.cfi):
                sizes[Verdict.SAME] += pair.end_vaddr - pair.vaddr
            else:
                unlike.append(pair)
    differences: list[Difference] = []
    if unlike:
        judged = list(_Judged(image, rows, unlike).verdicts())
        names = image.names_of({entries.starts[pair.number] for pair, verdict in judged if verdict not in SOUND})
        for pair, verdict in judged:
            sizes[verdict] += pair.end_vaddr - pair.vaddr
            if verdict not in SOUND:
                differences.append(_difference(pair, verdict, image.arch, entries, names))
    code_size = sum(pieces.ends) - sum(pieces.starts)
    return Comparison(len(set(pieces.numbers)), code_size, sum(sizes.values()), dict(sizes), tuple(differences))


def _derived_rows(hidden: ElfImage) -> RowsInForce:
    try:
        entries = read_cfi(hidden, "code").entries
    except UnfitError:
        # No rows follow from the instructions.
        entries = read_programs(hidden, find_cfi(hidden, "code")).entries
    # What was followed is a cycle of the garbage, which would still be there when the file itself is followed.
    gc.collect()
    return RowsInForce(hidden, entries)


def _pairs(derived: RowsInForce, rows: RowsInForce, vaddr: int, end_vaddr: int) -> Iterator[Pair]:
    """Yield the pairs of rows between two addresses."""
    while vaddr < end_vaddr:
        ours, theirs = derived.at(vaddr), rows.at(vaddr)
        end = min(end_vaddr, ours.end_vaddr, theirs.end_vaddr)
        if ours.row is not None and theirs.row is not None and theirs.number is not None:
            yield Pair(vaddr, end, ours.row, theirs.row, theirs.number)
        vaddr = end


def _is_same(one: RowState, other: RowState) -> bool:
    if _is_outermost(one) or _is_outermost(other):
        return _is_outermost(one) and _is_outermost(other)
    if (one.cfa, one.signing) != (other.cfa, other.signing):
        return False
    return _plain(one.ra) == _plain(other.ra) and _plain(one.fp) == _plain(other.fp)


def _is_outermost(row: RowState) -> bool:
    """Whether a row says that there is no caller; its CFA has no meaning then."""
    return row.ra is NoRule.UNDEFINED


def _plain(rule: RegisterRule) -> RegisterRule:
    return NoRule.UNSPECIFIED if rule in _UNCHANGED else rule


class _Judged:
    """Judges pairs of rows that differ by the states of the audit; the pairs ascend."""

    def __init__(self, image: ElfImage, rows: RowsInForce, pairs: list[Pair]) -> None:
        self.flow = follow(image, rows)
        self.judge = Judge(image.arch, self.flow.arch)
        self.maker = RowMaker(self.flow.arch)
        self.pairs = pairs
        entries = rows.entries
        self._first_of_go = first_of_go(image, entries)
        signal_frames = {program.number for program in entries.programs if program.cie.is_signal_frame}
        self._interrupted = {p.number for p in pairs if entries.program_numbers[p.number] in signal_frames}

    def verdicts(self) -> Iterator[tuple[Pair, Verdict]]:
        """Yield each pair, or the parts of it that have different states, with its verdict; addresses ascend."""
        position = index = 0
        for vaddr, end_vaddr, state in _states(self.flow, self.pairs):
            while index < len(self.pairs) and self.pairs[index].vaddr < end_vaddr:
                pair = self.pairs[index]
                start = max(vaddr, pair.vaddr, position)
                position = max(position, pair.vaddr)
                if position < min(start, pair.end_vaddr):
                    stop = min(start, pair.end_vaddr)
                    yield pair._replace(vaddr=position, end_vaddr=stop), self._unreached(pair)
                    position = stop
                stop = min(end_vaddr, pair.end_vaddr)
                if start < stop:
                    yield pair._replace(vaddr=start, end_vaddr=stop), self._reached(pair, state, start)
                    position = stop
                if pair.end_vaddr > end_vaddr:
                    break
                index += 1
        for pair in self.pairs[index:]:
            start = max(position, pair.vaddr)
            if start < pair.end_vaddr:
                yield pair._replace(vaddr=start), self._unreached(pair)

    def _unreached(self, pair: Pair) -> Verdict:
        if pair.number in self._interrupted:
            return Verdict.SIGNAL_FRAME
        return Verdict.ONE_WRONG if _is_one_wrong(pair) else Verdict.NOT_REACHED

    def _reached(self, pair: Pair, state: State, vaddr: int) -> Verdict:
        if pair.number in self._interrupted:
            return Verdict.SIGNAL_FRAME
        if _is_outermost(pair.derived) or _is_outermost(pair.cfi):
            return Verdict.OUTERMOST
        # Where both rows say the same of FP, as in helpers that overwrite it, they do not differ by that.
        has_fp = _plain(pair.derived.fp) != _plain(pair.cfi.fp)
        ours = self.judge.opinions(pair.derived, state, vaddr, has_fp=has_fp)
        if Answer.CONTRADICTS in _answers(ours):
            return Verdict.WRONG
        theirs = self.judge.opinions(pair.cfi, state, vaddr, has_fp=has_fp and pair.number < self._first_of_go)
        if Answer.CONTRADICTS in _answers(theirs):
            return Verdict.CFI_WRONG
        if Answer.UNDECIDED in _answers(ours):
            return Verdict.ONE_WRONG if _is_one_wrong(pair) else Verdict.UNDECIDED
        if pair.derived.signing != pair.cfi.signing:
            row = self.maker.row_of(state)
            if not isinstance(row, RowState):
                return Verdict.UNDECIDED
            return Verdict.CFI_WRONG if row.signing == pair.derived.signing else Verdict.WRONG
        return Verdict.CONFIRMED if Answer.UNDECIDED in _answers(theirs) else Verdict.SAME_PLACES


def _is_one_wrong(pair: Pair) -> bool:
    ours, theirs = pair.derived.cfa, pair.cfi.cfa
    if not (isinstance(ours, RegisterOffset) and isinstance(theirs, RegisterOffset)):
        return False
    return ours.register == theirs.register and ours.offset != theirs.offset


def _answers(opinions: Opinions) -> tuple[Answer, ...]:
    return tuple([opinion.answer for opinion in opinions])


def _states(flow: FlowAnalysis, pairs: list[Pair]) -> Iterator[tuple[int, int, State]]:
    """Yield the states of a flow near some pairs, with the addresses they hold for; an address has the first of them.

    A state changes when the next one is asked for.
    """
    ends = [pair.end_vaddr for pair in pairs]
    starts = [pair.vaddr for pair in pairs]
    position = 0
    for start in sorted(flow.states):
        block = flow.blocks[start]
        if bisect_right(ends, start) == bisect_left(starts, block.end_vaddr):
            continue
        state = flow.states[start].copy()
        vaddr = start
        for change in block.changes:
            if max(vaddr, position) < change.end_vaddr:
                yield max(vaddr, position), change.end_vaddr, state
            for step in change.steps:
                flow.machine.apply(state, step, change.vaddr)
            vaddr = change.end_vaddr
        if max(vaddr, position) < block.end_vaddr:
            yield max(vaddr, position), block.end_vaddr, state
        position = max(position, block.end_vaddr)


def _difference(pair: Pair, verdict: Verdict, arch: Arch, entries: CfiEntries, names: dict[int, str]) -> Difference:
    start = entries.starts[pair.number]
    texts = (_text(pair.derived, arch), _text(pair.cfi, arch))
    return Difference(pair.vaddr, pair.end_vaddr - pair.vaddr, start, names.get(start, ""), verdict, *texts)


def _text(row: RowState, arch: Arch) -> str:
    rules = f"CFA {describe_rule(row.cfa, arch)}, RA {describe_rule(row.ra, arch)}, FP {describe_rule(row.fp, arch)}"
    return f"{rules}, {row.signing.name.lower()}"


def joined(differences: Iterable[Difference]) -> Iterator[Difference]:
    """Yield ascending differences, neighbours that say the same as one."""
    last: Difference | None = None
    for each in differences:
        if last is not None and each[2:] == last[2:] and each.vaddr == last.vaddr + last.size:
            last = last._replace(size=last.size + each.size)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last
