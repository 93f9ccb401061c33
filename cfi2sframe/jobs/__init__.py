# SPDX-License-Identifier: Apache-2.0
"""Files that get their section, or lose it: a work list, one function for each file, and what runs it for many.

jobs = cfi2sframe.jobs.work_list(["build/"], cfi2sframe.jobs.Settings(), recurse=True)
outcomes = list(cfi2sframe.jobs.run(jobs))

Jobs and outcomes are immutable records that can be pickled, so that any engine can run them: `run_job(job)` does all
the work on a file, and gives the same bytes wherever it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.lazy import importer

if TYPE_CHECKING:
    from cfi2sframe.files.descriptors import FileState
    from cfi2sframe.jobs.job import run_job
    from cfi2sframe.jobs.listing import work_list
    from cfi2sframe.jobs.records import Job, Outcome, Output, Settings
    from cfi2sframe.jobs.runner import run
    from cfi2sframe.jobs.single import convert_file

__all__ = ["FileState", "Job", "Outcome", "Output", "Settings", "convert_file", "run", "run_job", "work_list"]

_HOMES = {
    "FileState": "listing",
    "Job": "records",
    "Outcome": "records",
    "Output": "records",
    "Settings": "records",
    "convert_file": "single",
    "run": "runner",
    "run_job": "job",
    "work_list": "listing",
}

# Writing one file must not pay for pools of processes.
__getattr__ = importer(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
