# SPDX-License-Identifier: Apache-2.0
"""Reports from measured files: sort them, add them up, pair two sets, distribute their ratios."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cfi2sframe.report.size.records import (
    MAKERS,
    CfiSizes,
    Failure,
    FileSizes,
    NamedFunctions,
    Pair,
    Parts,
    SectionSizes,
    SizeComparison,
    SizeReport,
    Totals,
    VersionTotal,
    by_count,
    in_class_order,
)
from cfi2sframe.sframe.constants import VERSIONS
from cfi2sframe.sframe.lookup_cost import add_costs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cfi2sframe.report.size.records import FunctionSize

Key = TypeVar("Key")
Result = FileSizes | Failure

#: The last bin of a distribution of ratios, in tenths: it has every ratio from there on.
_LAST_TENTH: Final = 15

#: What files can be sorted by, in descending order; "name" leaves the order to their names.
ORDERS: Final[dict[str, Callable[[FileSizes, int], float]]] = {
    "sframe": lambda file, version: section.size if (section := file.section(version)) else 0,
    "gnu": lambda file, version: section.size if (section := file.section(version, "gnu")) else 0,
    "ratio": lambda file, version: file.ratio(version) or 0.0,
    "cfi": lambda file, _: file.sizes.base,
    "file": lambda file, _: file.sizes.file,
    "functions": lambda file, _: file.fde_count,
    "left-out": lambda file, version: section.left_out_count if (section := file.section(version)) else 0,
    "larger": lambda file, _: file.functions.larger_count,
    "name": lambda _file, _version: 0,
}


def build_report(
    results: Iterable[Result], *, version: int, order: str = "sframe", top: int | None = None, function_count: int = 0
) -> SizeReport:
    """Make a report of measured files. `top` limits the files that it lists; the totals are of all."""
    every = list(results)
    files = [result for result in every if isinstance(result, FileSizes)]
    key = ORDERS[order]
    files.sort(key=lambda file: (-key(file, version), file.name))
    shown = files if top is None else files[:top]
    return SizeReport(
        version,
        tuple(shown),
        len(files) - len(shown),
        add_up(files),
        merge_functions((file.functions for file in files), function_count),
        _failures(every),
    )


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


def build_comparison(
    old: Iterable[Result], new: Iterable[Result], *, version: int, top: int | None = None
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
    shown = pairs if top is None else pairs[:top]
    failures = [failure._replace(name=f"old: {failure.name}") for failure in _failures(before)]
    failures += [failure._replace(name=f"new: {failure.name}") for failure in _failures(after)]
    return SizeComparison(
        version,
        tuple(shown),
        len(pairs) - len(shown),
        (add_up(old_files.values()), add_up(new_files.values())),
        tuple(failures),
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
