# SPDX-License-Identifier: Apache-2.0
"""The functions that have lost their rows from one build to the next, by name.

Addresses and sizes differ between builds, so names tell which functions are the same, as often as a name occurs. Code
without a name, of a stripped file, is compared by its bytes for each reason.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.report.coverage import Coverage, Missing, share
from cfi2sframe.report.tables import Cell, Column, Report, Table
from cfi2sframe.text import counted

#: How much of a function is missing, for each kind.
_RANKS: Final = {"in part": 1}
_ALL: Final = 2
_COLUMNS: Final = (
    *(Column("bytes", ","), Column("before"), Column("now"), Column("why"), Column("address"), Column("function")),
    Column("file"),
)


class Covered(NamedTuple):
    """The account of a file, with every place that is missing, and the names of all its functions."""

    coverage: Coverage
    symbols: frozenset[str]


class Lost(NamedTuple):
    """A function of the new file that has fewer rows than in the old one, or code without a name (empty `function`).

    `before` is "described", "in part", or "absent": the old file has no such function; of code without a name it is
    empty. `now`, `message` and `address` are `kind`, `message` and `address` of its first `Missing`, and `size` counts
    bytes, of code without a name those that are more than before. A file without any CFI now has lost all of its code.
    """

    file: str
    function: str
    symbol: str
    before: str
    now: str
    message: str
    address: int
    size: int


class Change(NamedTuple):
    """A file of both builds, or of one (no account), and what has lost its rows."""

    file: str
    old: Coverage | None
    new: Coverage | None
    lost: tuple[Lost, ...]


def changes_of(
    old: Mapping[str, Covered], new: Mapping[str, Covered], without_cfi: Mapping[str, str]
) -> tuple[Change, ...]:
    """Return the changes between the files of two builds by name; `without_cfi` says why new files have no account."""
    changes = []
    for name in sorted({**old, **new}):
        before, after = old.get(name), new.get(name)
        lost: tuple[Lost, ...] = ()
        if after is not None:
            lost = tuple(_lost(name, before, after))
        elif before is not None and name in without_cfi:
            size = before.coverage.described_size
            lost = (Lost(name, "", "", "described", "without CFI", without_cfi[name], 0, size),)
        changes.append(Change(name, before and before.coverage, after and after.coverage, lost))
    return tuple(changes)


def _lost(file: str, before: Covered | None, after: Covered) -> Iterator[Lost]:
    """Yield what has lost rows: named functions by address, then code without a name by kind and reason."""
    known = frozenset[str]() if before is None else before.symbols
    old_named, old_unnamed = _by_name(() if before is None else before.coverage.missing)
    named, unnamed = _by_name(after.coverage.missing)
    for symbol, functions in named.items():
        olds = old_named.get(symbol, [])
        # A name may be that of several functions: those that are missing most are compared first.
        for number, places in enumerate(functions):
            old_rank = _rank(olds[number]) if number < len(olds) else 0
            if _rank(places) > old_rank:
                first, size = places[0], sum(place.size for place in places)
                state = "in part" if old_rank else "described" if symbol in known else "absent"
                words = (state, first.kind, first.message, first.address)
                yield Lost(file, first.function, symbol, *words, size)
    for key, places in unnamed.items():
        # Damaged FDEs have no size.
        old_size, size = (sum(place.size or 1 for place in some) for some in (old_unnamed.get(key, ()), places))
        if size > old_size:
            first = max(places, key=lambda place: place.size)
            yield Lost(file, "", "", "", *key, first.address, size - old_size)


def _by_name(
    missing: Iterable[Missing],
) -> tuple[dict[str, list[list[Missing]]], dict[tuple[str, str], list[Missing]]]:
    """Return the functions that lack rows by symbol, with their places; and other places by kind and reason."""
    named: dict[str, list[list[Missing]]] = defaultdict(list)
    unnamed: dict[tuple[str, str], list[Missing]] = defaultdict(list)
    # The holes of a function are neighbours.
    for (symbol, *_), places in groupby(missing, lambda each: (each.symbol, each.section, each.function_address)):
        if symbol:
            named[symbol].append(list(places))
        else:
            for place in places:
                unnamed[place.kind, place.message].append(place)
    for functions in named.values():
        functions.sort(key=_rank, reverse=True)
    return named, unnamed


def _rank(places: Sequence[Missing]) -> int:
    return _RANKS.get(places[0].kind, _ALL)


def coverage_comparison(changes: Sequence[Change], *, top: int | None) -> Report:
    """Return the report of changes, which names the `top` largest losses."""
    lost = sorted((each for change in changes for each in change.lost), key=lambda each: -each.size)
    columns = _COLUMNS if len(changes) > 1 else _COLUMNS[:-1]
    rows: list[list[Cell]] = []
    for each in lost[:top]:
        cells: list[Cell] = [
            each.size,
            each.before,
            each.now,
            each.message,
            f"0x{each.address:x}",
            each.function,
            each.file,
        ]
        rows.append(cells[: len(columns)])
    notes = [f"{len(lost) - len(rows):,} more not shown; use --top all."] if len(lost) > len(rows) else []
    data = [
        {
            "file": change.file,
            **_sizes("old", change.old),
            **_sizes("new", change.new),
            "lost": [{key: value for key, value in each._asdict().items() if key != "file"} for each in change.lost],
        }
        for change in changes
    ]
    tables = [Table("Newly without rows", columns, rows)] if rows else []
    return Report(_headline(changes), tables, notes, {"schema": SCHEMA_VERSION, "files": data})


def _headline(changes: Sequence[Change]) -> str:
    lost = [each for change in changes for each in change.lost]
    named = sum(bool(each.symbol) for each in lost)
    unnamed = sum(each.size for each in lost if not each.symbol)
    what = [f"{counted(named, 'function')}"] if named else []
    what += [f"{counted(unnamed, 'byte')} without a name"] if unnamed else []
    before, now = (
        share(sum(each.described_size for each in side), sum(each.code_size for each in side))
        for side in (
            [change.old for change in changes if change.old is not None],
            [change.new for change in changes if change.new is not None],
        )
    )
    found = f"newly without rows: {', '.join(what) or 'nothing'}"
    return f"{found}; described: {before or 'no code'} before, {now or 'no code'} now"


def _sizes(side: str, coverage: Coverage | None) -> dict[str, int]:
    sizes = (0, 0) if coverage is None else (coverage.code_size, coverage.described_size)
    return dict(zip((f"{side}_code_size", f"{side}_described_size"), sizes, strict=True))
