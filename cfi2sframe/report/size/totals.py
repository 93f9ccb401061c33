# SPDX-License-Identifier: Apache-2.0
"""Reports from measured files: sort them, add them up, pair two sets, distribute their ratios."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cfi2sframe.report.size.records import (
    DEFAULT_LEVEL,
    MAKERS,
    CfiSizes,
    Failure,
    FileGroup,
    FileSizes,
    Folders,
    NamedFunctions,
    Pair,
    Parts,
    SectionSizes,
    SizeComparison,
    SizeReport,
    Totals,
    VersionTotal,
    by_count,
    quotient,
)
from cfi2sframe.report.size.row_classes import in_class_order
from cfi2sframe.sframe.constants import VERSIONS
from cfi2sframe.sframe.lookup_cost import add_costs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cfi2sframe.conversion import Level
    from cfi2sframe.report.size.records import FunctionSize

Key = TypeVar("Key")
Item = TypeVar("Item", "FileSizes", "FileGroup")
Result = FileSizes | Failure

#: The last bin of a distribution of ratios, in tenths: it has every ratio from there on.
_LAST_TENTH: Final = 15


class Figures(NamedTuple):
    """What a line of a report is about, in one version: a file, or files added up. Sections are None without that."""

    sizes: CfiSizes
    ours: SectionSizes | None
    gnu: SectionSizes | None
    fde_count: int
    larger_count: int

    @property
    def ratio(self) -> float | None:
        """The section's size to the CFI with its search table."""
        return None if self.ours is None else quotient(self.ours.size, self.sizes.base)

    @property
    def growth_percent(self) -> float | None:
        """The section's size in percent of the file."""
        return None if self.ours is None else quotient(self.ours.size, self.sizes.file, 100)


def figures_of(item: FileSizes | FileGroup, version: int) -> Figures:
    """Return the figures of a file or a group."""
    if isinstance(item, FileSizes):
        sizes = item.version(version)
        return Figures(item.sizes, sizes.cfi2sframe, sizes.gnu, item.fde_count, item.functions.larger_count)
    return figures_of_totals(item.totals, version)._replace(larger_count=item.larger_count)


def figures_of_totals(totals: Totals, version: int) -> Figures:
    """Return the figures of the files that a version defines, or those of all files when it defines none."""
    total = totals.version(version)
    if not total.file_count:
        return Figures(totals.sizes, None, None, totals.fde_count, 0)
    return Figures(total.sizes, total.cfi2sframe, total.gnu, total.fde_count, 0)


#: What files and groups can be sorted by, in descending order; "name" leaves the order to their names.
ORDERS: Final[dict[str, Callable[[Figures], float]]] = {
    "sframe": lambda figures: figures.ours.size if figures.ours else 0,
    "gnu": lambda figures: figures.gnu.size if figures.gnu else 0,
    "ratio": lambda figures: figures.ratio or 0.0,
    "growth": lambda figures: figures.growth_percent or 0.0,
    "rows": lambda figures: figures.ours.lookup_cost.mean_rows if figures.ours else 0.0,
    "cfi": lambda figures: figures.sizes.base,
    "file": lambda figures: figures.sizes.file,
    "functions": lambda figures: figures.fde_count,
    "left-out": lambda figures: figures.ours.left_out_count if figures.ours else 0,
    "larger": lambda figures: figures.larger_count,
    "name": lambda _: 0,
}


def build_report(
    results: Iterable[Result],
    *,
    version: int,
    order: str = "sframe",
    top: int | None = None,
    function_count: int = 0,
    folders: Mapping[str, str] | None = None,
    level: Level | None = None,
) -> SizeReport:
    """Make a report of measured files. `top` limits the files and folders that it lists; the totals are of all.

    `folders` has the folder of each file by its name, if the report is to have folders.
    """
    every = list(results)
    files = [result for result in every if isinstance(result, FileSizes)]
    shown = _sorted(files, order, version)[:top]
    return SizeReport(
        version,
        tuple(shown),
        len(files) - len(shown),
        add_up(files),
        merge_functions((file.functions for file in files), function_count),
        _failures(every),
        None if folders is None else _by_folder(files, folders, order, version, top),
        DEFAULT_LEVEL if level is None else level,
    )


def _sorted(items: Iterable[Item], order: str, version: int) -> list[Item]:
    key = ORDERS[order]
    return sorted(items, key=lambda item: (-key(figures_of(item, version)), item.name))


def _by_folder(
    files: Iterable[FileSizes], names: Mapping[str, str], order: str, version: int, top: int | None
) -> Folders:
    members: defaultdict[str, list[FileSizes]] = defaultdict(list)
    for file in files:
        members[names[file.name]].append(file)
    groups = [FileGroup(name, add_up(each), _larger_count(each)) for name, each in members.items()]
    shown = _sorted(groups, order, version)[:top]
    return Folders(tuple(shown), len(groups) - len(shown))


def _larger_count(files: Iterable[FileSizes]) -> int:
    return sum(file.functions.larger_count for file in files)


def _failures(results: Iterable[Result]) -> tuple[Failure, ...]:
    return tuple(sorted(result for result in results if isinstance(result, Failure)))


def merge_functions(parts: Iterable[NamedFunctions], count: int) -> NamedFunctions:
    """Return the first `count` functions of either list over all files."""
    every = tuple(parts)
    costliest: list[FunctionSize] = [function for part in every for function in part.costliest]
    larger: list[FunctionSize] = [function for part in every for function in part.larger]
    return NamedFunctions(
        sum(part.described_count for part in every),
        sum(part.larger_count for part in every),
        tuple(heapq.nsmallest(count, costliest, key=lambda f: (-f.sframe_size, f.file, f.address))),
        tuple(heapq.nsmallest(count, larger, key=lambda f: (-f.excess, f.file, f.address))),
    )


def readable_functions(functions: NamedFunctions) -> NamedFunctions:
    """Return the lists with C++ and Rust names demangled, where a C++ library is there and the text is not too long."""
    from cfi2sframe.demangle import readable_names

    lists = (functions.costliest, functions.larger)
    names = readable_names([function.name for every in lists for function in every])
    costliest, larger = (
        tuple(function._replace(name=names.get(function.name, function.name)) for function in every) for every in lists
    )
    return functions._replace(costliest=costliest, larger=larger)


def build_comparison(
    old: Iterable[Result], new: Iterable[Result], *, version: int, top: int | None = None, level: Level | None = None
) -> SizeComparison:
    """Pair files of the same name, those that changed most first. `top` limits the pairs that are listed."""
    before, after = list(old), list(new)
    old_files, new_files = _by_name(before), _by_name(after)
    if len(old_files) == len(new_files) == 1 and not old_files.keys() & new_files.keys():
        # Two single files are a pair whatever their names.
        (old_file,), (new_file,) = old_files.values(), new_files.values()
        pairs = [Pair(new_file.name, old_file, new_file)]
    else:
        names = sorted(old_files.keys() | new_files.keys())
        pairs = [Pair(name, old_files.get(name), new_files.get(name)) for name in names]
    pairs.sort(key=lambda pair: (-abs(pair.change(version)), pair.name))
    shown = pairs[:top]
    failures = [failure._replace(name=f"old: {failure.name}") for failure in _failures(before)]
    failures += [failure._replace(name=f"new: {failure.name}") for failure in _failures(after)]
    return SizeComparison(
        version,
        tuple(shown),
        len(pairs) - len(shown),
        (add_up(old_files.values()), add_up(new_files.values())),
        tuple(failures),
        DEFAULT_LEVEL if level is None else level,
    )


def _by_name(results: Iterable[Result]) -> dict[str, FileSizes]:
    """Return files by name; archive members of the same name are numbered."""
    files: dict[str, FileSizes] = {}
    for result in results:
        if isinstance(result, Failure):
            continue
        name, number = result.name, 1
        while name in files:
            number += 1
            name = f"{result.name}#{number}"
        files[name] = result._replace(name=name)
    return files


# Sums


def add_up(files: Iterable[FileSizes]) -> Totals:
    """Add files up."""
    every = tuple(files)
    return Totals(
        len(every),
        add_sizes(file.sizes for file in every),
        sum(file.fde_count for file in every),
        tuple(_add_version(every, version) for version in VERSIONS),
    )


def _add_version(files: tuple[FileSizes, ...], version: int) -> VersionTotal:
    defined = [(file, sizes) for file in files if (sizes := file.version(version)).cfi2sframe is not None]
    return VersionTotal(
        version,
        len(defined),
        sum(file.fde_count for file, _ in defined),
        add_sizes(file.sizes for file, _ in defined),
        add_sections(sizes.cfi2sframe for _, sizes in defined if sizes.cfi2sframe is not None),
        add_sections(sizes.gnu for _, sizes in defined if sizes.gnu is not None),
        by_count(add_counts(sizes.left_out for _, sizes in defined)),
        sum(sizes.in_parts_count for _, sizes in defined),
    )


def add_sections(sections: Iterable[SectionSizes]) -> SectionSizes:
    """Add sections up, field by field."""
    every = tuple(sections)
    per_function = add_counts(section.rows_per_function for section in every)
    return SectionSizes(
        Parts(*(sum(column) for column in zip(Parts(), *(section.parts for section in every), strict=True))),
        default_count=sum(section.default_count for section in every),
        flexible_count=sum(section.flexible_count for section in every),
        pcmask_count=sum(section.pcmask_count for section in every),
        left_out_count=sum(section.left_out_count for section in every),
        row_count=sum(section.row_count for section in every),
        row_sizes=dict(sorted(add_counts(section.row_sizes for section in every).items())),
        rows_per_function=in_class_order(per_function),
        lookup_cost=add_costs(section.lookup_cost for section in every),
        code_count=sum(section.code_count for section in every),
    )


def add_counts(parts: Iterable[Mapping[Key, int]]) -> dict[Key, int]:
    """Add counts up by their keys."""
    result: Counter[Key] = Counter()
    for part in parts:
        result.update(part)
    return result


def add_sizes(sizes: Iterable[CfiSizes]) -> CfiSizes:
    """Add the sizes of files up."""
    columns = list(zip(*sizes, strict=True))
    return CfiSizes(*map(sum, columns)) if columns else CfiSizes()


# Distribution


class RatioBin(NamedTuple):
    """The number of files, for each of `MAKERS`, whose ratio is at least `tenths` / 10 and less than a tenth more."""

    tenths: int
    counts: tuple[int, ...]

    @property
    def label(self) -> str:
        """The least ratio of the bin, with a plus sign in the last."""
        return f"{self.tenths / 10:.1f}{'+' * (self.tenths == _LAST_TENTH)}"


def ratio_bins(files: Iterable[FileSizes], version: int) -> list[RatioBin]:
    """Distribute the files over ratios by tenths; without the empty bins at either end, but always with 1.0."""
    counts = {tenths: [0] * len(MAKERS) for tenths in range(_LAST_TENTH + 1)}
    for file in files:
        for series, maker in enumerate(MAKERS):
            ratio = file.ratio(version, maker)
            if ratio is not None:
                # Rounded, since 0.29 * 100 is not quite 29.
                counts[min(int(round(ratio * 100, 6)) // 10, _LAST_TENTH)][series] += 1
    used = [tenths for tenths, each in counts.items() if any(each)]
    if not used:
        return []
    return [RatioBin(tenths, (*counts[tenths],)) for tenths in range(min(*used, 10), max(*used, 10) + 1)]
