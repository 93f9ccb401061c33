# SPDX-License-Identifier: Apache-2.0
"""The cost of SFrame: a record of numbers for each file, sums of records, and their reports. Sizes count bytes."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.report.coverage import figures
from cfi2sframe.report.gnu_size import gnu_size
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
from cfi2sframe.text import counted

_NOTE: Final = "ratio: .sframe to the CFI and .eh_frame_hdr; GNU as+ld: an estimate within 3 %."
#: Columns, and the field that each shows.
_COLUMNS: Final = {
    Column(".sframe", ","): "sframe_size",
    Column("ratio", ".2f"): "ratio",
    Column("of file", ".2f", " %"): "growth_percent",
    Column("GNU as+ld", ","): "gnu_size",
}
#: The fields that a page shows of a file when its row is opened.
_DETAILS: Final = {
    "file_size": "bytes of the file",
    "cfi_size": "bytes of CFI",
    "eh_frame_hdr_size": "bytes of .eh_frame_hdr",
    "existing_size": "bytes of .sframe in the file today",
    "padding_size": "zeros in place of .bss, by which the file grows, too",
    "function_count": "functions with CFI",
    "left_out_count": "left out",
    "in_part_count": "described in part",
    "record_count": "function records in .sframe",
    "row_count": "rows in .sframe",
}
#: Fields of either side in the data of a comparison.
_COMPARED: Final = ("file_count", "file_size", "cfi_size", "eh_frame_hdr_size", "sframe_size", "gnu_size")


class FileSize(NamedTuple):
    """A file and its section, or with `add_sizes` the sums of several; `gnu_size` is an estimate.

    `cfi_size` counts all CFI that was read, of Go the table, and `existing_size` the `.sframe` that the file has.
    `padding_size` counts the zeros that the file gets with the section, in place of .bss. The section has
    `record_count` records and `row_count` rows, some of them shared. Functions are counted as `coverage.Coverage` does.
    """

    file: str
    arch: str
    sframe_version: int
    file_count: int = 0
    file_size: int = 0
    cfi_size: int = 0
    eh_frame_hdr_size: int = 0
    existing_size: int = 0
    padding_size: int = 0
    sframe_size: int = 0
    gnu_size: int = 0
    function_count: int = 0
    left_out_count: int = 0
    in_part_count: int = 0
    record_count: int = 0
    row_count: int = 0

    @property
    def base_size(self) -> int:
        """The size of the CFI and its search table, which the section is compared with."""
        return self.cfi_size + self.eh_frame_hdr_size

    @property
    def ratio(self) -> float | None:
        """The section to the CFI with its search table; None without CFI."""
        return self.sframe_size / self.base_size if self.base_size else None

    @property
    def growth_size(self) -> int:
        """The size of the section, with the zeros that come with it."""
        return self.sframe_size + self.padding_size

    @property
    def growth_percent(self) -> float | None:
        """The bytes that the file grows by, in percent of the file."""
        return 100 * self.growth_size / self.file_size if self.file_size else None


#: The fields that are added up.
SUMMED: Final = FileSize._fields[FileSize._fields.index("file_count") :]


def measure(conversion: Conversion, padding_size: int = 0) -> FileSize:
    """Return the sizes of a converted file, which gets `padding_size` zeros with its section."""
    image = conversion.image
    return FileSize(
        file=image.name,
        arch=image.arch.name,
        sframe_version=conversion.target.version,
        file_count=1,
        file_size=len(image.data),
        existing_size=0 if image.sframe_section is None else image.sframe_section.size,
        padding_size=padding_size,
        gnu_size=gnu_size(conversion),
        **figures(conversion, Counter(conversion.fates)),
    )


def add_sizes(files: Sequence[FileSize], name: str) -> FileSize:
    """Return the sums of some files in one version."""
    arches = {file.arch for file in files}
    arch = arches.pop() if len(arches) == 1 else ""
    return FileSize(name, arch, files[0].sframe_version, **column_sums(files, SUMMED))


def size_report(
    files: Sequence[FileSize], *, level: int | None = None, order: str | None = "sframe_size", top: int | None = None
) -> Report:
    """Return the report of files. Lines descend by the field `order`, and then ascend by name."""
    total = add_sizes(files, counted(len(files), "file"))
    lines = sorted(files, key=lambda file: (-(getattr(file, order) or 0) if order else 0, file.file))
    shown = lines[:top]
    rest = lines[len(shown) :]
    sums = [add_sizes(rest, f"{counted(len(rest), 'more file')} (--top all)")] if rest else []
    directory = common_directory([file.file for file in shown])
    rows = [[*cells_of(file, _COLUMNS), file.file.removeprefix(directory)] for file in (*shown, *sums, total)]

    def detail(row: int) -> list[Table]:
        fields = [(getattr(shown[row], name), text) for name, text in _DETAILS.items()] if row < len(shown) else []
        return [Table("Details", (Column("count", ","), Column("what")), fields)] if fields else []

    columns = (*_COLUMNS, file_column(directory))
    table = Table("", columns, rows[:-1], None if len(shown) == len(files) == 1 else rows[-1], detail)
    data = {"totals": [total._asdict()], "files": [file._asdict() for file in files]}
    return Report(_headline(total, level), [table], _notes(total), data, chart=_chart(shown))


def _chart(files: Sequence[FileSize]) -> Chart:
    """Return the sizes of the first files, and by how much the sections of GNU as and ld would be larger."""
    bars = [
        Bar(file.file, human(file.sframe_size), (file.sframe_size, max(file.gnu_size - file.sframe_size, 0)))
        for file in files[:MAX_BARS]
    ]
    return Chart((".sframe", "more by GNU as and ld"), bars, max((sum(bar.sizes) for bar in bars), default=0))


def _headline(total: FileSize, level: int | None) -> str:
    version = f"version {total.sframe_version}{'' if level is None else f' at -O{level}'}"
    percent = "" if total.growth_percent is None else f" ({total.growth_percent:.1f} %)"
    adds = f"{version} adds {human(total.growth_size)}{percent} to {human(total.file_size)}"
    return f"{adds}; GNU as + ld would add {human(total.gnu_size)}"


def _notes(total: FileSize) -> list[str]:
    """Return notes on the table."""
    notes = [_NOTE]
    counts = [(total.left_out_count, "left out"), (total.in_part_count, "described in part")]
    if any(count for count, _ in counts):
        notes.append(f"Functions: {', '.join(f'{count:,} {what}' for count, what in counts if count)}.")
    if total.padding_size:
        notes.append(f"{human(total.padding_size)} of what is added are zeros in place of .bss.")
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
    shown = changed[:top]
    directory = common_directory([pair.name for pair in shown])
    lines = [pair._replace(name=pair.name.removeprefix(directory)) for pair in shown]
    same = [pair for pair in pairs if not pair.growth]
    others = ((changed[len(shown) :], "more changed file"), (same, "unchanged file"))
    total = _sum_of(pairs, "file")
    sums = [_sum_of(some, noun) for some, noun in others if some]
    rows = [line.cells() for line in (*lines, *sums, total)]
    columns = (
        *(Column("change", "+,"), Column("in %", "+.1f"), Column("old", ","), Column("new", ",")),
        *(Column("CFI + hdr", "+,"), file_column(directory)),
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
    return Report(_change_headline(total), [table], [], {"files": data})


def _sum_of(pairs: Sequence[_Change], noun: str) -> _Change:
    sides = ([pair.old for pair in pairs], [pair.new for pair in pairs])
    return _Change(counted(len(pairs), noun), *(add_sizes(side, "") for side in sides))


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
