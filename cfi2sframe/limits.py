# SPDX-License-Identifier: Apache-2.0
"""The kernel's limits of a worker process for one input: the last line of defence, where no `Budget` counts.

Only for workers that this program has started. A limit holds for a whole process: a library must not set it for its
caller, and a process that a user has started obeys the user's limits (`ulimit`).
"""

from __future__ import annotations

import math
import resource
import time
from typing import Final

_MIB: Final = 1 << 20
#: CPU seconds: four times the promise of SECURITY.md, since machines differ.
_BASE_SECONDS: Final = 8
_SECONDS_PER_MIB: Final = 40
#: Bytes of address space beyond what the worker had mapped before the input.
_BASE_MEMORY: Final = 300 * _MIB
_MEMORY_PER_BYTE: Final = 200
#: A worker that has grown by this many bytes does not return its memory, and is replaced.
_MAX_GROWTH: Final = 256 * _MIB
#: The kernel's limits are signed 64-bit numbers; from here on there is no limit.
_NO_LIMIT_FROM: Final = 1 << 62


def cpu_seconds(input_size: int) -> int:
    """Return the CPU seconds that an input of this size (bytes) is granted."""
    return _BASE_SECONDS + -(-_SECONDS_PER_MIB * input_size // _MIB)


class WorkerLimits:
    """The limits of this process, set for each input; never looser than those that it was started with."""

    def __init__(self) -> None:
        self._outer = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS)}
        self._mapped_at_start = _mapped_size()
        # A worker that runs out of time needs no core file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

    def grant(self, input_size: int) -> None:
        """Allow what an input of this size (bytes) may use, on top of what this process has used so far.

        At the limit of CPU time the kernel ends the process (SIGXCPU); at that of memory, allocations fail. An input of
        unknown size (0: a pipe, a device) has the limits that this process was started with.
        """
        if not input_size:
            for kind, limits in self._outer.items():
                resource.setrlimit(kind, limits)
            return
        self._set(resource.RLIMIT_CPU, math.ceil(time.process_time()) + cpu_seconds(input_size))
        mapped = _mapped_size()
        if mapped is not None:
            self._set(resource.RLIMIT_AS, mapped + _BASE_MEMORY + _MEMORY_PER_BYTE * input_size)

    def has_grown(self) -> bool:
        """Whether this process has kept so much memory that a new one should replace it."""
        mapped = _mapped_size()
        return mapped is not None and self._mapped_at_start is not None and mapped - self._mapped_at_start > _MAX_GROWTH

    def _set(self, kind: int, wanted: int) -> None:
        soft, hard = self._outer[kind]
        if wanted >= _NO_LIMIT_FROM:
            wanted = soft
        elif soft != resource.RLIM_INFINITY:
            wanted = min(wanted, soft)
        resource.setrlimit(kind, (wanted, hard))


def _mapped_size() -> int | None:
    """Return the size of this process's address space in bytes; None without /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return None
