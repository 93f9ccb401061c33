# SPDX-License-Identifier: Apache-2.0
"""Stop the threads of a process, read their registers, resume them: ptrace(2).

Threads are seized (PTRACE_SEIZE): no signal is sent, and a process that was stopped before stays stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import InputError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_PTRACE_DETACH: Final = 17
_PTRACE_GETREGSET: Final = 0x4204
_PTRACE_SEIZE: Final = 0x4206
_PTRACE_INTERRUPT: Final = 0x4207
_WALL: Final = 0x40000000

#: The longest wait for a thread to stop. One that waits for a device, or for its vfork child, does not stop.
_STOP_SECONDS: Final = 5.0
_MAX_REGSET_SIZE: Final = 4096
#: How often new threads are looked for, which may appear while others are being seized.
_MAX_ROUNDS: Final = 100


class _IoVector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class StoppedThreads:
    """The threads of a process, stopped while the `with` block runs.

    `thread_id` None: all of them. Raises `InputError` when they cannot be stopped; then all are resumed.
    """

    def __init__(self, pid: int, thread_id: int | None = None) -> None:
        self.pid = pid
        self._only = thread_id
        self._library = ctypes.CDLL(None, use_errno=True)
        self._library.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._library.ptrace.restype = ctypes.c_long
        self._seized: list[int] = []
        #: Stopped threads, and the signal that each was about to receive.
        self._stopped: dict[int, int] = {}

    def __enter__(self) -> Self:
        try:
            self._stop_all()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._release()

    @property
    def threads(self) -> list[int]:
        """The ids of the stopped threads, the main thread first."""
        return sorted(self._stopped, key=lambda thread: (thread != self.pid, thread))

    def register_set(self, thread: int, note_type: int) -> bytes | None:
        """Return a thread's registers of a kind (NT_PRSTATUS, ...), or None when it has none of that kind."""
        buffer = ctypes.create_string_buffer(_MAX_REGSET_SIZE)
        vector = _IoVector(ctypes.addressof(buffer), _MAX_REGSET_SIZE)
        if self._ptrace(_PTRACE_GETREGSET, thread, note_type, ctypes.addressof(vector)) < 0:
            return None
        return buffer.raw[: vector.size]

    def _ptrace(self, request: int, thread: int, address: int = 0, data: int = 0) -> int:
        return int(self._library.ptrace(request, thread, address, data))

    def _stop_all(self) -> None:
        for _ in range(_MAX_ROUNDS):
            new = [thread for thread in self._listed() if thread not in self._seized]
            if not new:
                break
            started = [thread for thread in new if self._seize(thread)]
            deadline = time.monotonic() + _STOP_SECONDS
            for thread in started:
                self._wait(thread, deadline)
        if not self._stopped:
            raise InputError(
                "no such process" if self._only in (None, self.pid) else f"no thread {self._only} in this process"
            )

    def _listed(self) -> list[int]:
        try:
            threads = [int(name) for name in os.listdir(f"/proc/{self.pid}/task")]
        except FileNotFoundError:
            return []
        return [thread for thread in threads if self._only in (None, thread)]

    def _seize(self, thread: int) -> bool:
        """Seize a thread and have it stop. False when it has ended. Raises `InputError` when it is not permitted."""
        self._seized.append(thread)
        if self._ptrace(_PTRACE_SEIZE, thread) < 0:
            code = ctypes.get_errno()
            if code == errno.ESRCH:
                return False
            raise InputError(self._refusal(code))
        return self._ptrace(_PTRACE_INTERRUPT, thread) >= 0

    def _refusal(self, code: int) -> str:
        """Return why the kernel does not let the process be traced."""
        status = _status(self.pid)
        if self.pid == os.getpid():
            return "a process cannot trace itself"
        if status.get("State", "").startswith("Z"):
            return "the process has ended and waits for its parent"
        if status.get("TracerPid", "0") != "0":
            return f"another process traces it already: {status['TracerPid']}"
        if code == errno.EPERM:
            return (
                "not permitted to trace it; this needs the user of the process, or root, "
                "and a kernel.yama.ptrace_scope that allows it"
            )
        return os.strerror(code)

    def _wait(self, thread: int, deadline: float) -> None:
        """Wait until a thread has stopped, or ended."""
        pause = 1e-5
        while True:
            try:
                waited, status = os.waitpid(thread, _WALL | os.WNOHANG)
            except ChildProcessError:
                return
            if waited and os.WIFSTOPPED(status):
                # A stop caused by ptrace has an event number in the upper half; otherwise a signal caused it.
                self._stopped[thread] = 0 if status >> 16 else os.WSTOPSIG(status)
                return
            if waited:
                return
            if time.monotonic() > deadline:
                raise InputError(f"thread {thread} does not stop; it waits in the kernel")
            time.sleep(pause)
            pause = min(pause * 2, 0.01)

    def _release(self) -> None:
        for thread in self._seized:
            if thread not in self._stopped:
                # Seized, but it has not stopped yet: only a stopped thread can be detached.
                with contextlib.suppress(InputError):
                    self._wait(thread, time.monotonic() + 0.1)
        for thread, signal_number in self._stopped.items():
            self._ptrace(_PTRACE_DETACH, thread, 0, signal_number)
        self._stopped.clear()
        self._seized.clear()


def _status(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            fields = [line.partition(":") for line in file]
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in fields}
