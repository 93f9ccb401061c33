# SPDX-License-Identifier: Apache-2.0
"""What names stand for: order, folders, and names of the same file, for all verbs."""

import errno
import os
import pickle
from pathlib import Path

import pytest

from cfi2sframe.errors import ErrorKind
from cfi2sframe.files.find import find_sources
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.records import Request
from tests.support.jobs import OBJECT, convert_one, jobs_for


def fill(folder: Path, *names: str, data: bytes = OBJECT) -> list[str]:
    paths = []
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        paths.append(str(path))
    return paths


def test_named_files_keep_their_order(tmp_path: Path) -> None:
    paths = fill(tmp_path, "z.o", "a.o", "m.o")
    assert [source.name for source in find_sources(paths)] == paths


def test_folders_are_walked_in_order_and_for_elf_files_only(tmp_path: Path) -> None:
    paths = fill(tmp_path, "a/z.o", "a/b/c.o", "a/a", "b.o")
    fill(tmp_path, "a/text", "a/b/.hidden", data=b"#!/bin/sh\n")
    fill(tmp_path, "a/short", data=b"\x7fE")
    sources = find_sources([str(tmp_path)])
    assert [source.name for source in sources] == [paths[3], paths[2], paths[0], paths[1]]
    assert all(source.may_be_unfit for source in sources)
    relative = [os.path.relpath(source.name, tmp_path) for source in sources]
    assert [source.name for source in find_sources([str(tmp_path)], is_relative=True)] == relative


def test_a_folder_is_a_job_that_fails_unless_it_is_walked(tmp_path: Path) -> None:
    assert convert_one(tmp_path).reason.startswith("Is a directory (")


def test_a_folder_in_a_folder_that_cannot_be_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is that of walking it, as in /proc/1."""
    fill(tmp_path, "a/z.o", "b.o")
    scan = os.scandir

    def refusing(path: str) -> object:
        if path.endswith("/a"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    failed = jobs_for([tmp_path])[1]
    assert (failed.source.name, run_job(failed).reason) == (f"{tmp_path}/a", "Operation not permitted")


def test_links_in_a_folder_lead_nowhere(tmp_path: Path) -> None:
    """A packaging tree is full of absolute links into the running system."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    fill(outside, "system.o")
    fill(root, "own.o")
    (root / "link.o").symlink_to(outside / "system.o")
    (root / "folder").symlink_to(outside, target_is_directory=True)
    (root / "loop").symlink_to(root, target_is_directory=True)
    assert [source.name for source in find_sources([str(root)])] == [str(root / "own.o")]


def test_a_named_link_stands_for_its_target(tmp_path: Path) -> None:
    (path,) = fill(tmp_path, "folder/target.o")
    link = tmp_path / "link.o"
    link.symlink_to("folder/target.o")
    assert [source.targets for source in find_sources([str(link)])] == [(path,)]
    (source,) = find_sources([str(link), path, str(link)])
    assert (source.name, source.targets, source.other_names) == (str(link), (path,), (path,))


def test_names_of_one_file_are_one_job(tmp_path: Path) -> None:
    first, other = fill(tmp_path, "b.o", "unrelated.o")
    again = str(tmp_path / "a.o")
    os.link(first, again)
    sources = find_sources([first, other, again, first])
    assert [(source.name, source.targets, source.other_names) for source in sources] == [
        (first, (first, again), (again,)),
        (other, (other,), ()),
    ]
    (source,) = find_sources([str(tmp_path / "." / "b.o"), str(tmp_path / "x" / ".." / "b.o")])[:1]
    assert source.targets == (first,)


def test_hard_links_in_folders_are_one_job(tmp_path: Path) -> None:
    (first,) = fill(tmp_path, "a/one.o")
    (tmp_path / "b").mkdir()
    os.link(first, tmp_path / "b" / "two.o")
    (source,) = find_sources([str(tmp_path)])
    assert source.targets == (first, str(tmp_path / "b" / "two.o"))


@pytest.mark.parametrize("named_first", [True, False])
def test_what_is_named_must_be_fit_even_if_a_folder_holds_it(tmp_path: Path, *, named_first: bool) -> None:
    (path,) = fill(tmp_path, "one.o")
    names = [path, str(tmp_path)] if named_first else [str(tmp_path), path]
    (source,) = find_sources(names)
    assert not source.may_be_unfit
    assert source.targets == (path,)


def test_the_strictest_way_of_naming_counts(tmp_path: Path) -> None:
    """A file may be found, listed and named; its first name stays."""
    (path,) = fill(tmp_path, "one.o")
    for named, listed, is_found, is_listed in (
        ([str(tmp_path)], [], True, False),
        ([str(tmp_path)], [path], False, True),
        ([str(tmp_path), path], [path], False, False),
        ([], [path], False, True),
    ):
        (source,) = find_sources(named, (), listed)
        assert (source.name, source.is_found, source.is_listed) == (path, is_found, is_listed)
        assert source.may_be_unfit == (is_found or is_listed)


@pytest.mark.parametrize("with_archives", [True, False])
def test_what_can_be_read_only_once_is_not_opened(tmp_path: Path, *, with_archives: bool) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    sources = find_sources(["-", str(fifo), "-"], with_archives=with_archives)
    assert [(source.path, source.is_stream) for source in sources] == [("-", True), (str(fifo), True)]
    assert sources[0].name == "<stdin>"


@pytest.mark.parametrize("name", ["link", "link/", "./link//", "../{0}/link"])
def test_a_folder_by_any_name_has_the_same_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    root = tmp_path / "root"
    targets = fill(root, "a.o", "b/c.o")
    (tmp_path / "link").symlink_to("root", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    sources = find_sources([name.format(tmp_path.name)])
    assert [source.targets for source in sources] == [(target,) for target in targets]
    assert [os.path.realpath(source.name) for source in sources] == targets


def test_what_is_not_there_is_a_job_that_fails(tmp_path: Path) -> None:
    missing, dangling = tmp_path / "missing", tmp_path / "dangling"
    dangling.symlink_to("nowhere")
    jobs = jobs_for([missing, dangling])
    failed = ("failed", ErrorKind.SYSTEM, "No such file or directory")
    assert [(done.status, done.kind, done.reason) for done in map(run_job, jobs)] == [failed] * 2


def test_jobs_and_outcomes_can_be_sent(tmp_path: Path) -> None:
    (path,) = fill(tmp_path, "one.o")
    (job,) = jobs_for([path], Request(wants_account=True))
    outcome = run_job(pickle.loads(pickle.dumps(job)))  # noqa: S301 - our own bytes
    assert outcome.status == "converted"
    assert pickle.loads(pickle.dumps(outcome)) == outcome  # noqa: S301 - our own bytes
