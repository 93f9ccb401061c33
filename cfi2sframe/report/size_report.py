# SPDX-License-Identifier: Apache-2.0
"""The reports of `size`: the cost of sections by file or folder, and the changes between two sets of files."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.printable import counted
from cfi2sframe.report.size import FileSize, add_up
from cfi2sframe.report.tables import SCHEMA_VERSION, Column, Report, Table, cells_of, common_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cfi2sframe.report.tables import Cell

_NOTE: Final = "ratio: .sframe to the CFI and .eh_frame_hdr; GNU as+ld: an estimate within 3 %."
#: The columns of each table, and what of a file each shows.
_SIZE_COLUMNS: Final = {
    Column(".sframe", ",", has_bar=True): "sframe_size",
    Column("ratio", ".2f"): "ratio",
    Column("of file", ".2f", " %"): "growth_percent",
    Column("GNU as+ld", ","): "gnu_size",
}
_PART_COLUMNS: Final = {
    Column("version", "d"): "sframe_version",
    Column("files", ","): "file_count",
    Column("header", ","): "header_size",
    Column("function table", ","): "function_table_size",
    Column("attributes", ","): "attribute_size",
    Column("rows", ","): "row_size",
    **_SIZE_COLUMNS,
}
_COUNT_COLUMNS: Final = {
    Column("version", "d"): "sframe_version",
    Column("functions", ","): "function_count",
    Column("in part", ","): "in_part_count",
    Column("left out", ","): "left_out_count",
    Column("records", ","): "record_count",
    Column("flexible", ","): "flexible_count",
    Column("PCMASK", ","): "pcmask_count",
    Column("rows", ","): "row_count",
}
#: What the data of a comparison has of either side.
_COMPARED: Final = ("file_count", "file_size", "cfi_size", "eh_frame_hdr_size", "sframe_size", "gnu_size")


def size_report(
    measured: Sequence[Sequence[FileSize]],
    version: int,
    *,
    level: int | None = None,
    order: str | None = "sframe_size",
    top: int | None = None,
    folders: Sequence[str] | None = None,
) -> Report:
    """Return the report of files, each measured in `version` and perhaps in others, which get tables of their own.

    Lines descend by the field `order`, and then ascend by name. `folders` has the folder of each file, where a line is
    about a folder.
    """
    noun = "file" if folders is None else "folder"
    files = [size for sizes in measured for size in sizes]
    lines = [size for size in files if size.sframe_version == version]
    undefined_count = len(measured) - len(lines)
    if folders is not None:
        groups = defaultdict[str, list[FileSize]](list)
        for sizes, name in zip(measured, folders, strict=True):
            groups[name] += [size for size in sizes if size.sframe_version == version]
        lines = [add_up(group, name, version) for name, group in groups.items() if group]
    total = add_up(lines, counted(len(lines), noun), version)
    lines.sort(key=lambda file: (-(getattr(file, order) or 0) if order else 0, file.file))
    shown, rest = lines[:top], lines[len(lines[:top]) :]
    sums = [add_up(rest, f"{counted(len(rest), f'more {noun}')} (--top all)", version)] if rest else []
    tables = [_main_table(shown, [*sums, total], noun)] if lines else []
    versions = sorted({file.sframe_version for file in files})
    totals = [add_up((f for f in files if f.sframe_version == each), "", each) for each in versions]
    if len(totals) > 1:
        for title, columns in (
            ("Bytes by version", _PART_COLUMNS),
            ("Functions, records and rows by version", _COUNT_COLUMNS),
        ):
            tables.append(Table(title, tuple(columns), [cells_of(each, columns) for each in totals]))
    notes = _notes(total)
    if undefined_count and total.file_count:
        notes.append(f"Version {version} does not define the ABI of {counted(undefined_count, 'file')}.")
    data = {
        "schema": SCHEMA_VERSION,
        "totals": [each._asdict() for each in totals],
        "files": [file._asdict() for file in (files if folders is None else lines)],
    }
    return Report(_headline(total, level), tables, notes, data)


def _headline(total: FileSize, level: int | None) -> str:
    version = f"version {total.sframe_version}{'' if level is None else f' at -O{level}'}"
    if not total.file_count:
        return f"{version} does not define the ABI of these files"
    percent = "" if total.growth_percent is None else f" ({total.growth_percent:.1f} %)"
    adds = f"{version} adds {human(total.sframe_size)}{percent} to {human(total.file_size)}"
    return f"{adds}; GNU as + ld would add {human(total.gnu_size)}"


def _main_table(lines: Sequence[FileSize], sums: Sequence[FileSize], noun: str) -> Table:
    folder = common_folder([file.file for file in lines]) if noun == "file" else ""
    columns = _SIZE_COLUMNS if noun == "file" else {**_SIZE_COLUMNS, Column("files", ","): "file_count"}
    rows = [[*cells_of(file, columns), file.file.removeprefix(folder)] for file in (*lines, *sums)]
    name = Column(f"{noun}, in {folder}" if folder else noun)
    is_single = len(lines) == len(sums) == 1
    return Table("", (*columns, name), rows[:-1], None if is_single else rows[-1])


def _notes(total: FileSize) -> list[str]:
    """Return notes on the table."""
    notes = [_NOTE] if total.file_count else []
    counts = [(total.left_out_count, "left out"), (total.in_part_count, "described in part")]
    if any(count for count, _ in counts):
        notes.append(f"Functions: {', '.join(f'{count:,} {what}' for count, what in counts if count)}.")
    if total.existing_size:
        notes.append(f"The files have {human(total.existing_size)} of .sframe today.")
    return notes


class _Change(NamedTuple):
    """The sizes of a file, or of several, before and after. A file that is new or gone has no sizes on one side."""

    name: str
    old: FileSize
    new: FileSize

    @property
    def growth(self) -> int:
        return self.new.sframe_size - self.old.sframe_size

    @property
    def cfi_growth(self) -> int:
        return self.new.base_size - self.old.base_size

    @property
    def percent(self) -> float | None:
        return 100 * self.growth / self.old.sframe_size if self.old.sframe_size else None

    def cells(self) -> list[Cell]:
        sizes = [side.sframe_size if side.file_count else None for side in (self.old, self.new)]
        return [self.growth, self.percent, *sizes, self.cfi_growth, self.name]


def comparison_report(old: Sequence[FileSize], new: Sequence[FileSize], version: int, *, top: int | None) -> Report:
    """Return the report of the changes between two sets of files, matched by name; two single files are a pair."""
    before, after = _by_name(old), _by_name(new)
    if len(before) == len(after) == 1:
        before = dict(zip(after, before.values(), strict=True))
    none = FileSize("", "", version)
    pairs = [_Change(name, before.get(name, none), after.get(name, none)) for name in sorted({**before, **after})]
    changed = sorted((pair for pair in pairs if pair.growth), key=lambda pair: (-abs(pair.growth), pair.name))
    shown, rest = changed[:top], changed[len(changed[:top]) :]
    folder = common_folder([pair.name for pair in shown])
    lines = [pair._replace(name=pair.name.removeprefix(folder)) for pair in shown]
    same = [pair for pair in pairs if not pair.growth]
    others = ((rest, "more changed file"), (same, "unchanged file"))
    lines += [_sum_of(each, what, version) for each, what in others if each]
    total = _sum_of(pairs, "file", version)
    rows = [each.cells() for each in (*lines, total)]
    columns = (
        *(Column("change", "+,"), Column("in %", "+.1f"), Column("old", ","), Column("new", ",")),
        *(Column("CFI + hdr", "+,"), Column(f"file, in {folder}" if folder else "file")),
    )
    data = [
        {
            "file": pair.name,
            "sframe_version": version,
            **{f"old_{field}": getattr(pair.old, field) for field in _COMPARED},
            **{f"new_{field}": getattr(pair.new, field) for field in _COMPARED},
        }
        for pair in pairs
    ]
    table = Table("", columns, rows[:-1], rows[-1])
    return Report(_change_headline(total), [table], [], {"schema": SCHEMA_VERSION, "files": data})


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


def _sum_of(pairs: Sequence[_Change], noun: str, version: int) -> _Change:
    sides = ([pair.old for pair in pairs], [pair.new for pair in pairs])
    return _Change(counted(len(pairs), noun), *(add_up(side, "", version) for side in sides))


def _change_headline(total: _Change) -> str:
    version, cfi = f"version {total.new.sframe_version}", _grows("the CFI", total.cfi_growth)
    if not total.growth:
        return f"{version} stays at {human(total.new.sframe_size)}; {cfi}"
    percent = "" if total.percent is None else f" ({total.percent:+.1f} %)"
    sizes = f"from {human(total.old.sframe_size)} to {human(total.new.sframe_size)}"
    return f"{_grows(version, total.growth)}{percent}, {sizes}; {cfi}"


def _grows(what: str, change: int) -> str:
    if not change:
        return f"{what} stays the same"
    return f"{what} {'grows' if change > 0 else 'shrinks'} by {human(abs(change))}"


def human(size: int) -> str:
    """Return a size in the unit that needs few digits."""
    if size < 1000:
        return counted(size, "byte")
    value, unit = size / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if value >= 1000:
            value, unit = value / 1024, larger
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f} {unit}"
