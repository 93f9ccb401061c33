# SPDX-License-Identifier: Apache-2.0
"""Count every executable byte once, by what describes it, or by why nothing does."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.conversion.fates import Fate
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.padding import code_of, fill_size, gaps_outside
from cfi2sframe.elf.sections import CodeRange
from cfi2sframe.range_map import RangeMap, bytes_of, walk_both
from cfi2sframe.why import Why

#: The kinds of described code: by type of row, PLT stubs, padding after a described function, from instructions.
DESCRIBED: Final = ("default", "flexible", "stub", "padding", "from_code")


class Stretch(NamedTuple):
    """The addresses `[start, end)` of one kind: one of `DESCRIBED`, or the kind of a `coverage.Missing`.

    `reason`, `message` and `detail` say why code is not described, as in `coverage.Missing`. Code without CFI has the
    `name` of its function, if a symbol names it, and the `section` or segment that it is in.
    """

    kind: str
    start: int
    end: int
    reason: str = ""
    message: str = ""
    detail: str = ""
    name: str = ""
    section: str = ""


def count_code(conversion: Conversion) -> tuple[Counter[tuple[str, str]], list[Stretch]]:
    """Return the executable bytes by kind and message, and the code without CFI; the rest of the code is padding."""
    image, stretches = conversion.image, sorted(_accounted(conversion), key=attrgetter("start"))
    held = [stretch for stretch in stretches if stretch.kind != "without CFI"]
    reasons = [stretch for stretch in stretches if stretch.kind == "without CFI"]
    sizes = Counter[tuple[str, str]]()
    for start, end, code, stretch in walk_both(code_of(image), _map_of(held)):
        if code is not None and stretch is not None:
            sizes[stretch.kind, stretch.message] += end - start
    taken = [stretch[1:3] for stretch in held]
    if conversion.cfi.underived:
        # There may be more padding between the functions that instructions have shown.
        gaps = gaps_outside(image, [stretch[1:3] for stretch in stretches])
        taken += [gap for code, gap in gaps if fill_size(image, code, *gap) == gap.end - gap.start]
    uncovered = list(_with_reasons(_without_cfi(image, taken), reasons))
    for stretch in uncovered:
        sizes[stretch.kind, stretch.message] += stretch.end - stretch.start
    return sizes, uncovered


def _map_of(stretches: Iterable[Stretch]) -> RangeMap[Stretch | None]:
    return RangeMap(None, ((stretch.start, stretch.end, stretch) for stretch in stretches))


def _accounted(conversion: Conversion) -> Iterator[Stretch]:
    """Yield what CFI, stubs and instructions account for, and as "without CFI" why they have no rows for some code."""
    for start, end, why in conversion.cfi.underived or ():
        yield Stretch("without CFI", start, end, why.name, why.value)
    for skip in conversion.stubs_left_out:
        end = skip.start_vaddr + skip.size
        yield Stretch("without CFI", skip.start_vaddr, end, skip.reason.name, skip.reason.value, skip.detail)
    fates = conversion.fates
    described_ends = set[int]()
    for start, end, origin, rows in conversion.pieces:
        if origin is None:
            yield Stretch("stub", start, end)
            continue
        fate = fates[origin]
        if isinstance(rows, Why):
            # What the version cannot express counts as if it had not been derived.
            kind = "without CFI" if fate.is_of_code else "in part" if fate is Fate.IN_PARTS else "left out"
            yield Stretch(kind, start, end, rows.reason.name, rows.reason.value, rows.detail)
            continue
        described_ends.add(end)
        yield Stretch("from_code" if fate.is_of_code else "flexible" if rows.is_flexible else "default", start, end)
    for start, end in conversion.padding:
        if start in described_ends:
            yield Stretch("padding", start, end)


def _without_cfi(image: ElfImage, taken: Iterable[tuple[int, int]]) -> Iterator[Stretch]:
    """Yield the code outside of some ranges, a stretch for each function that a symbol names.

    Padding before a function is not code. A function of unknown size reaches to the next one, over padding too.
    """
    gaps = list(gaps_outside(image, taken))
    functions = image.functions(bytes_of(gap for _, gap in gaps)) if gaps else {}
    starts = sorted(functions)
    for code, gap in gaps:
        position = gap.start
        inside = starts[bisect_left(starts, gap.start) : bisect_left(starts, gap.end)]
        for start, following in pairwise((*inside, gap.end)):
            if start < position:
                # A label inside the function before it.
                continue
            yield from _unnamed(image, code, position, start)
            size, name = functions[start].size, functions[start].name
            position = min(gap.end, start + size) if size else following
            yield Stretch("without CFI", start, position, name=name, section=code.name)
        yield from _unnamed(image, code, position, gap.end)


def _unnamed(image: ElfImage, code: CodeRange, start: int, end: int) -> Iterator[Stretch]:
    start += fill_size(image, code, start, end)
    if start < end:
        yield Stretch("without CFI", start, end, section=code.name)


def _with_reasons(stretches: Iterable[Stretch], reasons: Sequence[Stretch]) -> Iterator[Stretch]:
    """Yield ascending stretches with their reasons, which also ascend, cut where these change; the first one counts."""
    reason_at = RangeMap[Stretch | None](None)
    for why in reversed(reasons):
        reason_at.put([why.start], [why], why.end)
    for start, end, stretch, reason in walk_both(_map_of(stretches), reason_at):
        if stretch is not None:
            words = reason or stretch
            yield stretch._replace(
                start=start, end=end, reason=words.reason, message=words.message, detail=words.detail
            )
