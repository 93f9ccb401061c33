# SPDX-License-Identifier: Apache-2.0
"""Convert files in place on a dask cluster: `convert.py SCHEDULER FILE...`."""

import sys
from collections.abc import Iterable
from concurrent.futures import Executor, as_completed

from cfi2sframe import convert_file


def convert_all(executor: Executor, paths: Iterable[str]) -> int:
    """Convert files by any executor, and print what becomes of each; return how many failed. Errors name their file."""
    failed = 0
    jobs = {executor.submit(convert_file, path, in_place=True): path for path in paths}
    for job in as_completed(jobs):
        error = job.exception()
        failed += error is not None
        print(error or f"{jobs[job]}: {job.result().status}")
    return failed


if __name__ == "__main__":
    from dask.distributed import Client

    with Client(sys.argv[1]) as client:
        sys.exit(convert_all(client.get_executor(), sys.argv[2:]) > 0)
