# SPDX-License-Identifier: Apache-2.0
"""Many files converted in place: a work list, a function per file, and what runs them.

jobs = cfi2sframe.batch.work_list(["build/"], cfi2sframe.batch.Settings(), recurse=True)
outcomes = list(cfi2sframe.batch.run(jobs, executor))

Jobs and outcomes are immutable records that can be pickled, so any engine can run them: `run_job(job)` does all that is
done to a file, and gives the same bytes wherever it runs. Knows files; nothing of terminals and arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.lazy import importer

if TYPE_CHECKING:
    from cfi2sframe.batch.job import run_job
    from cfi2sframe.batch.records import FileState, Job, Outcome, Settings
    from cfi2sframe.batch.runner import run
    from cfi2sframe.batch.worklist import work_list

__all__ = ["FileState", "Job", "Outcome", "Settings", "run", "run_job", "work_list"]

_HOMES = {
    "FileState": "records",
    "Job": "records",
    "Outcome": "records",
    "Settings": "records",
    "run": "runner",
    "run_job": "job",
    "work_list": "worklist",
}

# Writing one file must not pay for pools of processes.
__getattr__ = importer(__name__, _HOMES)
