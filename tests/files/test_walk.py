# SPDX-License-Identifier: Apache-2.0
"""What of a folder is walked into, and what patterns leave out."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cfi2sframe.files.find import elf_files_under, find_sources
from cfi2sframe.jobs.listing import work_list
from tests.support.jobs import OBJECT

FILES = ("bin/tool", "lib/debug/tool.debug", "lib/tool.so", "share/lib/debug/x", "tool")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder by its resolved path."""
    path = tmp_path.resolve() / "root"
    for name in FILES:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(OBJECT)
    return path


def found(root: Path, *patterns: str) -> list[str]:
    """The names that a walk gives."""
    return [file.path for file in elf_files_under(str(root), patterns)]


# Patterns


@pytest.mark.parametrize(
    ("pattern", "left_out"),
    [
        ("tool", {"bin/tool", "tool"}),
        ("tool*", {"bin/tool", "lib/debug/tool.debug", "lib/tool.so", "tool"}),
        ("debug", {"lib/debug/tool.debug", "share/lib/debug/x"}),
        ("debug/", {"lib/debug/tool.debug", "share/lib/debug/x"}),
        ("lib", {"lib/debug/tool.debug", "lib/tool.so", "share/lib/debug/x"}),
        ("lib/debug", {"lib/debug/tool.debug"}),
        ("./lib/debug/", {"lib/debug/tool.debug"}),
        ("*/debug", {"lib/debug/tool.debug", "share/lib/debug/x"}),
        ("lib/*", {"lib/debug/tool.debug", "lib/tool.so"}),
        ("/lib/debug", set()),
        ("root", set()),
        ("[bl]i[bn]/tool", {"bin/tool"}),
        ("TOOL", set()),
        ("", set()),
        ("/", set()),
    ],
)
def test_patterns(root: Path, pattern: str, left_out: set[str]) -> None:
    assert set(found(root)) - set(found(root, pattern)) == left_out
    assert set(found(root, "nothing", pattern)) == set(FILES) - left_out


def test_a_pattern_that_begins_with_a_slash_is_an_absolute_path(root: Path) -> None:
    """By the name that the user gave, or the one that it leads to."""
    link = root.with_name("link")
    link.symlink_to("root")
    assert found(root, f"{root}/lib") == ["tool", "bin/tool", "share/lib/debug/x"]
    for name in (root, link):
        patterns = (f"{name}/lib/*.so", f"{name}/bin")
        names = [source.name.removeprefix(f"{link}/") for source in find_sources([str(link)], patterns)]
        assert names == ["tool", "lib/debug/tool.debug", "share/lib/debug/x"]


def test_sources_and_jobs_are_found_by_the_same_walk(root: Path) -> None:
    patterns = ("debug", "/*/bin")
    assert [source.name for source in find_sources([str(root)], patterns, is_relative=True)] == ["tool", "lib/tool.so"]
    jobs = work_list([str(root), str(root / "bin" / "tool")], recurse=True, excluded=patterns)
    assert [job.name.removeprefix(f"{root}/") for job in jobs] == ["tool", "lib/tool.so", "bin/tool"]


def test_what_is_mounted_in_a_folder_is_part_of_it(root: Path, mount: Callable[..., None]) -> None:
    mount(root / "lib", "-t", "tmpfs", "tmpfs")
    (root / "lib" / "mine.so").write_bytes(OBJECT)
    assert set(found(root)) == {"tool", "bin/tool", "share/lib/debug/x", "lib/mine.so"}
    assert [source.name for source in find_sources([str(root)], ["share"])] == [
        f"{root}/{name}" for name in ("tool", "bin/tool", "lib/mine.so")
    ]
