# SPDX-License-Identifier: Apache-2.0
"""The budget of skips: which tests may skip in `.ci/run`, where, and why.

A skip that no entry allows is a fault of the run, since a green run is to mean that all was tested; so is an entry for
which no test skips, since the list would grow stale. The one excuse is an archive that cannot be reached: `absent`
names the targets of `make` that failed for it, and what names one of them as its way out is only counted.
"""

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tests.support.needs import attempt
from tests.support.oracle.tools import tool_version
from tests.support.placing.embedded import is_converted

_GLIBC: Final = Path(__file__).resolve().parents[2] / "build/glibc/version"


class Skip(NamedTuple):
    """A test that has skipped, by its id from tests/ on."""

    test: str
    reason: str


class Allowed(NamedTuple):
    """Tests that may skip, and have to where `is_lacking`; `tests` and `reason` are patterns as of a shell."""

    tests: str
    reason: str
    tier: Literal["first", "second", "both"]
    #: What the machine lacks; or why there is nothing to test, whatever the machine.
    lacks: str
    is_lacking: Callable[[], bool] = lambda: True

    def matches(self, skip: Skip) -> bool:
        return fnmatchcase(skip.test, self.tests) and fnmatchcase(skip.reason, self.reason)


def judge(
    skips: Sequence[Skip], allowed: Sequence[Allowed], tier: str, absent: Sequence[str] = ()
) -> tuple[list[str], int]:
    """Return what is wrong with the skips of a tier's run, and how many are excused by targets that failed."""
    here = [entry for entry in allowed if tier in (entry.tier, "all") or entry.tier == "both"]
    excused = [skip for skip in skips if any(f"make {target}" in skip.reason for target in absent)]
    counted = set(excused)
    wrong = [
        f"{skip.test} skips, which tests/support/skips.py does not allow: {skip.reason}"
        for skip in skips
        if skip not in counted and not any(entry.matches(skip) and entry.is_lacking() for entry in here)
    ]
    if not excused:
        wrong += [
            f"tests/support/skips.py has an entry for which no test skips: {entry.tests}: {entry.reason}"
            for entry in here
            if entry.is_lacking() and not any(map(entry.matches, skips))
        ]
    return wrong, len(excused)


def by_reason(skips: Sequence[Skip]) -> list[str]:
    """Return a line for each reason, with the number of tests, most first."""
    counts = Counter(re.sub(r"\s+", " ", skip.reason) for skip in skips)
    return [f"{count:5} {reason}" for reason, count in counts.most_common()]


def _is_user() -> bool:
    return os.geteuid() != 0


def _cannot_mount() -> bool:
    """Whether the processes here lack CAP_SYS_ADMIN, number 21."""
    (held,) = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line]
    return not int(held, 16) >> 21 & 1


def _cannot_record() -> bool:
    """Whether the kernel lets perf record nothing, or nothing by this user."""
    try:
        return _is_user() and int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) > 2
    except OSError:
        return True


#: Each line of it is one way in which a run of all tests says less than it could.
ALLOWED: Final = (
    Allowed("*", "only root *", "both", "rights: nobody else can give files away, or change users", _is_user),
    Allowed("*", "no file system can be mounted here*", "both", "the right to mount", _cannot_mount),
    Allowed("tests/cli/*", "no terminals here, *", "both", "/dev/pts", lambda: not Path("/dev/pts/ptmx").exists()),
    Allowed(
        "tests/contrib/*", "rpmbuild takes a path with a space for two", "both",
        "a TMPDIR without a space", lambda: " " in tempfile.gettempdir(),
    ),
    Allowed(
        "tests/contrib/test_pages.py::*", "the pages show a system *", "both",
        "programs without a section", lambda: is_converted("/bin/bash"),
    ),
    Allowed(
        "tests/contrib/test_recipes.py::*", "no semaphores *", "both",
        "a /dev/shm that can be written", lambda: not os.access("/dev/shm", os.W_OK),  # noqa: S108 - Linux has semaphores there
    ),
    Allowed(
        "tests/cli/*", "no chattr on *", "both", "file attributes",
        lambda: attempt("lsattr", "-d", tempfile.gettempdir()).status != 0,
    ),
    Allowed("*", "no ld.gold: *", "both", "gold, which Debian 13 dropped", lambda: shutil.which("ld.gold") is None),
    Allowed("tests/trace/test_perf.py::*", "perf cannot record here: *", "both", "the right to record", _cannot_record),
    Allowed(
        "tests/contrib/test_recipes.py::test_cargo*", "no cargo but that of /usr/bin", "both",
        "a second cargo, beside Debian's", lambda: shutil.which("cargo") == "/usr/bin/cargo",
    ),
    Allowed(
        "tests/placing/test_glibc.py::*", "no glibc that reads SFrame*", "second",
        "15 minutes to build one (make glibc)", lambda: not _GLIBC.exists(),
    ),
    Allowed(
        "tests/contrib/test_pages.py::test_the_fault_is_still_there*", "the machine's own gcc is not 14", "second",
        "GCC 14 (Debian 13), whose fault it is", lambda: not tool_version("gcc").startswith("14."),
    ),
    # What follows lacks nothing: such a case does not exist.
    Allowed("tests/placing/*", "g++ does not link this way*", "both", "a linker that takes these options"),
    Allowed("tests/placing/test_later_tools.py::*", "the unmodified file *", "both", "a tool that is itself at fault"),
    Allowed("tests/placing/test_lives.py::*", "the tool refuses this file, *", "both", "a tool for such files"),
    Allowed("tests/placing/test_lives.py::*", "strip without -g *", "both", "a section whose functions are somewhere"),
    Allowed("tests/placing/test_lives.py::*", "no linker writes *", "second", "a linker that omits section headers"),
    Allowed("tests/placing/test_objects.py::*", "version 1 does not define it", "both", "s390x in version 1"),
    Allowed("tests/placing/test_consumer.py::*", "version 2 cannot *", "second", "signal frames in version 2"),
    Allowed("tests/report/test_gnu_size.py::*", "version 1 is checked *", "both", "bytes that must agree"),
    Allowed("tests/report/test_gnu_size.py::*", "binutils 2.44 writes no *", "second", "s390x in that release"),
    Allowed("tests/report/test_gnu_size.py::*", "ld 2.40 fails *", "both", "a linker that links it"),
    Allowed("tests/stubs/test_linked.py::*", "nothing in a static program *", "first", "what would lead to the stubs"),
    Allowed("tests/stubs/test_linked.py::*", "GOT slots are empty: *", "first", "what would lead to the stubs"),
    Allowed("tests/verification/test_readers_of_outputs.py::*", "version 1 *", "second", "s390x in version 1"),
    Allowed("tests/audit/test_compilers.py::*", "clang has no such options", "second", "GCC's options in clang"),
    Allowed("tests/instructions/test_steps.py::*", "clang cannot compile it: *", "second", "GCC's options in clang"),
    Allowed("tests/gotable/test_go_programs.py::*", "position-independent programs *", "second", "a linker for them"),
)  # fmt: skip
