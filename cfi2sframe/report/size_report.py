# SPDX-License-Identifier: Apache-2.0
"""The reports of `size`: the cost of sections by file, and the changes between two sets of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.report.size import FileSize, add_up
from cfi2sframe.report.tables import SCHEMA_VERSION, Column, Report, Table, cells_of, common_folder
from cfi2sframe.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.report.tables import Cell

_NOTE: Final = "ratio: .sframe to the CFI and .eh_frame_hdr; GNU as+ld: an estimate within 3 %."
#: The columns of the table, and what of a file each shows.
_COLUMNS: Final = {
    Column(".sframe", ",", has_bar=True): "sframe_size",
    Column("ratio", ".2f"): "ratio",
    Column("of file", ".2f", " %"): "growth_percent",
    Column("GNU as+ld", ","): "gnu_size",
}
#: What the data of a comparison has of either side.
_COMPARED: Final = ("file_count", "file_size", "cfi_size", "eh_frame_hdr_size", "sframe_size", "gnu_size")


def size_report(
    files: Sequence[FileSize], *, level: int | None = None, order: str | None = "sframe_size", top: int | None = None
) -> Report:
    """Return the report of files. Lines descend by the field `order`, and then ascend by name."""
    total = add_up(files, counted(len(files), "file"))
    lines = sorted(files, key=lambda file: (-(getattr(file, order) or 0) if order else 0, file.file))
    shown, rest = lines[:top], lines[len(lines[:top]) :]
    sums = [add_up(rest, f"{counted(len(rest), 'more file')} (--top all)")] if rest else []
    folder = common_folder([file.file for file in shown])
    rows = [[*cells_of(file, _COLUMNS), file.file.removeprefix(folder)] for file in (*shown, *sums, total)]
    columns = (*_COLUMNS, Column(f"file, in {folder}" if folder else "file"))
    table = Table("", columns, rows[:-1], None if len(shown) == len(rows) - 1 == 1 else rows[-1])
    data = {
        "schema": SCHEMA_VERSION,
        "totals": [total._asdict()],
        "files": [file._asdict() for file in files],
    }
    return Report(_headline(total, level), [table], _notes(total), data)


def _headline(total: FileSize, level: int | None) -> str:
    version = f"version {total.sframe_version}{'' if level is None else f' at -O{level}'}"
    percent = "" if total.growth_percent is None else f" ({total.growth_percent:.1f} %)"
    adds = f"{version} adds {human(total.sframe_size)}{percent} to {human(total.file_size)}"
    return f"{adds}; GNU as + ld would add {human(total.gnu_size)}"


def _notes(total: FileSize) -> list[str]:
    """Return notes on the table."""
    notes = [_NOTE]
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


def comparison_report(old: Sequence[FileSize], new: Sequence[FileSize], *, top: int | None) -> Report:
    """Return the report of the changes between two sets of files, matched by name; two single files are a pair."""
    before, after = ({file.file: file for file in some} for some in (old, new))
    if len(before) == len(after) == 1:
        before = dict(zip(after, before.values(), strict=True))
    version = new[0].sframe_version
    none = FileSize("", "", version)
    pairs = [_Change(name, before.get(name, none), after.get(name, none)) for name in sorted({**before, **after})]
    changed = sorted((pair for pair in pairs if pair.growth), key=lambda pair: (-abs(pair.growth), pair.name))
    shown, rest = changed[:top], changed[len(changed[:top]) :]
    folder = common_folder([pair.name for pair in shown])
    lines = [pair._replace(name=pair.name.removeprefix(folder)) for pair in shown]
    same = [pair for pair in pairs if not pair.growth]
    others = ((rest, "more changed file"), (same, "unchanged file"))
    lines += [_sum_of(each, what) for each, what in others if each]
    total = _sum_of(pairs, "file")
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


def _sum_of(pairs: Sequence[_Change], noun: str) -> _Change:
    sides = ([pair.old for pair in pairs], [pair.new for pair in pairs])
    return _Change(counted(len(pairs), noun), *(add_up(side, "") for side in sides))


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
