# SPDX-License-Identifier: Apache-2.0
"""What was made of the code that no CFI covers, from its instructions, and why the rest of it is not described.

The bytes of such code are those that `ByteCounts` has as `from_code` and as `uncovered`; each of the latter has one
reason.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.lower import Hole, InParts, Skip

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.code.code_reasons import CodeReason
    from cfi2sframe.conversion import Conversion
    from cfi2sframe.plt.stub_reasons import StubReason
    from cfi2sframe.reasons import SkipReason
    from cfi2sframe.report.without_cfi import UncoveredCode

#: What code counts for of which the analysis has said nothing.
_WITHOUT_REASON: Final = "no reason is known"


class StretchCounts(NamedTuple):
    """Stretches of code of one reason: their number, and their bytes."""

    stretches: int = 0
    bytes: int = 0


class FromCode(NamedTuple):
    """What was made of the code that no CFI covers.

    `functions` with rows were derived: `described` of them from start to end, `in_parts` with holes, and `left_out`
    cannot be expressed in the version at all. `reasons` counts what is not described by reason, as sentences: the bytes
    are those that `ByteCounts` has as `uncovered`.
    """

    functions: int
    described: int
    in_parts: int
    left_out: int
    reasons: dict[str, StretchCounts]


class Underivable(NamedTuple):
    """Code at `[start_vaddr, end_vaddr)` that is not described from its instructions, and why.

    A `SkipReason` is that of rows which were derived, and which the version cannot express; PLT stubs are not analysed
    as other code is, and have a `StubReason`.
    """

    start_vaddr: int
    end_vaddr: int
    reason: CodeReason | SkipReason | StubReason | None
    detail: str


def account_of_code(
    conversion: Conversion, uncovered: Sequence[UncoveredCode]
) -> tuple[FromCode | None, dict[int, Underivable]]:
    """Return the account, and why most of each stretch of `uncovered`, which ascend, has no rows, by its start.

    There is none where nobody asked for rows from instructions.
    """
    if conversion.cfi.underived is None:
        return None, {}
    numbers = [n for n in conversion.cfi.derived_numbers if n not in conversion.code_map.dropped]
    in_parts = sum(number in conversion.outcomes.in_parts for number in numbers)
    left_out = sum(number in conversion.outcomes.skipped for number in numbers)
    counts: dict[str, StretchCounts] = {}
    main_reasons: dict[int, Underivable] = {}
    known = underivable(conversion)
    place = 0
    for stretch in uncovered:
        while place < len(known) and known[place].end_vaddr <= stretch.start_vaddr:
            place += 1
        sizes = Counter[Underivable]()
        for part in _parts(stretch, known, place):
            size = part.end_vaddr - part.start_vaddr
            text = part.reason.value if part.reason else _WITHOUT_REASON
            stretches, total = counts.get(text, StretchCounts())
            counts[text] = StretchCounts(stretches + 1, total + size)
            sizes[part._replace(start_vaddr=stretch.start_vaddr, end_vaddr=stretch.end_vaddr)] += size
        main_reasons[stretch.start_vaddr] = sizes.most_common(1)[0][0]
    described = len(numbers) - in_parts - left_out
    account = FromCode(len(numbers), described, in_parts, left_out, dict(sorted(counts.items())))
    return account, main_reasons


def underivable(conversion: Conversion) -> list[Underivable]:
    """Return why code without CFI is not described, in ascending order, without overlaps."""
    found: list[Underivable] = []
    end = 0
    every = [
        *(Underivable(*item, "") for item in conversion.cfi.underived or ()),
        *(
            Underivable(s.start_vaddr, s.start_vaddr + s.size, s.reason, s.detail)
            for s in conversion.code_map.stubs.left_out
        ),
        *_inexpressible(conversion),
    ]
    for item in sorted(every, key=_start_of):
        start = max(item.start_vaddr, end)
        if start < item.end_vaddr:
            found.append(item._replace(start_vaddr=start))
            end = item.end_vaddr
    return found


def _inexpressible(conversion: Conversion) -> Iterator[Underivable]:
    """Yield the code whose rows were derived, and which the version cannot express."""
    derived = conversion.cfi.derived_numbers
    results, starts = conversion.outcomes.results, conversion.cfi.entries.starts
    for number, start, end in zip(*conversion.code_map.pieces, strict=True):
        if number not in derived:
            continue
        result, vaddr = results[number], starts[number]
        if isinstance(result, Skip):
            yield Underivable(start, end, result.reason, result.detail)
        elif isinstance(result, InParts):
            for first, last, part in result.within(start - vaddr, end - vaddr):
                if isinstance(part, Hole):
                    yield Underivable(vaddr + first, vaddr + last, part.why.reason, part.why.detail)


def _parts(stretch: UncoveredCode, known: Sequence[Underivable], place: int) -> Iterator[Underivable]:
    """Yield the parts of a stretch by reason; `place` is the first of `known` that may have some."""
    position = stretch.start_vaddr
    while position < stretch.end_vaddr:
        item = known[place] if place < len(known) else None
        place += 1
        if item is None or item.start_vaddr >= stretch.end_vaddr:
            yield Underivable(position, stretch.end_vaddr, None, "")
            return
        if position < item.start_vaddr:
            yield Underivable(position, item.start_vaddr, None, "")
        end = min(item.end_vaddr, stretch.end_vaddr)
        yield Underivable(max(position, item.start_vaddr), end, item.reason, item.detail)
        position = end


def _start_of(item: Underivable) -> int:
    return item.start_vaddr
