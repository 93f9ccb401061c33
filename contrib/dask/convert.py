# SPDX-License-Identifier: Apache-2.0
"""Convert files in place on a dask cluster: `convert.py SCHEDULER FILE...`."""

import os
import sys
from collections.abc import Iterable
from concurrent.futures import Executor, as_completed

from cfi2sframe import convert_file
from cfi2sframe.errors import Cfi2SFrameError


def convert_all(executor: Executor, paths: Iterable[str]) -> int:
    """Convert files by any executor, and print what becomes of each; return how many failed.

    Workers have directories of their own, so paths are made absolute here.
    """
    failed = 0
    jobs = {executor.submit(convert_file, path, in_place=True): path for path in map(os.path.abspath, paths)}
    for job in as_completed(jobs):
        error = job.exception()
        failed += error is not None
        # A worker that was killed knows no file.
        said = error.detail if isinstance(error, Cfi2SFrameError) else error or job.result().status
        print(f"{jobs[job]}: {said}")
    return failed


if __name__ == "__main__":
    from dask.distributed import Client

    try:
        client = Client(sys.argv[1])
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
    with client:
        sys.exit(convert_all(client.get_executor(), sys.argv[2:]) > 0)
