# SPDX-License-Identifier: Apache-2.0
"""Files added up by folder: nothing is lost, and nothing counts twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe import load
from cfi2sframe.files import Source
from cfi2sframe.report.size.answers import common_folder
from cfi2sframe.report.size.measure import Request, measure
from cfi2sframe.report.size.records import FileSizes
from cfi2sframe.report.size.sources import Measured, folders_of
from cfi2sframe.report.size.totals import ORDERS, build_report, figures_of
from tests.support.sizes import check_report, library, measured, sample_files

if TYPE_CHECKING:
    from cfi2sframe.files.records import SourceKind


def _found(kind: SourceKind, path: str, *members: str) -> Measured:
    names = [f"{path}({member})" for member in members] or [path]
    return Measured(Source(path, path, kind, 0), tuple(measured(name, library(1)) for name in names))


FOUND = (
    _found("elf", "usr/bin/a"),
    _found("elf", "b"),
    _found("archive", "usr/lib/c.a", "one.o", "two.o"),
)


def test_folders() -> None:
    assert folders_of(FOUND) == {
        "usr/bin/a": "usr/bin",
        "b": ".",
        "usr/lib/c.a(one.o)": "usr/lib",
        "usr/lib/c.a(two.o)": "usr/lib",
    }


@pytest.mark.parametrize("order", ORDERS)
def test_folders_add_up(order: str) -> None:
    files = [result for result in sample_files() if isinstance(result, FileSizes)]
    folders = {file.name: file.name.rpartition("/")[0] for file in files}
    report = build_report(files, version=3, order=order, folders=folders)
    check_report(report)
    assert report.folders is not None
    groups = report.folders.groups
    assert {group.name: group.totals.file_count for group in groups} == {"lib": 4, "": 2}
    keys = [ORDERS[order](figures_of(group, 3)) for group in groups]
    assert keys == sorted(keys, reverse=True)
    cut = build_report(files, version=3, order=order, folders=folders, top=1)
    assert cut.folders == (groups[:1], 1)


@pytest.mark.property
@given(st.lists(st.lists(st.sampled_from(("a", "ab", "b", "")), min_size=1, max_size=4).map("/".join), min_size=1))
def test_the_common_folder_is_one(names: list[str]) -> None:
    folder = common_folder(names)
    assert all(name.startswith(folder) for name in names)
    assert folder == "" or folder.endswith("/")
    folders = {name.rpartition("/")[0] for name in names}
    # It is the longest: the next part of the names differs, or one of them has no more parts.
    if len(names) > 1 and len(folders) == 1 and "" not in folders:
        assert folder == f"{folders.pop()}/"


def test_only_the_versions_asked_for() -> None:
    file = measure(load(library(3)), Request(versions=(2,), function_version=2))
    assert [version.refusal for version in file.versions] == ["not measured", "", "not measured"]
    assert file.fde_count == 3
    report = build_report([file], version=2)
    check_report(report)
    assert [total.file_count for total in report.totals.versions] == [0, 1, 0]
