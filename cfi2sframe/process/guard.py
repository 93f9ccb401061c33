# SPDX-License-Identifier: Apache-2.0
"""Limit the CPU time and the memory of a job in proportion to the size of its input.

A few bytes can demand much work: expressions that are evaluated again and again, rows that functions share, headers and
names that overlap. No code counts them; a timer and the kernel's limit on the address space end them.

The limits belong to the process: the command line and its workers set them for each job, the library sets none. A
program that converts untrusted files can set them in its main thread:

with guard.limited(os.path.getsize(path)):
    conversion = cfi2sframe.convert(path)
"""

import resource
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Final, NoReturn

from cfi2sframe.errors import CostError, is_out_of_memory

__all__ = ["limited"]

_FOREVER: Final = float("inf")
_MIB: Final = 1 << 20
#: The promise of SECURITY.md: CPU seconds, and bytes of address space on top of what the process has mapped before.
_SECONDS: Final = 2.0
_SECONDS_PER_MIB: Final = 10.0
#: In addition, for code whose instructions are followed: bash without CFI takes 11 s per MiB on a fast machine.
_SECONDS_PER_MIB_OF_CODE: Final = 50.0
_MEMORY: Final = 300 * _MIB
_MEMORY_PER_BYTE: Final = 200
#: The timer fires again after so many CPU seconds, because Python cannot raise an exception everywhere (not in a
#: finaliser or the callback of a weak reference).
_AGAIN: Final = 1.0
_SOON: Final = 1e-6
_MIN_OWED: Final = 0.1
#: Limits of this size or more are none: the kernel's are signed 64-bit numbers.
_NO_LIMIT_FROM: Final = 1 << 62


class _JobLimits:
    """The limits of a job, and the handler of its timer's signal, which is installed while they hold.

    `code_size` bytes may still be granted time as code that is followed. `has_parts`: `part` has limits of its own.
    """

    def __init__(self, seconds: float, code_size: int, *, has_parts: bool) -> None:
        self.seconds = seconds
        self.code_size = code_size
        self.has_parts = has_parts
        #: CPU seconds of other processes that are not taken from the timer yet.
        self.owed = 0.0

    def __call__(self, _number: int, _frame: FrameType | None) -> NoReturn:
        raise CostError(f"takes more CPU time than a file of this size accounts for ({self.seconds:,.1f} s)")


def _running_job() -> _JobLimits | None:
    """Return the limits of the running job, if it has any."""
    handler = signal.getsignal(signal.SIGPROF)
    return handler if isinstance(handler, _JobLimits) else None


@contextmanager
def limited(input_size: int, *, has_parts: bool = True) -> Iterator[None]:
    """Limit the CPU time and the memory of a block that works on `input_size` bytes, not counting holes.

    Without `has_parts`, other files that it reads are within these limits, too.

    Raises `CostError` in the block when it exceeds either; memory is limited only where /proc tells how much is in use.
    A lower limit of the caller (`ulimit -v`) stays in force, with a `MemoryError`.
    """
    seconds = _SECONDS + _SECONDS_PER_MIB * input_size / _MIB
    memory = _MEMORY + _MEMORY_PER_BYTE * input_size
    mapped = mapped_size()
    outer, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _NO_LIMIT_FROM if mapped is None else mapped + memory
    is_part = _running_job() is not None
    is_ours = limit < _NO_LIMIT_FROM and (is_part or outer == resource.RLIM_INFINITY or limit < outer)
    handler = signal.signal(signal.SIGPROF, _JobLimits(seconds, input_size, has_parts=has_parts))
    left = signal.setitimer(signal.ITIMER_PROF, seconds, _AGAIN)
    is_exhausted = False
    try:
        if is_ours:
            _limit_memory(limit, hard)
        yield
    except Exception as error:
        is_exhausted = is_ours and is_out_of_memory(error)
        if not is_exhausted:
            raise
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if is_ours:
            kept = (mapped_size() or 0) - (mapped or 0) if is_part else 0
            _limit_memory(outer + max(kept, 0), hard)
        signal.signal(signal.SIGPROF, handler)
        signal.setitimer(signal.ITIMER_PROF, *left)
    if is_exhausted:
        # Only here is there memory again for another exception.
        raise CostError(f"takes more memory than a file of this size accounts for ({memory // _MIB:,} MiB)")


def _limit_memory(size: int, hard: int) -> None:
    if hard != resource.RLIM_INFINITY:
        size = min(size, hard) if size >= 0 else size
    resource.setrlimit(resource.RLIMIT_AS, (size, hard))


def part(input_size: int, *, has_parts: bool = True) -> AbstractContextManager[None]:
    """Give a block that reads another file limits of its own (see `limited`), if the job has any, and parts.

    Meanwhile the clock of the job stands still, and what the part keeps in memory is not charged to it.
    """
    job = _running_job()
    return limited(input_size, has_parts=has_parts) if job is not None and job.has_parts else nullcontext()


def grant_for_code(size: int) -> None:
    """Give the running job, if it has limits, more time for `size` bytes of code whose instructions are followed.

    Code is part of the input: files in an archive, and passes over the same code, get no more than that accounts for.
    """
    job = _running_job()
    if job is not None:
        size = min(size, job.code_size)
        job.code_size -= size
        seconds = _SECONDS_PER_MIB_OF_CODE * size / _MIB
        job.seconds += seconds
        left, _ = signal.getitimer(signal.ITIMER_PROF)
        signal.setitimer(signal.ITIMER_PROF, left + seconds, _AGAIN)


def seconds_left() -> float:
    """Return the CPU seconds that the running job has left; without limits there is no end to them."""
    job = _running_job()
    return _FOREVER if job is None else signal.getitimer(signal.ITIMER_PROF)[0] - job.owed


def charge(seconds: float) -> None:
    """Take the CPU seconds that another process has used for the running job from its time, if it has limits."""
    job = _running_job()
    if job is not None:
        job.owed += seconds
        # Linux adds a tick of its clock to whatever a timer is set to.
        if job.owed >= _MIN_OWED:
            left, job.owed = seconds_left(), 0.0
            # A timer of 0 would never fire.
            signal.setitimer(signal.ITIMER_PROF, max(left, _SOON), _AGAIN)


def mapped_size() -> int | None:
    """Return the size of this process's address space in bytes; None without /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return None
