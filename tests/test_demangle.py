# SPDX-License-Identifier: Apache-2.0
"""C++ names in readable form: whatever a symbol table holds, the program's own process is safe, and soon done."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.demangle import CPU_SECONDS, MAX_PROCESSES, Demangler
from tests.support.cli import ROOT
from tests.support.demangling import needs_demangling

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.fuzz

DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def substitutions(depth: int) -> str:
    """Return a name in which each template's arguments are the last one, twice: 270 characters for a depth of 26."""
    levels = "".join(f"ES_IS{digit}_S{digit}_" for digit in DIGITS[1:depth])
    return f"_Z1f1AIiiES_IS0_S0_{levels}E" if depth else "_Z1f1AIiiE"


def conversions(depth: int) -> str:
    """Return a name of conversion operators in conversion operators, without a single substitution."""
    return "_ZN1A" + "cvT_IN1A" * depth + "cvi" + "EE" * depth + "Ev"


def packs(depth: int, size: int) -> str:
    """Return a name whose template parameter packs are expanded within expansions."""
    return f"_Z1fIJ{'i' * size}EEv" + "DpN1AIJ" * depth + "T_" + "EEE" * depth


#: Names that double with each level, and names that are merely long or deep.
HOSTILE: Final = {
    "substitutions": substitutions(35),
    "conversions": conversions(40),
    "packs": packs(40, 40),
    "pointers": "_Z1f" + "P" * 4000 + "i",
    "nested": "_Z" + "N1A" * 1000 + "E" * 1000,
    "templates": "_Z1f" + "1AI" * 1000 + "i" + "E" * 1000,
    "expressions": "_Z1fIXpl" + "pl" * 1000 + "Li1E" * 500,
    "locals": "_ZZ" * 1000 + "1fvE1g",
    "long": "_Z1f" + "1A" * 2000,
    "too long": "_Z9999" + "f" * 9999 + "v",
}


@pytest.fixture(autouse=True)
def _library() -> None:
    needs_demangling()


def test_names() -> None:
    with Demangler() as demangler:
        for name, readable in (
            ("_ZN6second1fEv", "second::f()"),
            ("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back(int const&)"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt::h0123456789abcdef"),
            (substitutions(1), "f(A<int, int>, A<A<int, int>, A<int, int> >)"),
            *[
                (name, name)
                for name in ("main", "", "_Z", "_Zxx", "_Z1f\0v", "_Z1\N{LATIN SMALL LETTER E WITH ACUTE}v")
            ],
            *[(name, name) for name in ("_Z1f\udcffv", "_Z1f\n")],
        ):
            assert demangler.readable(name) == readable


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_costs_more_than_the_bound(name: str) -> None:
    """It is shown as it is, or readable in proportion; the next name is readable again."""
    hostile = HOSTILE[name]
    start = time.monotonic()
    before = os.times()
    with Demangler() as demangler:
        assert len(demangler.readable(hostile)) <= max(1 << 16, len(hostile))
        assert demangler.readable("_ZN6second1fEv") == "second::f()"
    after = os.times()
    taken = sum(after[:4]) - sum(before[:4])
    assert taken < CPU_SECONDS + 0.3, f"{taken} s, {time.monotonic() - start} s by the clock"


def test_many_hostile_names_are_bounded_together() -> None:
    before = os.times()
    with Demangler() as demangler:
        for number in range(100):
            name = substitutions(35).replace("_Z1f", f"_Z{len(str(number)) + 1}f{number}")
            assert demangler.readable(name) == name
        # There is no process left to ask.
        assert demangler.readable("_Z1fv") == "_Z1fv"
    after = os.times()
    assert sum(after[:4]) - sum(before[:4]) < (CPU_SECONDS + 0.2) * MAX_PROCESSES


def test_nothing_is_left() -> None:
    """Neither processes nor descriptors, whether names were read, refused, or not asked for."""
    descriptors = len(os.listdir("/proc/self/fd"))
    for names in ((), ("_Z1fv",), (substitutions(35),), (substitutions(35), "_Z1fv")):
        with Demangler() as demangler:
            for name in names:
                demangler.readable(name)
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_no_program_is_started(tmp_path: Path) -> None:
    """Python's own search for libraries starts ldconfig, gcc and ld, wherever PATH finds them."""
    for tool in ("ldconfig", "gcc", "cc", "ld", "objdump", "c++filt", "sh"):
        (tmp_path / tool).write_text(f"#!/bin/sh\necho {tool} >> {tmp_path}/started\n")
        (tmp_path / tool).chmod(0o755)
    script = (
        "from cfi2sframe.demangle import Demangler\n"
        "with Demangler() as demangler: print(demangler.readable('_ZN6second1fEv'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "second::f()\n"
    assert not (tmp_path / "started").exists()
