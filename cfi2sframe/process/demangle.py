# SPDX-License-Identifier: Apache-2.0
"""C++ and Rust names in readable form, by binutils' `c++filt` where that is installed.

A name of 100 characters can keep a demangler busy practically for ever: each level of nested substitutions doubles the
text. So the program runs under limits of the kernel on CPU time, memory and output. Its CPU time is the job's.
"""

import os
import resource
from collections.abc import Iterable, Sequence
from typing import Final

from cfi2sframe.process.guard import charge, seconds_left

#: What one run may use: CPU seconds, bytes of memory, bytes of output, seconds by the clock. A name needs 5 us.
CPU_SECONDS: Final = 1
_MEMORY_SIZE: Final = 256 << 20
_OUTPUT_SIZE: Final = 4 << 20
_WAIT_SECONDS: Final = 10.0
#: A run ends at the first name that exceeds its limits; another run continues after it, up to this many runs, and as
#: long as the job has the time for one.
MAX_RUNS: Final = 2
#: The longest name that is asked for, and the longest readable one that is taken, in characters.
_MAX_NAME_SIZE: Final = 4096


def readable_names(names: Iterable[str]) -> dict[str, str]:
    """Return the readable form of the mangled names among some; without one, this costs nothing."""
    wanted = [name for name in dict.fromkeys(names) if name.startswith(("_Z", "_R")) and _is_plain(name)]
    readable: dict[str, str] = {}
    for _ in range(MAX_RUNS):
        if not wanted or seconds_left() <= CPU_SECONDS:
            break
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        texts = _answers(wanted)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        charge(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        readable.update(zip(wanted, texts, strict=False))
        wanted = wanted[len(texts) + 1 :]
    return {name: text for name, text in readable.items() if len(text) <= _MAX_NAME_SIZE}


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isprintable() and " " not in name and len(name) <= _MAX_NAME_SIZE


def _answers(names: Sequence[str]) -> list[str]:
    """Return the lines that c++filt makes of names: fewer when a limit ends it, none without it."""
    # The import takes 3 ms of the 60 of a small file.
    import subprocess

    limits = (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, _MEMORY_SIZE),
        (resource.RLIMIT_FSIZE, _OUTPUT_SIZE),
        (resource.RLIMIT_CORE, 0),
    )
    with open(os.memfd_create("names"), "w+b") as asked, open(os.memfd_create("texts"), "w+b") as answered:
        asked.write("".join(f"{name}\n" for name in names).encode())
        asked.seek(0)
        try:
            process = subprocess.Popen(["c++filt"], stdin=asked, stdout=answered, stderr=subprocess.DEVNULL)  # noqa: S607 - as PATH has it
        except OSError:
            return []
        with process:
            try:
                for limit, size in limits:
                    resource.prlimit(process.pid, limit, (size, size))
                process.wait(_WAIT_SECONDS)
            except (OSError, ValueError, subprocess.TimeoutExpired):
                # It has ended already, a hard limit is lower, or the machine is too busy.
                pass
            finally:
                process.kill()
        answered.seek(0)
        return answered.read().decode("utf-8", "replace").split("\n")[:-1]
