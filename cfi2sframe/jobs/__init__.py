# SPDX-License-Identifier: Apache-2.0
"""Many files converted in place: a work list, a function per file, and what runs them.

jobs = cfi2sframe.jobs.work_list(["build/"], cfi2sframe.jobs.Settings(), recurse=True)
outcomes = list(cfi2sframe.jobs.run(jobs, executor))

Jobs and outcomes are immutable records that can be pickled, so any engine can run them: `run_job(job)` does all that is
done to a file, and gives the same bytes wherever it runs. Knows files; nothing of terminals and arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.lazy import importer

if TYPE_CHECKING:
    from cfi2sframe.jobs.job import run_job
    from cfi2sframe.jobs.listing import work_list
    from cfi2sframe.jobs.records import FileState, Job, Outcome, Settings
    from cfi2sframe.jobs.runner import run

__all__ = ["FileState", "Job", "Outcome", "Settings", "run", "run_job", "work_list"]

_HOMES = {
    "FileState": "records",
    "Job": "records",
    "Outcome": "records",
    "Settings": "records",
    "run": "runner",
    "run_job": "job",
    "work_list": "listing",
}

# Writing one file must not pay for pools of processes.
__getattr__ = importer(__name__, _HOMES)
