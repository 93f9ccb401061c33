# SPDX-License-Identifier: Apache-2.0
"""The promise about cost, held to whole runs: time and memory in proportion to the input, and a plain answer."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
MIB: Final = 1 << 20
#: The promise of SECURITY.md, in CPU seconds and bytes of resident memory.
BASE_SECONDS: Final = 2.0
SECONDS_PER_MIB: Final = 10.0
BASE_MEMORY: Final = 300 * MIB
MEMORY_PER_BYTE: Final = 200
#: CPU seconds for the start of the program, and for its way out of a job that has been ended.
MARGIN: Final = 1.0
#: Bytes of memory of the program itself.
MEMORY_MARGIN: Final = 32 * MIB
#: How the program says that a job was ended.
TOO_COSTLY: Final = "than a file of this size accounts for"
#: The exit statuses that a file may lead to; 2 is for requests.
STATUSES: Final = (0, 1, 2, 3, 4)

#: Runs a command and writes what it cost. A process starts with the peak memory of the one that starts it, which may be
#: a large test run; this one is small.
LAUNCHER: Final = """
import os, resource, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
status = os.waitstatus_to_exitcode(os.waitpid(os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ), 0)[1])
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as file:
    file.write(f"{usage.ru_utime + usage.ru_stime} {usage.ru_maxrss * 1024}")
sys.exit(status if status >= 0 else 128 - status)
"""


class BoundedRun(NamedTuple):
    """What a run left, and what it cost: CPU seconds and bytes of resident memory, children included."""

    status: int
    out: str
    err: str
    seconds: float
    memory_size: int

    def is_answered(self, *statuses: int) -> bool:
        """Whether the run ended with one of these statuses, or said that the input costs too much."""
        return self.status in statuses or (self.status == 3 and TOO_COSTLY in self.err + self.out)


def run_within_bound(*arguments: str | Path, input_size: int) -> BoundedRun:
    """Run `python -m cfi2sframe ARGUMENTS...`, and assert that it keeps the promise for `input_size` bytes.

    A process that takes four times the granted CPU time is killed, and the run fails; so it does when it hangs, which
    takes long to tell where many processes share the machine.
    """
    granted = BASE_SECONDS + SECONDS_PER_MIB * input_size / MIB
    command = ["timeout", "--signal=KILL", f"{100 * granted:.0f}", sys.executable, "-P", "-m", "cfi2sframe"]
    command += map(str, arguments)
    with tempfile.NamedTemporaryFile("r") as cost:
        finished = subprocess.run(
            [sys.executable, "-I", "-S", "-c", LAUNCHER, f"{4 * granted:.0f}", cost.name, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        seconds, memory_size = cost.read().split()
    run = BoundedRun(finished.returncode, finished.stdout, finished.stderr, float(seconds), int(memory_size))
    shown = run.err[-500:]
    assert run.status in STATUSES, f"exit status {run.status}: {shown}"
    assert "Traceback" not in run.err, shown
    assert "internal error" not in run.err, shown
    assert run.seconds <= granted + MARGIN, f"{run.seconds:.1f} s, granted are {granted:.1f} s: {shown}"
    allowed = BASE_MEMORY + MEMORY_MARGIN + MEMORY_PER_BYTE * input_size
    assert run.memory_size <= allowed, f"{run.memory_size / MIB:.0f} MiB, allowed are {allowed / MIB:.0f}: {shown}"
    return run
