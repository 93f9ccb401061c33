# SPDX-License-Identifier: Apache-2.0
"""What of a folder is walked into: patterns, mount points, and the file systems of the kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.errors import ErrorKind
from cfi2sframe.files import Source, Unusable, Walk, find_relative, find_sources
from cfi2sframe.files import mounts as mounts_module
from cfi2sframe.files.mounts import Boundary, Mount
from cfi2sframe.files.walk import elf_files_under
from cfi2sframe.jobs import Settings, run_job, work_list
from tests.support.jobs import OBJECT
from tests.support.mounts import mounting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILES = ("bin/tool", "lib/debug/tool.debug", "lib/tool.so", "share/lib/debug/x", "tool")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder by its resolved path."""
    path = tmp_path.resolve() / "root"
    for name in FILES:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(OBJECT)
    return path


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    with mounting() as function:
        yield function


def found(root: Path, *patterns: str, one_file_system: bool = True) -> list[str]:
    """The names that a walk gives; those of mount points that it does not enter end with a bar."""
    walk = Walk(patterns, one_file_system=one_file_system)
    return [file.path + "|" * file.is_mount_point for file in elf_files_under(str(root), walk)]


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
        walk = Walk((f"{name}/lib/*.so", f"{name}/bin"))
        names = [source.name.removeprefix(f"{link}/") for source in find_sources([str(link)], walk)]
        assert names == ["tool", "lib/debug/tool.debug", "share/lib/debug/x"]


def test_an_excluded_folder_is_not_entered(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    scan = os.scandir

    def note(folder: int) -> object:
        opened.append(os.readlink(f"/proc/self/fd/{folder}"))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", note)
    found(root, "lib", "share/*")
    assert opened == [str(root), f"{root}/bin", f"{root}/share"]


def test_sources_and_jobs_are_found_by_the_same_walk(root: Path) -> None:
    walk = Walk(("debug", "/*/bin"))
    assert [source.name for source in find_relative(str(root), walk)] == ["tool", "lib/tool.so"]
    jobs = work_list([str(root), str(root / "bin" / "tool")], recurse=True, walk=walk)
    assert [job.name.removeprefix(f"{root}/") for job in jobs] == ["tool", "lib/tool.so", "bin/tool"]


# Mount points


OTHERS = {"tool", "bin/tool", "share/lib/debug/x"}


@pytest.mark.parametrize("words", [("-t", "tmpfs", "tmpfs"), ("--bind", "ELSEWHERE")])
def test_mount_points(root: Path, mount: Callable[..., None], words: tuple[str, ...]) -> None:
    """A bind mount has the device of the folder around it."""
    elsewhere = root.with_name("elsewhere")
    elsewhere.mkdir()
    mount(root / "lib", *(elsewhere if word == "ELSEWHERE" else word for word in words))
    (root / "lib" / "mine.so").write_bytes(OBJECT)
    assert set(found(root)) == {*OTHERS, "lib|"}
    assert set(found(root, one_file_system=False)) == {*OTHERS, "lib/mine.so"}
    assert set(found(root, "lib")) == OTHERS - {"share/lib/debug/x"}
    assert found(root / "lib") == ["mine.so"]
    (left_out,) = [item for item in find_sources([str(root)]) if isinstance(item, Unusable)]
    assert left_out == (f"{root}/lib", "a mount point", ErrorKind.UNFIT)


def test_a_file_that_is_a_mount_point(root: Path, mount: Callable[..., None]) -> None:
    """Containers have such files, and nothing can be renamed over one."""
    elsewhere = root.with_name("elsewhere")
    elsewhere.write_bytes(OBJECT)
    mount(root / "lib" / "tool.so", "--bind", elsewhere)
    assert set(found(root)) == {*OTHERS, "lib/debug/tool.debug", "lib/tool.so|"}
    assert set(found(root, one_file_system=False)) == set(FILES)


@pytest.mark.parametrize("one_file_system", [True, False])
def test_the_kernels_file_systems_are_entered_only_when_named(
    root: Path, mount: Callable[..., None], *, one_file_system: bool
) -> None:
    mount(root / "proc", "-t", "proc", "proc")
    assert "proc|" in found(root, one_file_system=one_file_system)
    assert [file.path for file in elf_files_under(str(root / "proc" / "irq"))] == []
    with os.scandir(root / "proc"):
        walk = Walk(tuple(name for name in os.listdir(root / "proc") if name != "self"), one_file_system)
        assert not any(file.is_mount_point for file in elf_files_under(str(root / "proc"), walk))


def test_without_proc_only_devices_are_known(
    root: Path, mount: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(root / "memory", "-t", "tmpfs", "tmpfs")
    monkeypatch.setattr(mounts_module, "_mount_number", lambda _descriptor: None)
    for one_file_system in (True, False):
        assert "memory|" in found(root, one_file_system=one_file_system)


@pytest.mark.parametrize(
    ("here", "one_file_system", "is_left_out"),
    [
        (Mount(1, 10), True, False),
        (Mount(1, 11), True, True),
        (Mount(1, 11), False, False),
        (Mount(1, 12), False, True),
        (Mount(2, 10), True, True),
        (Mount(2, 10), False, False),
        (Mount(2, 99), False, True),
        (Mount(2, None), False, True),
    ],
)
def test_boundaries(monkeypatch: pytest.MonkeyPatch, here: Mount, *, one_file_system: bool, is_left_out: bool) -> None:
    """A subvolume has the mount of the folder around it; a mount that is made during the walk is not known."""
    monkeypatch.setattr(mounts_module, "_types_of_mounts", lambda: {10: "proc", 11: "ext4", 12: "sysfs"})
    monkeypatch.setattr(Mount, "of", lambda _descriptor: here)
    assert Boundary(Mount(1, 10), one_file_system=one_file_system).leaves_out(0) == is_left_out


def test_what_is_mounted_after_the_walk_is_not_converted(root: Path, mount: Callable[..., None]) -> None:
    """So is what a user leads a path to who may rename the folders around a mount point."""
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "tool").write_bytes(OBJECT)
    settings = Settings(takes_objects=True)
    jobs = {job.name: job for job in work_list([str(root)], settings, recurse=True)}
    others = {job.name: job for job in work_list([str(root)], settings, recurse=True, walk=Walk(one_file_system=False))}
    mount(root / "bin", "--bind", elsewhere)
    outcome = run_job(jobs[f"{root}/bin/tool"])
    assert (outcome.status, outcome.reason) == ("failed", "another file system is mounted there now")
    assert (elsewhere / "tool").read_bytes() == OBJECT
    assert run_job(jobs[f"{root}/tool"]).status == "converted"
    assert run_job(others[f"{root}/bin/tool"]).status == "converted"


def test_the_root_of_this_machine() -> None:
    walk = Walk(("[a-oq-z]*", "[!a-z]*", ".*"), one_file_system=False)
    if not Path("/proc/self/mountinfo").exists():
        pytest.skip("no /proc")
    assert "proc|" in [file.path + "|" * file.is_mount_point for file in elf_files_under("/", walk)]
    assert [item for item in find_sources(["/"], walk) if isinstance(item, Source)] == []
