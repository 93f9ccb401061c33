# ruff: noqa: INP001 - a module on PYTHONPATH, not a package
# SPDX-License-Identifier: Apache-2.0
"""An executor for `cfi2sframe --executor cfi2sframe_dask:executor`: a Dask cluster converts the files.

CFI2SFRAME_DASK_SCHEDULER names the cluster (`tcp://host:8786`, or the path of a scheduler file that ends in .json).
Without it, the executor starts processes on this machine, which end with the run. Workers need cfi2sframe installed and
the files under the same absolute paths.
"""

from __future__ import annotations

import os
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed import Client

P = ParamSpec("P")
R = TypeVar("R")

SCHEDULER = "CFI2SFRAME_DASK_SCHEDULER"


class DaskExecutor(Executor):
    """Dask's own executor, which does not shut a cluster down, and the cluster if it was started for this run."""

    def __init__(self, client: Client, owned: Any) -> None:  # noqa: ANN401 - Dask has many kinds of clusters
        self._client = client
        self._owned = owned
        # A task that writes files is no pure function: equal tasks must run each time.
        self._executor = client.get_executor(pure=False)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Submit a call, as any executor does."""
        future: Future[R] = self._executor.submit(fn, *args, **kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as its base
        """End the run, and the cluster if it was started for this run."""
        self._executor.shutdown(wait=wait and not cancel_futures)
        self._client.close()
        if self._owned is not None:
            self._owned.close()


def executor(max_workers: int) -> DaskExecutor:
    """Return an executor of that many workers, or of all that the named cluster has."""
    from distributed import Client, LocalCluster

    place = os.environ.get(SCHEDULER)
    if place:
        client = Client(scheduler_file=place) if place.endswith(".json") else Client(place)
        return DaskExecutor(client, None)
    cluster = LocalCluster(n_workers=max_workers, threads_per_worker=1, dashboard_address=None)
    return DaskExecutor(Client(cluster), cluster)
