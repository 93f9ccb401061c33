# SPDX-License-Identifier: Apache-2.0
"""The reports of `size`: what sections cost, for each file or folder, and what changed between two sets of files."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from cfi2sframe.printable import counted
from cfi2sframe.report.records import SCHEMA_VERSION, Column, Report, Table, common_folder
from cfi2sframe.report.size import FileSize, add_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cfi2sframe.report.records import Cell

_UNITS: Final = ("bytes", "KiB", "MiB", "GiB")
#: What files and folders can be sorted by, in descending order; equal ones and "name" by their names.
ORDERS: Final[dict[str, Callable[[FileSize], float | None]]] = {
    "sframe": lambda file: file.sframe_size,
    "gnu": lambda file: file.gnu_size,
    "ratio": lambda file: file.ratio,
    "growth": lambda file: file.growth_percent,
    "rows": lambda file: file.mean_rows,
    "cfi": lambda file: file.base_size,
    "file": lambda file: file.file_size,
    "functions": lambda file: file.function_count,
    "left-out": lambda file: file.left_out_count,
    "name": lambda _: 0,
}
_COLUMNS: Final = (
    Column(".sframe", ",", has_bar=True),
    Column("ratio", ".2f"),
    Column("of file", ".2f", " %"),
    Column("GNU as+ld", ","),
    Column("rows", ".2f"),
)
_NOTE: Final = (
    "ratio: .sframe to .eh_frame + .eh_frame_hdr; GNU as+ld: an estimate within 3 %; rows: scanned per lookup, mean "
    "over the bytes of code."
)
_PART_COLUMNS: Final = (
    *(Column("version", "d"), Column("files", ","), Column("header", ","), Column("function table", ",")),
    *(Column("attributes", ","), Column("rows", ","), Column(".sframe", ",", has_bar=True), Column("ratio", ".2f")),
    *(Column("of file", ".2f", " %"), Column("GNU as+ld", ",")),
)
_COUNT_COLUMNS: Final = (
    *(Column("version", "d"), Column("functions", ","), Column("in part", ","), Column("left out", ",")),
    *(Column("records", ","), Column("flexible", ","), Column("PCMASK", ","), Column("rows", ",")),
    *(Column("scanned (mean)", ".2f"), Column("(max)", ",")),
)


def size_report(
    files: Sequence[FileSize],
    version: int,
    *,
    level: int | None = None,
    order: str = "sframe",
    top: int | None = None,
    folders: Sequence[str] | None = None,
    undefined_count: int = 0,
) -> Report:
    """Return the report of files in `version`, and in others if there are any, which have tables of their own.

    `folders` has the folder of each file where a line is about a folder; of `undefined_count` other files the version
    does not define the ABI.
    """
    of_version = [(file, number) for number, file in enumerate(files) if file.sframe_version == version]
    lines = [file for file, _ in of_version]
    noun = "file" if folders is None else "folder"
    if folders is not None:
        groups = defaultdict[str, list[FileSize]](list)
        for file, number in of_version:
            groups[folders[number]].append(file)
        lines = [add_up(group, name, version) for name, group in groups.items()]
    total = add_up((file for file, _ in of_version), counted(len(lines), noun), version)
    lines.sort(key=lambda file: (-(ORDERS[order](file) or 0), file.file))
    versions = sorted({file.sframe_version for file in files})
    totals = [add_up((f for f in files if f.sframe_version == each), "", each) for each in versions]
    rest = lines[len(lines[:top]) :]
    others = [add_up(rest, f"{counted(len(rest), f'more {noun}')} (--top all)", version)] if rest else []
    tables = [_main_table(lines[:top], [*others, total], noun)] if lines else []
    if len(totals) > 1:
        tables += [_parts_table(totals), _counts_table(totals)]
    notes = _notes(total)
    if undefined_count and total.file_count:
        notes.append(f"Version {version} does not define the ABI of {counted(undefined_count, 'file')}.")
    return Report(
        _headline(total, level),
        tables,
        notes,
        {
            "schema": SCHEMA_VERSION,
            "totals": [each._asdict() for each in totals],
            "files": [file._asdict() for file in (lines if folders is not None else files)],
        },
    )


def _headline(total: FileSize, level: int | None) -> str:
    """Return what the version costs, in one sentence without a full stop."""
    version = f"version {total.sframe_version}{'' if level is None else f' at -O{level}'}"
    if not total.file_count:
        return f"{version} does not define the ABI of these files"
    percent = "" if total.growth_percent is None else f" ({total.growth_percent:.1f} %)"
    adds = f"{version} adds {human(total.sframe_size)}{percent} to {human(total.file_size)}"
    return f"{adds}; GNU as + ld would add {human(total.gnu_size)}"


def _main_table(lines: Sequence[FileSize], sums: Sequence[FileSize], noun: str) -> Table:
    folder = common_folder([file.file for file in lines]) if noun == "file" else ""
    has_count = noun == "folder"
    rows = [
        [
            *(file.sframe_size, file.ratio, file.growth_percent, file.gnu_size, file.mean_rows),
            *([file.file_count] if has_count else []),
            file.file[len(folder) :] if number < len(lines) else file.file,
        ]
        for number, file in enumerate((*lines, *sums))
    ]
    columns = (
        *_COLUMNS,
        *([Column("files", ",")] if has_count else []),
        Column(f"{noun}, in {folder}" if folder else noun),
    )
    is_single = len(lines) == len(sums) == 1
    return Table("", columns, rows[:-1], None if is_single else rows[-1])


def _parts_table(totals: Iterable[FileSize]) -> Table:
    rows: list[list[Cell]] = [
        [
            *(each.sframe_version, each.file_count, each.header_size, each.function_table_size, each.attribute_size),
            *(each.row_size, each.sframe_size, each.ratio, each.growth_percent, each.gnu_size),
        ]
        for each in totals
    ]
    return Table("Bytes by version", _PART_COLUMNS, rows)


def _counts_table(totals: Iterable[FileSize]) -> Table:
    rows: list[list[Cell]] = [
        [
            *(each.sframe_version, each.function_count, each.in_part_count, each.left_out_count, each.record_count),
            *(each.flexible_count, each.pcmask_count, each.row_count, each.mean_rows, each.max_rows),
        ]
        for each in totals
    ]
    return Table("Functions, records and rows by version", _COUNT_COLUMNS, rows)


def _notes(total: FileSize) -> list[str]:
    """Return what a reader of the table has to know besides."""
    notes = [_NOTE] if total.file_count else []
    if total.left_out_count or total.in_part_count:
        counts = [f"{total.left_out_count:,} left out"] * bool(total.left_out_count)
        counts += [f"{total.in_part_count:,} described in part"] * bool(total.in_part_count)
        notes.append(f"Functions: {', '.join(counts)}.")
    if total.existing_size:
        notes.append(f"The files have {human(total.existing_size)} of .sframe today.")
    return notes


def comparison_report(old: Sequence[FileSize], new: Sequence[FileSize], version: int, *, top: int | None) -> Report:
    """Return the report of what changed between two sets of files, by their names; two single files are a pair."""
    before, after = _by_name(old), _by_name(new)
    if len(before) == len(after) == 1:
        before = dict(zip(after, before.values(), strict=True))
    none = FileSize("", "", version)
    pairs = [(name, before.get(name, none), after.get(name, none)) for name in sorted({**before, **after})]
    changed = [pair for pair in pairs if pair[1].sframe_size != pair[2].sframe_size]
    changed.sort(key=lambda pair: (-abs(pair[2].sframe_size - pair[1].sframe_size), pair[0]))
    folder = common_folder([name for name, _, _ in changed[:top]])
    rows = [_change(name[len(folder) :], *sizes) for name, *sizes in changed[:top]]
    same = [pair for pair in pairs if pair[1].sframe_size == pair[2].sframe_size]
    for others, what in ((changed[len(rows) :], "more changed file"), (same, "unchanged file")):
        if others:
            sums = (add_up(side, "", version) for side in list(zip(*others, strict=True))[1:])
            rows.append(_change(counted(len(others), what), *sums))
    totals = add_up(old, "", version), add_up(new, "", version)
    columns = (
        *(Column("change", "+,"), Column("in %", "+.1f"), Column("old", ","), Column("new", ",")),
        *(Column("CFI + hdr", "+,"), Column(f"file, in {folder}" if folder else "file")),
    )
    data = [
        {
            "file": name,
            "sframe_version": version,
            **{f"old_{field}": getattr(a, field) for field in _COMPARED},
            **{f"new_{field}": getattr(b, field) for field in _COMPARED},
        }
        for name, a, b in pairs
    ]
    return Report(
        _change_headline(*totals),
        [Table("", columns, rows, _change(counted(len(pairs), "file"), *totals))],
        [],
        {"schema": SCHEMA_VERSION, "files": data},
    )


#: What the data of a comparison has of either side.
_COMPARED: Final = ("file_count", "file_size", "cfi_size", "eh_frame_hdr_size", "sframe_size", "gnu_size")


def _by_name(files: Iterable[FileSize]) -> dict[str, FileSize]:
    """Return files by name; archive members of the same name are numbered."""
    found: dict[str, FileSize] = {}
    for file in files:
        name, number = file.file, 1
        while name in found:
            number += 1
            name = f"{file.file}#{number}"
        found[name] = file
    return found


def _change(name: str, old: FileSize, new: FileSize) -> list[Cell]:
    """Return a line: of a file that is added or removed, one side is empty."""
    a, b = old.sframe_size, new.sframe_size
    return [
        *(b - a, 100 * (b - a) / a if a else None, a if old.file_count else None, b if new.file_count else None),
        *(new.base_size - old.base_size, name),
    ]


def _change_headline(old: FileSize, new: FileSize) -> str:
    change, version = new.sframe_size - old.sframe_size, f"version {new.sframe_version}"
    cfi = _grows("the CFI", new.base_size - old.base_size)
    if not change:
        return f"{version} stays at {human(new.sframe_size)}; {cfi}"
    percent = f" ({100 * change / old.sframe_size:+.1f} %)" if old.sframe_size else ""
    sizes = f"from {human(old.sframe_size)} to {human(new.sframe_size)}"
    return f"{_grows(version, change)}{percent}, {sizes}; {cfi}"


def _grows(what: str, change: int) -> str:
    if not change:
        return f"{what} stays the same"
    return f"{what} {'grows' if change > 0 else 'shrinks'} by {human(abs(change))}"


def human(size: int) -> str:
    """Return a size in the unit that needs few digits."""
    value = float(size)
    unit = next((unit for n, unit in enumerate(_UNITS) if value / 1024**n < 1000), _UNITS[-1])
    if unit == "bytes":
        return counted(size, "byte")
    value /= 1024 ** _UNITS.index(unit)
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f} {unit}"
