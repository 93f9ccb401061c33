# SPDX-License-Identifier: Apache-2.0
"""From measured files to reports: sorted, added up, paired."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from cfi2sframe.report.size.records import (
    Comparison,
    Failure,
    FileSizes,
    Functions,
    Pair,
    SizeReport,
    add_up,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cfi2sframe.report.size.records import FunctionSize

Result = FileSizes | Failure


def _size(file: FileSizes, version: int) -> int:
    layout = file.layout(version)
    return 0 if layout is None else layout.size


def _left_out(file: FileSizes, version: int) -> int:
    layout = file.layout(version)
    return 0 if layout is None else layout.left_out_count


#: What files can be sorted by; all but the name from the largest down.
ORDERS: Final[dict[str, Callable[[FileSizes, int], float]]] = {
    "sframe": _size,
    "gnu": lambda file, version: layout.size if (layout := file.layout(version, "gnu")) else 0,
    "ratio": lambda file, version: file.ratio(version) or 0.0,
    "cfi": lambda file, _: file.sizes.base,
    "file": lambda file, _: file.sizes.file,
    "functions": lambda file, _: file.fde_count,
    "left-out": _left_out,
    "larger": lambda file, _: file.functions.larger_count,
    "name": lambda _file, _version: 0,
}


def build_report(
    results: Iterable[Result], *, version: int, order: str = "sframe", top: int | None = None, function_count: int = 0
) -> SizeReport:
    """Make a report of measured files. `top` limits the files that it lists, not what it adds up."""
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


def merge_functions(parts: Iterable[Functions], count: int) -> Functions:
    """Return the functions of all files that lead either list."""
    every = tuple(parts)
    costliest: list[FunctionSize] = [function for part in every for function in part.costliest]
    larger: list[FunctionSize] = [function for part in every for function in part.larger]
    return Functions(
        sum(part.described_count for part in every),
        sum(part.larger_count for part in every),
        tuple(heapq.nsmallest(count, costliest, key=lambda f: (-f.sframe_size, f.file, f.address))),
        tuple(heapq.nsmallest(count, larger, key=lambda f: (-f.excess, f.file, f.address))),
    )


def build_comparison(
    old: Iterable[Result], new: Iterable[Result], *, version: int, top: int | None = None
) -> Comparison:
    """Pair files of the same name; those that changed most come first."""
    before, after = list(old), list(new)
    old_files, new_files = _by_name(before), _by_name(after)
    if len(old_files) == len(new_files) == 1 and not old_files.keys() & new_files.keys():
        # Two single files belong together whatever they are called.
        (old_file,), (new_file,) = old_files.values(), new_files.values()
        pairs = [Pair(new_file.name, old_file, new_file)]
    else:
        names = sorted(old_files.keys() | new_files.keys())
        pairs = [Pair(name, old_files.get(name), new_files.get(name)) for name in names]
    pairs.sort(key=lambda pair: (-abs(pair.change(version)), pair.name))
    shown = pairs if top is None else pairs[:top]
    failures = [failure._replace(name=f"old: {failure.name}") for failure in _failures(before)]
    failures += [failure._replace(name=f"new: {failure.name}") for failure in _failures(after)]
    return Comparison(
        version,
        tuple(shown),
        len(pairs) - len(shown),
        (add_up(old_files.values()), add_up(new_files.values())),
        tuple(failures),
    )


def _by_name(results: Iterable[Result]) -> dict[str, FileSizes]:
    """Return files by name; members of the same name are told apart by number."""
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
