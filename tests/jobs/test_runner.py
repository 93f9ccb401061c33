# SPDX-License-Identifier: Apache-2.0
"""Jobs run here and by a pool of processes: the same outcomes in the same order."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.errors import ErrorKind
from cfi2sframe.jobs import Job, Settings, run, work_list
from cfi2sframe.jobs.runner import running
from tests.support.jobs import TRUNCATED, object_of, object_with_gap, tree

if TYPE_CHECKING:
    from pathlib import Path

    from cfi2sframe.jobs import Outcome

COUNT = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Objects of many sizes, and one that fails."""
    path = tmp_path / "files"
    path.mkdir()
    for number in range(COUNT):
        data = object_with_gap() if number == 3 else object_of(number)
        (path / f"{number:02}.o").write_bytes(TRUNCATED if number == 7 else data)
    return path


def jobs_of(folder: Path) -> list[Job]:
    return work_list([str(folder)], Settings(takes_objects=True), recurse=True)


def summary(outcomes: list[Outcome], folder: Path) -> list[Outcome]:
    """Outcomes without the fields that differ in a copy of the folder."""
    return [outcome._replace(name=outcome.name.removeprefix(str(folder)), account="") for outcome in outcomes]


def test_a_pool_gives_the_same_bytes_and_the_same_outcomes_in_the_same_order(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    here = list(run(jobs_of(folder)))
    seen: list[str] = []
    with running(jobs_of(copy), count=2, on_done=lambda job, _: seen.append(job.name)) as done:
        there = list(done)
    assert [outcome.name for outcome in here] == [job.name for job in jobs_of(folder)]
    assert summary(here, folder) == summary(there, copy)
    assert sorted(seen) == [outcome.name for outcome in there]
    assert [o.status for o in here].count("converted") == COUNT - 1
    assert [o.kind for o in here].count(ErrorKind.DAMAGED) == 1
    bytes_here, bytes_there = ({name: item.data for name, item in tree(root).items()} for root in (folder, copy))
    assert bytes_here == bytes_there
    before = tree(copy)
    with running(jobs_of(copy), count=2) as done:
        again = list(done)
    assert {outcome.status for outcome in again} == {"unchanged", "failed"}
    assert tree(copy) == before
