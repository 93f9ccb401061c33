# SPDX-License-Identifier: Apache-2.0
"""Files added up by folder and package, and their executable sections: nothing is lost, and nothing counts twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe import load
from cfi2sframe.arch import AMD64
from cfi2sframe.files import Source
from cfi2sframe.report.size.answers import common_folder
from cfi2sframe.report.size.groups import NO_PACKAGE, folders_of, packages_of, without_packages
from cfi2sframe.report.size.measure import Request, measure
from cfi2sframe.report.size.records import FileSizes
from cfi2sframe.report.size.sources import Measured
from cfi2sframe.report.size.totals import ORDERS, SECTION_ORDERS, build_report, figures_of
from tests.support.samples import TEXT_VADDR, object_file, push_fp
from tests.support.sizes import aarch64_object, check_report, library, measured, s390x_library, sample_files, unsayable

if TYPE_CHECKING:
    from pathlib import Path

    from cfi2sframe.files.records import SourceKind

BY_SECTION = Request(has_code_sections=True)


def _found(kind: SourceKind, path: str, *members: str) -> Measured:
    names = [f"{path}({member})" for member in members] or [path]
    return Measured(Source(path, path, kind, 0), tuple(measured(name, library(1)) for name in names))


FOUND = (
    _found("elf", "usr/bin/a"),
    _found("elf", "b"),
    _found("archive", "usr/lib/c.a", "one.o", "two.o"),
    _found("deb", "d.deb", "usr/bin/d", "usr/lib/d.so"),
    _found("rpm", "e.rpm", "e"),
)


def test_folders() -> None:
    assert folders_of(FOUND) == {
        "usr/bin/a": "usr/bin",
        "b": ".",
        "usr/lib/c.a(one.o)": "usr/lib",
        "usr/lib/c.a(two.o)": "usr/lib",
        "d.deb(usr/bin/d)": "d.deb(usr/bin)",
        "d.deb(usr/lib/d.so)": "d.deb(usr/lib)",
        "e.rpm(e)": "e.rpm()",
    }


def test_packages(tmp_path: Path) -> None:
    info = tmp_path / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    (info / "tools.list").write_text("/bin/a\n")
    in_tree = (_found("elf", f"{tmp_path}/bin/a"), _found("elf", f"{tmp_path}/bin/b"))
    assert packages_of((*in_tree, *FOUND[3:])) == {
        f"{tmp_path}/bin/a": "tools",
        f"{tmp_path}/bin/b": NO_PACKAGE,
        "d.deb(usr/bin/d)": "d.deb",
        "d.deb(usr/lib/d.so)": "d.deb",
        "e.rpm(e)": "e.rpm",
    }
    assert without_packages(found.source for found in (*in_tree, *FOUND[3:])) == []


@pytest.mark.parametrize("order", ORDERS)
def test_groups_add_up(order: str) -> None:
    files = [result for result in sample_files() if isinstance(result, FileSizes)]
    folders = {file.name: file.name.rpartition("/")[0] for file in files}
    report = build_report(files, version=3, order=order, groups={"folder": folders})
    check_report(report)
    (grouping,) = report.groupings
    assert {group.name: group.totals.file_count for group in grouping.groups} == {"lib": 4, "": 2}
    keys = [ORDERS[order](figures_of(group, 3)) for group in grouping.groups]
    assert keys == sorted(keys, reverse=True)
    cut = build_report(files, version=3, order=order, groups={"folder": folders}, top=1).groupings[0]
    assert (cut.groups, cut.omitted_count) == (grouping.groups[:1], 1)


@pytest.mark.parametrize(
    "data",
    [
        library(40),
        library(3, more=(unsayable(TEXT_VADDR + 0x200),)),
        s390x_library(),
        aarch64_object(),
        object_file(AMD64, {".text.a": (push_fp(AMD64, 0),), ".text.b": (push_fp(AMD64, 0), push_fp(AMD64, 64))}),
    ],
)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_sections_add_up(data: bytes, version: int, level: int | str) -> None:
    request = BY_SECTION._replace(function_version=version, level=level)  # type: ignore[arg-type]
    file = measure(load(data), request)
    check_report(build_report([file], version=version))
    named = [section for section in file.code_sections if section.name]
    assert sum(section.fde_count for section in named) == file.fde_count
    assert all(section.name.startswith(".text") for section in named)


def test_functions_belong_to_their_sections() -> None:
    functions = {".text.a": (push_fp(AMD64, 0),), ".text.b": (push_fp(AMD64, 0), push_fp(AMD64, 64))}
    rest, first, second = measure(load(object_file(AMD64, functions)), BY_SECTION).code_sections
    assert (rest.name, first.name, second.name) == ("", ".text.a", ".text.b")
    assert (first.fde_count, second.fde_count) == (1, 2)
    # In an object no rows are shared.
    assert (second.sframe_size, second.code_size) == (2 * first.sframe_size, 2 * first.code_size)


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


@pytest.mark.parametrize("order", SECTION_ORDERS)
def test_orders_of_sections(order: str) -> None:
    data = object_file(AMD64, {".text.a": (push_fp(AMD64, 0),), ".text.b": (push_fp(AMD64, 0), push_fp(AMD64, 64))})
    found = build_report([measure(load(data), BY_SECTION)], version=3, order=order, top=2).code_sections
    assert found is not None
    assert (len(found.sections), found.omitted_count) == (2, 1)
    keys = [SECTION_ORDERS[order](section) for section in found.sections]
    assert keys == sorted(keys, reverse=True)


def test_only_the_versions_asked_for() -> None:
    file = measure(load(library(3)), Request(versions=(2,), function_version=2))
    assert [version.refusal for version in file.versions] == ["not measured", "", "not measured"]
    assert file.fde_count == 3
    report = build_report([file], version=2)
    check_report(report)
    assert [total.file_count for total in report.totals.versions] == [0, 1, 0]
