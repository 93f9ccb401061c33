# SPDX-License-Identifier: Apache-2.0
"""What Python has no function for: ptrace(2), openat2(2)."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PTRACE_DETACH: Final = 17
_PTRACE_GETREGSET: Final = 0x4204
_PTRACE_SEIZE: Final = 0x4206
_PTRACE_INTERRUPT: Final = 0x4207
_WALL: Final = 0x40000000

#: On all of our ABIs.
_SYS_OPENAT2: Final = 437
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_IN_ROOT: Final = 0x10

#: The longest wait for a thread to stop. One that waits for a device, or for its vfork child, does not stop.
_STOP_SECONDS: Final = 5.0
_MAX_REGSET_SIZE: Final = 4096
#: How often new threads are looked for, which may appear while others are being seized.
_MAX_ROUNDS: Final = 100


@contextmanager
def stopped_threads(pid: int, only: int | None = None) -> Iterator[list[int]]:
    """Stop the threads of a process, or `only` one, while the block runs; it gets their ids, the main thread first.

    They are seized: no signal is sent, and a process that was stopped before stays stopped. Raises `InputError` when
    they cannot be stopped; then all are resumed.
    """
    seized: set[int] = set()
    #: Stopped threads, and the signal that each was about to receive.
    stopped: dict[int, int] = {}
    try:
        for _ in range(_MAX_ROUNDS):
            new = [thread for thread in _threads(pid) if only in (None, thread) and thread not in seized]
            if not new:
                break
            deadline = time.monotonic() + _STOP_SECONDS
            for thread in new:
                seized.add(thread)
                _seize(pid, thread)
            for thread in new:
                _wait(thread, deadline, stopped)
        if not stopped:
            raise InputError("no such process" if only in (None, pid) else f"no thread {only} in this process")
        yield sorted(stopped, key=lambda thread: (thread != pid, thread))
    finally:
        for thread in seized - stopped.keys():
            # Only a stopped thread can be detached.
            with suppress(InputError):
                _wait(thread, time.monotonic() + 0.1, stopped)
        for thread, signal_number in stopped.items():
            _ptrace(_PTRACE_DETACH, thread, 0, signal_number)


def register_set(thread: int, note_type: int) -> bytes:
    """Return the registers of a kind (NT_PRSTATUS, ...) of a stopped thread; none when it has none of that kind."""
    buffer = ctypes.create_string_buffer(_MAX_REGSET_SIZE)
    # struct iovec
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), _MAX_REGSET_SIZE)
    failed = _ptrace(_PTRACE_GETREGSET, thread, note_type, ctypes.addressof(vector)) < 0
    return b"" if failed else buffer.raw[: vector[1]]


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    words = (ctypes.c_long(request), ctypes.c_long(thread), ctypes.c_void_p(address), ctypes.c_void_p(data))
    return int(library.ptrace(*words))


def _threads(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def _seize(pid: int, thread: int) -> None:
    """Seize a thread and have it stop, unless it has ended. Raises `InputError` when that is not permitted."""
    if _ptrace(_PTRACE_SEIZE, thread) >= 0:
        _ptrace(_PTRACE_INTERRUPT, thread)
    elif ctypes.get_errno() != errno.ESRCH:
        raise InputError(_refusal(pid, ctypes.get_errno()))


def _wait(thread: int, deadline: float, stopped: dict[int, int]) -> None:
    """Wait until a thread has stopped, or ended. Raises `InputError` when it does neither."""
    pause = 1e-5
    while True:
        try:
            waited, status = os.waitpid(thread, _WALL | os.WNOHANG)
        except ChildProcessError:
            return
        if waited:
            if os.WIFSTOPPED(status):
                # A stop caused by ptrace has an event number in the upper half; otherwise a signal caused it.
                stopped[thread] = 0 if status >> 16 else os.WSTOPSIG(status)
            return
        if time.monotonic() > deadline:
            raise InputError(f"thread {thread} does not stop; it waits in the kernel")
        time.sleep(pause)
        pause = min(pause * 2, 0.01)


def _refusal(pid: int, code: int) -> str:
    """Return why the kernel does not let a process be traced."""
    text = ""
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        text = file.read()
    tracer = re.search(r"^TracerPid:\s*([1-9]\d*)", text, re.MULTILINE)
    if pid == os.getpid():
        return "a process cannot trace itself"
    if re.search(r"^State:\s*Z", text, re.MULTILINE):
        return "the process has ended and waits for its parent"
    if tracer:
        return f"another process traces it already: {tracer[1]}"
    if code == errno.EPERM:
        needs = "the user of the process, or root, and a kernel.yama.ptrace_scope that allows it"
        return f"not permitted to trace it; this needs {needs}"
    return os.strerror(code)


def open_inside(root: str, path: str) -> int:
    """Return a descriptor (O_PATH) of the file at a path below a root directory, which no link or `..` leads out of.

    Raises `OSError`, also where the kernel is older than 5.6.
    """
    # struct open_how: flags, mode, resolve
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        name, size = ctypes.c_char_p(os.fsencode(path)), ctypes.c_size_t(ctypes.sizeof(how))
        opened = syscall(ctypes.c_long(_SYS_OPENAT2), ctypes.c_long(folder), name, ctypes.byref(how), size)
        if opened < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(opened)
    finally:
        os.close(folder)
