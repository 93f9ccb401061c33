# SPDX-License-Identifier: Apache-2.0
"""C++ names in readable form: whatever a symbol table holds, the program's own process is safe, and soon done."""

import os
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe.process.demangle import CPU_SECONDS, MAX_RUNS, readable_names
from cfi2sframe.process.guard import charge, limited, seconds_left
from tests.support.needs import need

pytestmark = pytest.mark.fuzz

DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def substitutions(depth: int) -> str:
    """Return a name in which each template's arguments are the last one, twice: 270 characters for a depth of 26."""
    levels = "".join(f"ES_IS{digit}_S{digit}_" for digit in DIGITS[1:depth])
    return f"_Z1f1AIiiES_IS0_S0_{levels}E" if depth else "_Z1f1AIiiE"


#: Names that double with each level, and names that are merely long or deep.
HOSTILE: Final = {
    "substitutions": substitutions(35),
    "pointers": "_Z1f" + "P" * 4000 + "i",
    "templates": "_Z1f" + "1AI" * 1000 + "i" + "E" * 1000,
    "long": "_Z1f" + "1A" * 2000,
    "too long": "_Z9999" + "f" * 9999 + "v",
}


@pytest.fixture(autouse=True)
def _library() -> None:
    need("c++filt")


NAMES: Final = {
    "_ZN6second1fEv": "second::f()",
    "_ZNSt6vectorIiSaIiEE9push_backERKi": "std::vector<int, std::allocator<int> >::push_back(int const&)",
    "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE": "core::fmt::Write::write_fmt::h0123456789abcdef",
    substitutions(1): "f(A<int, int>, A<A<int, int>, A<int, int> >)",
}
#: What is no mangled name, or could be taken for several.
PLAIN: Final = ("main", "", "_Z1f\0v", "_Z1\N{LATIN SMALL LETTER E WITH ACUTE}v", "_Z1f\udcffv", "_Z1f\n", "_Z1f _Z1g")


def test_names() -> None:
    found = readable_names((*NAMES, *PLAIN, *NAMES))
    assert {name: found[name] for name in NAMES} == NAMES
    assert not set(PLAIN) & set(found)
    assert readable_names(("_Z", "_Zxx")) == {"_Z": "_Z", "_Zxx": "_Zxx"}
    longest, longer = (f"_Z{size}{'f' * size}v" for size in (4089, 4090))
    assert (len(longest), [*readable_names((longest, longer))]) == (4096, [longest])


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_costs_more_than_the_bound(name: str) -> None:
    """It is shown as it is, or readable in proportion; the next name is readable all the same."""
    hostile = HOSTILE[name]
    before = os.times()
    found = readable_names(("_ZN5first1fEv", hostile, "_ZN6second1fEv"))
    assert len(found.get(hostile, hostile)) <= max(4096, len(hostile))
    assert (found["_ZN5first1fEv"], found["_ZN6second1fEv"]) == ("first::f()", "second::f()")
    after = os.times()
    assert sum(after[:4]) - sum(before[:4]) < CPU_SECONDS + 0.5


def test_many_hostile_names_are_bounded_together() -> None:
    names = [substitutions(35).replace("_Z1f", f"_Z{len(str(n)) + 1}f{n}") for n in range(100)]
    before = os.times()
    assert set(readable_names((*names, "_Z1fv"))) <= {"_Z1fv"}
    after = os.times()
    assert sum(after[:4]) - sum(before[:4]) < (CPU_SECONDS + 0.3) * MAX_RUNS


def test_what_it_uses_is_taken_from_the_time_of_the_job() -> None:
    """Each member of an archive may have such a name. Without the time for another run, names stay as they are."""
    with limited(0):
        before = seconds_left()
        readable_names((substitutions(35), substitutions(34)))
        assert before - seconds_left() > CPU_SECONDS * 0.5
        charge(before - 1.1)
        assert readable_names(("_Z1fv",)) == {}
    assert readable_names(("_Z1fv",)) == {"_Z1fv": "f()"}


def test_nothing_is_left() -> None:
    """Neither processes nor descriptors, whether names were read, refused, or not asked for."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text(), len(os.listdir("/proc/self/fd"))
    for names in ((), ("_Z1fv",), (substitutions(35),)):
        readable_names(names)
        assert (children.read_text(), len(os.listdir("/proc/self/fd"))) == before


def test_without_the_program_names_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert readable_names(("_Z1fv",)) == {}


def test_it_runs_under_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of memory (KiB), output (blocks of 512 bytes) and CPU time, and without a core file, as a shell prints them."""
    program = tmp_path / "c++filt"
    program.write_text("#!/bin/sh\nsleep 0.3\nfor limit in v f t c; do ulimit -$limit; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert [*readable_names([f"_Z1{name}v" for name in "abcd"]).values()] == ["262144", "8192", "1", "0"]
