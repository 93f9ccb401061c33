# SPDX-License-Identifier: Apache-2.0
"""The folder and the package of each measured file, by the names that reports call files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from cfi2sframe.files.packages import PackageFinder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cfi2sframe.files import Source
    from cfi2sframe.report.size.sources import Measured

#: The group of files that no package has.
NO_PACKAGE: Final = "(no package)"


def folders_of(measured: Iterable[Measured]) -> dict[str, str]:
    """Return the folder of each file; that of a packaged file is a folder of the package."""
    return {result.name: _folder(each.source, result.name) for each in measured for result in each.results}


def _folder(source: Source, name: str) -> str:
    folder = os.path.dirname(source.name) or "."
    if source.kind not in ("deb", "rpm") or name == source.name:
        return folder
    inside = os.path.dirname(name.removeprefix(f"{source.name}(").removesuffix(")"))
    return f"{source.name}({inside})"


def packages_of(measured: Sequence[Measured], *, may_ask_rpm: bool = True) -> dict[str, str]:
    """Return the package of each file: the package file that it came from, or that of the database that lists it.

    `may_ask_rpm`: rpm is run to read its databases. Raises `RequestError` when it cannot.
    """
    in_trees = {each.source.path for each in measured if each.source.kind not in ("deb", "rpm")}
    owners = PackageFinder(may_ask_rpm=may_ask_rpm).owners(in_trees)
    packages = {
        each.source: each.source.name
        if each.source.kind in ("deb", "rpm")
        else owners.get(each.source.path, NO_PACKAGE)
        for each in measured
    }
    return {result.name: packages[each.source] for each in measured for result in each.results}


def without_packages(sources: Iterable[Source]) -> list[str]:
    """Return the names of sources that are no package files, and in no folder with a database of packages."""
    finder = PackageFinder()
    return [
        source.name
        for source in sources
        if source.kind not in ("deb", "rpm") and finder.database_of(os.path.dirname(source.path) or ".") is None
    ]
