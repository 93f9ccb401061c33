# SPDX-License-Identifier: Apache-2.0
"""Make names readable that compilers have mangled: C++ by its run-time library, Rust by `rust_names`.

The library's function is `__cxa_demangle` (Itanium C++ ABI). A name of 100 characters can keep it busy practically for
ever: each level of nested substitutions, packs or conversion operators doubles the text. No limit on the length of a
name or its references is both safe and useful, so a forked process does the work, with limits on CPU time and memory
that the kernel enforces. No program is executed.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import struct
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Self

#: CPU seconds and bytes of memory that one process may use. An ordinary name needs 10 us.
CPU_SECONDS: Final = 0.2
_MEMORY_SIZE: Final = 64 << 20
#: How many processes are started at most; after that names stay mangled.
MAX_PROCESSES: Final = 3
#: The longest name and text in bytes. The kernel transfers that many at once through a pipe.
_MAX_NAME_SIZE: Final = 4096
_MAX_TEXT_SIZE: Final = 1 << 16
#: The longest wait for an answer, on a busy machine.
_WAIT_SECONDS: Final = 10.0
#: The sonames of GCC's and LLVM's libraries.
_LIBRARIES: Final = ("libstdc++.so.6", "libc++abi.so.1", "libc++.so.1")
_SIZE: Final = struct.Struct("I")
#: What mangled names begin with.
_PREFIXES: Final = ("_Z", "_R")
#: Steps, each about a microsecond, that all Rust names together may take.
_RUST_STEPS: Final = 500_000
#: Characters that all readable names of one report may have together.
_REPORT_SIZE: Final = 4 << 20


def readable_names(names: Iterable[str]) -> dict[str, str]:
    """Return the readable form of the mangled names among those that a report shows, each as often as it is given here.

    Names are missing that are not mangled, that cannot be read, or for which there is no room: readable names may be
    many times as long. Without a mangled name this costs nothing.
    """
    counts = Counter(name for name in names if name.startswith(_PREFIXES))
    readable = dict[str, str]()
    if not counts:
        return readable
    size_left = _REPORT_SIZE
    with Demangler() as demangler:
        for name, count in counts.items():
            text = demangler.readable(name)
            if text != name and count * len(text) <= size_left:
                size_left -= count * len(text)
                readable[name] = text
    return readable


class Demangler:
    """Demangles names. To be used in a `with` block, at whose end the forked process is killed."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._processes_left = MAX_PROCESSES
        self._rust_steps_left = _RUST_STEPS
        self._process = 0
        self._questions = self._answers = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def readable(self, name: str) -> str:
        """Return a C++ or Rust name demangled; unchanged when it is no mangled name, or too expensive."""
        if not name.startswith(_PREFIXES) or not name.isascii() or "\0" in name or len(name) > _MAX_NAME_SIZE:
            return name
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._rust(name) or self._ask(name) or name
        return known

    def _rust(self, name: str) -> str | None:
        if self._rust_steps_left <= 0:
            return None
        from cfi2sframe.rust_names import rust_name

        text, steps = rust_name(name)
        self._rust_steps_left -= steps
        return text

    def _ask(self, name: str) -> str | None:
        if not name.startswith("_Z"):
            return None
        try:
            if not self._process and not self._start():
                return None
            os.write(self._questions, _SIZE.pack(len(name)) + name.encode())
            size = _SIZE.unpack(self._read(_SIZE.size))[0]
            return self._read(size).decode("utf-8", "replace")
        except OSError:
            # The process has ended: its limits were exceeded, or there is no library.
            self.close()
            return None

    def _read(self, size: int) -> bytes:
        """Return bytes of the answer. Raises `OSError` when there are none."""
        found = b""
        while len(found) < size:
            ready, _, _ = select.select([self._answers], [], [], _WAIT_SECONDS)
            part = os.read(self._answers, size - len(found)) if ready else b""
            if not part:
                raise BrokenPipeError
            found += part
        return found

    def _start(self) -> bool:
        if self._processes_left == 0:
            return False
        self._processes_left -= 1
        asked, self._questions = os.pipe()
        self._answers, answered = os.pipe()
        try:
            with warnings.catch_warnings():
                # About threads that may hold locks: the child uses none of them.
                warnings.simplefilter("ignore", DeprecationWarning)
                process = os.fork()
            if process == 0:
                try:
                    os.close(self._questions)
                    os.close(self._answers)
                    _serve(asked, answered)
                finally:
                    os._exit(0)
            self._process = process
        finally:
            os.close(asked)
            os.close(answered)
        return True

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
        for descriptor in (self._questions, self._answers):
            if descriptor >= 0:
                os.close(descriptor)
        self._process, self._questions, self._answers = 0, -1, -1


def _serve(asked: int, answered: int) -> None:
    """Answer names until the pipe is closed or a limit is exceeded. Runs in the forked process."""
    import ctypes

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    with open("/proc/self/statm", "rb") as file:
        size = int(file.read().split()[0]) * resource.getpagesize() + _MEMORY_SIZE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    demangle, free = _functions()
    while head := os.read(asked, _SIZE.size):
        name = os.read(asked, _SIZE.unpack(head)[0])
        found = demangle(name, None, None, None)
        text = name if found is None else ctypes.string_at(found)
        free(found)
        if len(text) > _MAX_TEXT_SIZE:
            text = name
        data = _SIZE.pack(len(text)) + text
        while data:
            data = data[os.write(answered, data) :]


def _functions() -> tuple[Callable[..., int | None], Callable[[int | None], object]]:
    """Return `__cxa_demangle` and `free`. Raises `OSError` where there is no library that has the former."""
    import ctypes

    for library in _LIBRARIES:
        try:
            demangle = ctypes.CDLL(library)["__cxa_demangle"]
        except (OSError, AttributeError):
            continue
        demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        demangle.restype = ctypes.c_void_p
        free = ctypes.CDLL(None)["free"]
        free.argtypes = (ctypes.c_void_p,)
        return demangle, free
    raise OSError("no C++ run-time library")
