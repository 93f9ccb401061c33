# SPDX-License-Identifier: Apache-2.0
"""What runs the jobs of the command line: processes of its own, or an executor that the user names."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import RequestError
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.records import Outcome
from cfi2sframe.jobs.runner import in_order, size_of
from cfi2sframe.processes import Lost, shared_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor

    from cfi2sframe.jobs.records import Job

_SAFE_PATH: Final = "PYTHONSAFEPATH"


@contextmanager
def run_in_processes(
    jobs: Sequence[Job], count: int, on_done: Callable[[Job, Outcome], None] | None = None
) -> Iterator[Iterator[Outcome]]:
    """Run jobs as `run` does, in `count` processes; leaving the context ends them, at work or not."""
    _load_what_is_needed()
    with shared_out(run_job, jobs, size_of, count) as results:
        finished = (
            (number, _lost(jobs[number], result.reason) if isinstance(result, Lost) else result)
            for number, result in results
        )
        yield in_order(jobs, finished, on_done)


def _load_what_is_needed() -> None:
    """Load all that every conversion loads: copies of this process share it."""
    from cfi2sframe import api, conversion, emit
    from cfi2sframe.rewrite import linked, objects

    del api, conversion, emit, linked, objects


def _lost(job: Job, reason: str) -> Outcome:
    detail = "" if job.settings.only_checks else "; whether the file was converted is not known"
    return Outcome(job.name, job.other_names, "failed", "unusable", f"{reason}{detail}")


def load_factory(text: str) -> Callable[..., Executor]:
    """Return what `MODULE:CALLABLE` names: a factory of executors. Raises `RequestError` without it.

    The module is looked for where this program's own modules are: PYTHONPATH, installed packages.
    """
    from importlib import import_module

    module_name, separator, name = text.partition(":")
    if not (module_name and separator and name):
        raise RequestError(f"not MODULE:CALLABLE: {text!r}")
    try:
        found: object = import_module(module_name)
    except (ImportError, TypeError, ValueError) as error:
        raise RequestError(f"executor {text!r}: {error}") from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise RequestError(f"executor {text!r}: module {module_name!r} has no callable {name!r}")
    return found


@contextmanager
def named_executor(text: str, worker_count: int) -> Iterator[Executor]:
    """Make an executor by the factory that `MODULE:CALLABLE` names, and end it. Raises `RequestError` if none is made.

    Interpreters that it starts on this machine are not to look for modules in the current directory, unless
    PYTHONSAFEPATH says otherwise.
    """
    factory = load_factory(text)
    is_set = _SAFE_PATH in os.environ
    os.environ.setdefault(_SAFE_PATH, "1")
    try:
        try:
            executor = factory(max_workers=worker_count)
        except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise RequestError(f"executor {text!r}: {error}") from None
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=True, cancel_futures=True)
            raise
        executor.shutdown()
    finally:
        if not is_set:
            del os.environ[_SAFE_PATH]
