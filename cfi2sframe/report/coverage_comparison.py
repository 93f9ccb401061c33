# SPDX-License-Identifier: Apache-2.0
"""The functions that have lost their rows from one build to the next, by name.

Addresses and sizes differ between builds, so names tell which functions are the same, as often as a name occurs. Code
without a name, of a stripped file, is compared by its bytes for each reason.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Final, NamedTuple

from cfi2sframe.report.coverage import Coverage, Missing, share
from cfi2sframe.report.tables import Column, Report, Table, cells_of
from cfi2sframe.text import counted

#: Columns, and the field that each shows.
_COLUMNS: Final = {
    Column("bytes", ","): "size",
    Column("before"): "before",
    Column("now"): "now",
    Column("why"): "message",
    Column("address", "#x"): "address",
    Column("function"): "function",
    Column("file"): "file",
}


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
    """A file of both builds, or of one: bytes of code, of these described, and what has lost its rows."""

    file: str
    old_code_size: int
    old_described_size: int
    new_code_size: int
    new_described_size: int
    lost: tuple[Lost, ...]


def changes_of(
    old: Mapping[str, Covered], new: Mapping[str, Covered], without_cfi: Mapping[str, str]
) -> tuple[Change, ...]:
    """Return the changes between the files of two builds by name; `without_cfi` says why new files have no account."""
    changes = []
    for name in sorted({**old, **new}):
        before, after = old.get(name), new.get(name)
        accounts = [covered and covered.coverage for covered in (before, after)]
        sizes = [(account.code_size, account.described_size) if account else (0, 0) for account in accounts]
        lost = () if after is None else tuple(_lost(name, before, after))
        if after is None and name in without_cfi:
            lost = (Lost(name, "", "", "described", "without CFI", without_cfi[name], 0, sizes[0][1]),)
        changes.append(Change(name, *sizes[0], *sizes[1], lost))
    return tuple(changes)


def _lost(file: str, before: Covered | None, after: Covered) -> Iterator[Lost]:
    """Yield what has lost rows: named functions by address, then code without a name by kind and reason."""
    missing, symbols = (before.coverage.missing, before.symbols) if before else ((), frozenset[str]())
    old_named, old_unnamed = _by_name(missing)
    named, unnamed = _by_name(after.coverage.missing)
    for symbol, functions in named.items():
        # A name may be that of several functions: those that are missing most are compared first.
        olds = old_named.get(symbol, [])[: len(functions)]
        for places, old_places in zip_longest(functions, olds, fillvalue=list[Missing]()):
            if _rank(places) > _rank(old_places):
                first, size = places[0], sum(place.size for place in places)
                state = "in part" if old_places else "described" if symbol in symbols else "absent"
                yield Lost(file, first.function, symbol, state, first.kind, first.message, first.address, size)
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
    for (symbol, *_), places in groupby(missing, lambda place: (place.symbol, place.section, place.function_address)):
        if symbol:
            named[symbol].append(list(places))
            named[symbol].sort(key=_rank, reverse=True)
        else:
            for place in places:
                unnamed[place.kind, place.message].append(place)
    return named, unnamed


def _rank(places: Sequence[Missing]) -> int:
    """Return how much of a function is missing: nothing, a part, or all."""
    return 0 if not places else 1 if places[0].kind == "in part" else 2


def coverage_comparison(changes: Sequence[Change], *, top: int | None) -> Report:
    """Return the report of changes, which names the `top` largest losses."""
    lost = sorted((loss for change in changes for loss in change.lost), key=lambda loss: -loss.size)
    columns = {column: name for column, name in _COLUMNS.items() if name != "file" or len(changes) > 1}
    rows = [cells_of(loss, columns) for loss in lost[:top]]
    notes = [f"{len(lost) - len(rows):,} more not shown; use --top all."] if len(lost) > len(rows) else []
    files = [{**change._asdict(), "lost": [loss._asdict() for loss in change.lost]} for change in changes]
    tables = [Table("Newly without rows", list(columns), rows)] if rows else []
    return Report(_headline(changes, lost), tables, notes, {"files": files})


def _headline(changes: Sequence[Change], lost: Sequence[Lost]) -> str:
    named, unnamed = sum(bool(loss.symbol) for loss in lost), sum(loss.size for loss in lost if not loss.symbol)
    what = [counted(named, "function")] * bool(named) + [f"{counted(unnamed, 'byte')} without a name"] * bool(unnamed)
    sums = [sum(sizes) for sizes in zip(*(change[1:5] for change in changes), strict=True)]
    before, now = share(sums[1], sums[0]) or "no code", share(sums[3], sums[2]) or "no code"
    return f"newly without rows: {', '.join(what) or 'nothing'}; described: {before} before, {now} now"
