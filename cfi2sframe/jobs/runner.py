# SPDX-License-Identifier: Apache-2.0
"""Run jobs: one after the other here, or by anything that looks like an executor of `concurrent.futures`."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.records import Job, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor

#: A task is a few small files or one large one: sending it to a process costs as much as a tenth of a small file.
_TASK_SIZE: Final = 1 << 18
_TASK_FILE_COUNT: Final = 16
#: No task holds more than this share of the files, so that few files are shared out as well.
_TASK_SHARE: Final = 32
#: Behind this many bytes of input, the memory of what refers to itself is given back.
_COLLECT_SIZE: Final = 1 << 20
_LOST: Final = "whether it was converted is not known, its process is gone; run again"


class Task(NamedTuple):
    """Jobs that are run together, and the number of the first in the list of all."""

    first: int
    jobs: tuple[Job, ...]

    @property
    def size(self) -> int:
        """The bytes of the files."""
        return sum(size_of(job) for job in self.jobs)


def size_of(job: Job) -> int:
    """Return the bytes of a job's file."""
    return 0 if job.state is None else job.state.size


def run_jobs(jobs: tuple[Job, ...]) -> tuple[Outcome, ...]:
    """Run jobs one after the other; what executors are given."""
    outcomes = []
    pending = 0
    for job in jobs:
        outcomes.append(run_job(job))
        pending += size_of(job)
        # What has failed may have taken the memory that the next one needs.
        if pending >= _COLLECT_SIZE or outcomes[-1].status == "failed":
            gc.collect()
            pending = 0
    return tuple(outcomes)


def run(
    jobs: Sequence[Job],
    executor: Executor | None = None,
    *,
    on_done: Callable[[Job, Outcome], None] | None = None,
) -> Iterator[Outcome]:
    """Run jobs and yield their outcomes in the order of the jobs; without an executor, in this process.

    `on_done` sees each outcome as soon as it is there, in whatever order. Whoever made the executor ends it.
    """
    tasks = tasks_of(jobs)
    finished = _in_process(tasks) if executor is None else _by_executor(tasks, executor)
    numbered = ((number, outcome) for task, outcomes in finished for number, outcome in enumerate(outcomes, task.first))
    return in_order(jobs, numbered, on_done)


def in_order(
    jobs: Sequence[Job],
    finished: Iterable[tuple[int, Outcome]],
    on_done: Callable[[Job, Outcome], None] | None = None,
) -> Iterator[Outcome]:
    """Yield the outcomes of jobs in their order. `finished` has them with their jobs' numbers, as they come."""
    waiting: dict[int, Outcome] = {}
    position = 0
    for number, outcome in finished:
        if on_done is not None:
            on_done(jobs[number], outcome)
        waiting[number] = outcome
        while position in waiting:
            yield waiting.pop(position)
            position += 1


def tasks_of(jobs: Sequence[Job]) -> list[Task]:
    """Put neighbouring small files together."""
    limit = max(1, min(_TASK_FILE_COUNT, len(jobs) // _TASK_SHARE))
    tasks: list[Task] = []
    start = size = 0
    for number, job in enumerate(jobs):
        if number > start and (size + size_of(job) > _TASK_SIZE or number - start >= limit):
            tasks.append(Task(start, tuple(jobs[start:number])))
            start, size = number, 0
        size += size_of(job)
    if jobs:
        tasks.append(Task(start, tuple(jobs[start:])))
    return tasks


def _in_process(tasks: list[Task]) -> Iterator[tuple[Task, tuple[Outcome, ...]]]:
    for task in tasks:
        yield task, run_jobs(task.jobs)


def _by_executor(tasks: list[Task], executor: Executor) -> Iterator[tuple[Task, tuple[Outcome, ...]]]:
    """Submit the largest first: no process then ends with the longest task."""
    from concurrent.futures import BrokenExecutor, CancelledError, as_completed

    ordered = sorted(tasks, key=lambda task: -task.size)
    futures = {}
    for number, task in enumerate(ordered):
        try:
            futures[executor.submit(run_jobs, task.jobs)] = task
        except BrokenExecutor:
            yield from ((rest, _lost(rest, "")) for rest in ordered[number:])
            break
    for future in as_completed(list(futures)):
        task = futures.pop(future)
        try:
            # What is run raises nothing; what arrives nevertheless is the executor's.
            error = future.exception()
        except CancelledError as cancelled:
            error = cancelled
        yield task, future.result() if error is None else _lost(task, f"{type(error).__name__}: {error}")


def _lost(task: Task, detail: str) -> tuple[Outcome, ...]:
    reason = f"{_LOST} ({detail})" if detail else _LOST
    return tuple(Outcome(job.name, job.other_names, "failed", "unusable", reason) for job in task.jobs)
