# SPDX-License-Identifier: Apache-2.0
"""Run many jobs, here or in processes, and give their outcomes in the order of the jobs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from cfi2sframe.batch import Lost, in_order, results_of
from cfi2sframe.errors import ErrorKind
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.records import Job, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def size_of(job: Job) -> int:
    """Return the size of a job's file in bytes, 0 if it is unknown."""
    return 0 if job.state is None else job.state.st_size


@contextmanager
def running(
    jobs: Sequence[Job],
    *,
    count: int = 1,
    on_done: Callable[[Job, Outcome], None] | None = None,
) -> Iterator[Iterator[Outcome]]:
    """Run jobs here, or in `count` processes; give the outcomes in the order of the jobs.

    `on_done` sees each outcome as soon as it is known. Leaving the context ends the processes.
    """
    if count > 1:
        _load_what_is_needed()
    with results_of(run_job, jobs, size_of, count=count) as results:
        yield in_order(_outcomes(jobs, results, on_done))


def _load_what_is_needed() -> None:
    """Load what every conversion loads, so that the copies of this process share it."""
    from cfi2sframe import api, conversion, emit
    from cfi2sframe.placing import linked, objects

    del api, conversion, emit, linked, objects


def _outcomes(
    jobs: Sequence[Job],
    results: Iterator[tuple[int, Outcome | Lost]],
    on_done: Callable[[Job, Outcome], None] | None,
) -> Iterator[tuple[int, Outcome]]:
    for number, result in results:
        job = jobs[number]
        outcome = _lost(job, result.reason) if isinstance(result, Lost) else result
        if on_done is not None:
            on_done(job, outcome)
        yield number, outcome


def _lost(job: Job, reason: str) -> Outcome:
    detail = "" if job.settings.only_checks else "; it is not known whether the file was converted"
    return Outcome(job.name, job.other_names, "failed", ErrorKind.SYSTEM, f"{reason}{detail}")
