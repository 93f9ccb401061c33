# SPDX-License-Identifier: Apache-2.0
"""Jobs run here, by a pool of processes, and by executors that fail: the same outcomes in the same order."""

from __future__ import annotations

import shutil
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pytest

from cfi2sframe.errors import ErrorKind, RequestError
from cfi2sframe.jobs import Job, Settings, run, run_job, work_list
from cfi2sframe.jobs.runner import running, size_of
from cfi2sframe.pool import load_factory, run_task, tasks_of
from tests.support.jobs import TRUNCATED, object_of, object_with_gap, tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cfi2sframe.jobs import Outcome

COUNT = 40

P = ParamSpec("P")
R = TypeVar("R")


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
    return [
        outcome._replace(name=outcome.name.removeprefix(str(folder)), state=None, account="") for outcome in outcomes
    ]


def test_a_pool_gives_the_same_bytes_and_the_same_outcomes_in_the_same_order(folder: Path, tmp_path: Path) -> None:
    copy, threads_copy = tmp_path / "copy", tmp_path / "threads"
    shutil.copytree(folder, copy)
    shutil.copytree(folder, threads_copy)
    here = list(run(jobs_of(folder)))
    seen: list[str] = []
    with running(jobs_of(copy), count=2, on_done=lambda job, _: seen.append(job.name)) as done:
        there = list(done)
    with ThreadPoolExecutor(2) as threads:
        elsewhere = list(run(jobs_of(threads_copy), threads))
    assert [outcome.name for outcome in here] == [job.name for job in jobs_of(folder)]
    assert summary(here, folder) == summary(there, copy) == summary(elsewhere, threads_copy)
    assert sorted(seen) == [outcome.name for outcome in there]
    assert [o.status for o in here].count("converted") == COUNT - 1
    bytes_here, bytes_there, bytes_elsewhere = (
        {name: item.data for name, item in tree(root).items()} for root in (folder, copy, threads_copy)
    )
    assert bytes_here == bytes_there == bytes_elsewhere
    before = tree(copy)
    with running(jobs_of(copy), count=2) as done:
        again = list(done)
    assert {outcome.status for outcome in again} == {"unchanged", "failed"}
    assert tree(copy) == before


@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 64, 1000])
def test_tasks_hold_every_item_once_and_in_order(count: int) -> None:
    tasks = tasks_of([0] * count)
    assert [number for task in tasks for number in range(task.first, task.end)] == list(range(count))
    assert all(task.end - task.first <= max(1, count // 32) for task in tasks)
    assert [(task.end - task.first, task.size) for task in tasks_of([1 << 18] * count)] == [(1, 1 << 18)] * count


class _Failing(Executor):
    """Runs the first tasks, and fails with the others."""

    def __init__(self, good_count: int, fail: Callable[[Future[Any]], None]) -> None:
        self.left = good_count
        self.fail = fail

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """As an executor does."""
        future: Future[R] = Future()
        self.left -= 1
        if self.left >= 0:
            future.set_result(fn(*args, **kwargs))
        else:
            self.fail(future)
        return future


def cancel(future: Future[Any]) -> None:
    future.cancel()
    # Waiters are told by who would have run it.
    future.set_running_or_notify_cancel()


def refuse(_: Future[Any]) -> None:
    raise BrokenProcessPool("made up")


@pytest.mark.parametrize(
    ("fail", "detail"),
    [
        (lambda future: future.set_exception(BrokenProcessPool("made up")), " (BrokenProcessPool: made up)"),
        (lambda future: future.set_exception(ValueError("made up")), " (ValueError: made up)"),
        (cancel, " (CancelledError: )"),
        (refuse, " (BrokenProcessPool: made up)"),
    ],
)
def test_an_executor_that_fails_loses_what_it_was_given_and_nothing_else(
    folder: Path, fail: Callable[[Future[Any]], None], detail: str
) -> None:
    jobs = jobs_of(folder)
    outcomes = list(run(jobs, _Failing(10, fail)))
    assert [outcome.name for outcome in outcomes] == [job.name for job in jobs]
    lost = [outcome for outcome in outcomes if outcome.kind is ErrorKind.SYSTEM]
    assert len(lost) == COUNT - 10
    assert {outcome.reason for outcome in lost} == {
        f"the executor lost it{detail}; it is not known whether the file was converted"
    }
    assert {outcome.status for outcome in list(run(jobs))} == {"converted", "unchanged", "failed"}


def test_the_factory_of_an_executor() -> None:
    assert load_factory("concurrent.futures:ThreadPoolExecutor") is ThreadPoolExecutor
    for text, message in (
        ("concurrent.futures", "not MODULE:CALLABLE"),
        (":name", "not MODULE:CALLABLE"),
        ("no_such_module:name", "No module named 'no_such_module'"),
        ("concurrent.futures:Nothing", "has no callable 'Nothing'"),
        ("concurrent.futures:FIRST_COMPLETED", "has no callable 'FIRST_COMPLETED'"),
    ):
        with pytest.raises(RequestError, match=message):
            load_factory(text)


def test_jobs_run_together_are_independent(folder: Path) -> None:
    outcomes = run_task(run_job, jobs_of(folder), size_of)
    assert [outcome.kind for outcome in outcomes].count(ErrorKind.DAMAGED) == 1
