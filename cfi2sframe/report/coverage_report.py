# SPDX-License-Identifier: Apache-2.0
"""An account as a report, as warnings and as one line: how much code is described, what is missing, and why."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from cfi2sframe.report.coverage import SUMMED, Coverage, Missing, MissingSum, coverage_data, share
from cfi2sframe.report.tables import (
    MAX_BARS,
    Bar,
    Cell,
    Chart,
    Column,
    Report,
    Table,
    cells_of,
    column_sums,
    common_directory,
    file_column,
)
from cfi2sframe.text import counted, printable

_BYTES: Final = (
    ("default_size", "described by default rows"),
    ("flexible_size", "described by flexible rows"),
    ("stub_size", "PLT stubs, described by their instructions"),
    ("from_code_size", "described from instructions, without CFI"),
    ("padding_size", "padding covered by the preceding function"),
    ("left_out_size", "left out"),
    ("without_cfi_size", "without CFI"),
)
#: Columns, and the field that each shows.
_FILE_COLUMNS: Final = {
    Column("described", "s"): "described_share",
    Column("bytes of code", ","): "code_size",
    Column("without CFI", ","): "without_cfi_size",
    Column("left out", ","): "left_out_size",
    Column("functions", ","): "function_count",
    Column("not in full", ","): "incomplete_count",
}


def coverage_report(accounts: Sequence[Coverage], *, top: int | None = None) -> Report:
    """Return the report of one file or more, which names the `top` largest missing places."""
    total = accounts[0] if len(accounts) == 1 else add_accounts(accounts)
    tables = list(_tables_of_one(total)) if len(accounts) == 1 else [_table_of_several(accounts, total)]
    tables += _why_tables(total)
    places = _places_table(accounts, top)
    if places.rows:
        tables.append(places)
    notes = list(_notes(total, sum(part.place_count for part in total.missing_sums) - len(places.rows)))
    data = {"files": [coverage_data(account) for account in accounts]}
    return Report(f"{total.file}: {headline(total)}", tables, notes, data, chart=_chart(accounts))


def _chart(accounts: Sequence[Coverage]) -> Chart:
    """Return the chart of what describes each file's code; of many files, those with the most code."""
    largest = sorted(accounts, key=lambda account: -account.code_size)[:MAX_BARS]
    bars = [Bar(file.file, file.described_share, [getattr(file, name) for name, _ in _BYTES]) for file in largest]
    return Chart([text for _, text in _BYTES], bars)


def add_accounts(accounts: Sequence[Coverage]) -> Coverage:
    """Return the sums of several accounts, without what is missing."""
    first = accounts[0]
    places, sizes, dropped = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[str]()
    for account in accounts:
        dropped.update(account.dropped)
        for kind, message, count, size in account.missing_sums:
            places[kind, message] += count
            sizes[kind, message] += size
    sums = sorted((MissingSum(*key, places[key], sizes[key]) for key in places), key=lambda part: -part.size)
    return first._replace(
        file=counted(len(accounts), "file"),
        arch=first.arch if len({account.arch for account in accounts}) == 1 else "several ABIs",
        **column_sums(accounts, SUMMED),
        sources={},
        missing_sums=tuple(sums),
        missing=(),
        dropped=dropped,
        debug_file="",
        unread=tuple(dict.fromkeys(source for account in accounts for source in account.unread)),
    )


def headline(coverage: Coverage) -> str:
    """Return how much of some code a version describes, as a sentence without a full stop."""
    version, code_size = coverage.sframe_version, coverage.code_size
    if not code_size:
        return f"SFrame version {version}: no code"
    from_code = f" ({share(coverage.from_code_size, code_size)} from instructions)" if coverage.from_code_size else ""
    described = share(coverage.described_size, code_size)
    text = f"SFrame version {version} describes {described} of {code_size:,} bytes of code{from_code}"
    count = coverage.function_count
    if not count:
        return f"{text}; no function has CFI"
    what = f"function{'' if count == 1 else 's'} with CFI"
    if coverage.described_count == count:
        return f"{text}, and {f'all {count:,}' if count > 1 else 'the only'} {what}"
    in_part = f" ({coverage.in_part_count:,} more in part)" if coverage.in_part_count else ""
    return f"{text}, and {coverage.described_count:,} of {count:,} {what}{in_part}"


def _tables_of_one(coverage: Coverage) -> Iterator[Table]:
    sizes = [(getattr(coverage, name), text) for name, text in _BYTES]
    yield _parts_table("Code", "bytes", sizes, coverage.code_size, "bytes of code")
    if coverage.function_count:
        counts = [
            (coverage.described_count - coverage.flexible_count, "described by default rows"),
            (coverage.flexible_count, "described by flexible rows"),
            (coverage.in_part_count, "described in part"),
            (coverage.left_out_count, "left out"),
            (coverage.damaged_count, "damaged"),
        ]
        yield _parts_table("Functions", "functions", counts, coverage.function_count, "functions with CFI")


def _parts_table(title: str, noun: str, parts: Sequence[tuple[int, str]], whole: int, text: str) -> Table:
    columns = (Column(noun, ","), Column("share", "s"), Column("what"))
    rows = [(count, share(count, whole), what) for count, what in parts if count]
    return Table(title, columns, rows, (whole, share(whole, whole), text))


def _table_of_several(accounts: Sequence[Coverage], total: Coverage) -> Table:
    directory = common_directory([account.file for account in accounts])
    columns = {**_FILE_COLUMNS, **({Column("from code", ","): "from_code_size"} if total.from_code_size else {})}
    rows = [[*cells_of(account, columns), account.file.removeprefix(directory)] for account in accounts]

    def detail(row: int) -> list[Table]:
        return [*_tables_of_one(accounts[row]), *_why_tables(accounts[row])]

    return Table("", (*columns, file_column(directory)), rows, [*cells_of(total, columns), "total"], detail)


def _why_tables(coverage: Coverage) -> list[Table]:
    columns = (Column("bytes", ","), Column("places", ","), Column("what"), Column("why"))
    rows = [(size, count, kind, message) for kind, message, count, size in coverage.missing_sums]
    total = (sum(row[0] for row in rows), sum(row[1] for row in rows), "", "")
    return [Table("What is missing, and why", columns, rows, total)] if rows else []


def _places_table(accounts: Sequence[Coverage], top: int | None) -> Table:
    places = [(place, account.file) for account in accounts for place in account.missing]
    names = ("address", "section", "what", "why", "function", *["file"] * (len(accounts) > 1))
    columns = (Column("bytes", ","), *map(Column, names))
    rows: list[list[Cell]] = [
        [place.size, f"0x{place.address:x}", place.section, place.kind, _why(place), place.function, file]
        for place, file in sorted(places, key=lambda pair: -pair[0].size)[:top]
    ]
    shown = [number for number in range(len(columns)) if any(row[number] for row in rows)]
    return Table("Largest gaps", [columns[n] for n in shown], [[row[n] for n in shown] for row in rows])


def _why(place: Missing) -> str:
    return _reason(place, f" at 0x{place.row_address:x}" if place.row_address not in (0, place.address) else "")


def _reason(place: Missing, where: str = "") -> str:
    return f"{place.message}{where} ({place.detail})" if place.detail else f"{place.message}{where}"


def _notes(total: Coverage, rest_count: int) -> Iterator[str]:
    if rest_count > 0:
        yield f"{rest_count:,} more not shown; use --top all."
    if total.sframe_size:
        sources = [name for name in total.sources if name != "code"] or ["the CFI"]
        cfi = " + ".join([*sources, *([".eh_frame_hdr"] if total.eh_frame_hdr_size else [])])
        ratio = "" if total.ratio is None else f", {total.ratio:.2f} of the bytes of {cfi}"
        yield f".sframe for {total.arch}: {total.sframe_size:,} bytes, {total.row_count:,} rows{ratio}."
    if len(total.sources) > 1:
        yield f"Functions from {', '.join(f'{name}: {count:,}' for name, count in total.sources.items())}."
    if total.debug_file:
        yield f"Debug file: {total.debug_file}."
    if total.other_padding_size:
        yield f"{counted(total.other_padding_size, 'byte')} of alignment padding not counted as code."
    if total.stub_fde_count:
        yield f"{counted(total.stub_fde_count, 'FDE')} of PLT stubs, which are described from their instructions."
    yield from (f"{counted(count, 'FDE')} dropped: {reason}." for reason, count in total.dropped.items())
    yield from (f"{source.name} is not used: {source.reason}." for source in total.unread)


def missing_sentences(coverage: Coverage) -> Iterator[str]:
    """Yield a sentence for each damaged FDE, each function that is left out or described in part, and stubs."""
    for fde in coverage.of_kind("damaged"):
        yield f"{fde.section}+0x{fde.address:x}: {fde.message}; the FDE is left out"
    for function in coverage.of_kind("left out"):
        yield f"{_function(function, coverage)} left out: {_reason(function)}"
    for _, group in groupby(coverage.of_kind("in part"), lambda hole: (hole.section, hole.function_address)):
        first, *more = holes = list(group)
        size = sum(hole.size for hole in holes)
        what = f"{size:,} of {first.function_size:,} bytes left out: {_reason(first)} at 0x{first.address:x}"
        yield f"{_function(first, coverage)}: {what}{f', and {len(more):,} more' if more else ''}"
    for stubs in coverage.of_kind("PLT stubs"):
        where = f"{printable(stubs.section)} (0x{stubs.address:x})"
        yield f"PLT stubs in {where} left out, {stubs.size:,} bytes: {_reason(stubs)}"


def _function(place: Missing, coverage: Coverage) -> str:
    """Return a function's name, in readable form, and its place."""
    where = f"0x{place.function_address:x}"
    if coverage.is_object and place.section != ".text":
        where = f"{printable(place.section)}+{where}"
    return f"{printable(place.function)} ({where})" if place.symbol else f"function at {where}"
