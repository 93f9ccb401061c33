# SPDX-License-Identifier: Apache-2.0
"""A section of a few rows that a linker made of start files and PLT: what may take its place, and what comes back."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from cfi2sframe.abi.rule import Rule
from cfi2sframe.api import decode_existing, verify
from cfi2sframe.range_map import Span
from cfi2sframe.sframe.model import OUTERMOST, FrameState, FunctionBody, Section
from cfi2sframe.verification import section_column
from cfi2sframe.verification.section_column import LostRow, first_lost_row
from tests.support.cli import run
from tests.support.needs import attempt, need
from tests.support.oracle.gas import assembled
from tests.support.oracle.tools import BinutilsVersion, find_binutils

#: As a start file that was assembled with --gsframe; the second function is the outermost frame.
START = """\
        .text
        .globl  first, last
first:  .cfi_startproc
        push    %rbp
        .cfi_def_cfa_offset 16
        .cfi_offset 6, -16
        pop     %rbp
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
last:   .cfi_startproc
        .cfi_undefined rip
        hlt
        .cfi_endproc
"""
PROGRAM = """\
#include <stdio.h>
int twice(int n) { return 2 * n; }
int main(int n) { return printf("%d\\n", twice(n)) < 0; }
"""
CALLER = FrameState(Rule(7, 8, deref=False), Rule(None, -8, deref=True))


@pytest.fixture
def linked(tmp_path: Path) -> Callable[..., Path]:
    """`linked("newest", start=START)`: a program whose only object with `.sframe` is the start file."""
    need("gcc")

    def link(version: BinutilsVersion, start: str = START, flags: tuple[str, ...] = ()) -> Path:
        tools = find_binutils(version)
        (tmp_path / "program.c").write_text(PROGRAM)
        inputs = (tmp_path / "program.c", assembled(start, tmp_path, tools.tool("as"), "--gsframe"))
        assert attempt("gcc", "-O1", f"-B{tools.directory}", *flags, "-o", tmp_path / "linked", *inputs).status == 0
        assert decode_existing(tmp_path / "linked").starts
        return tmp_path / "linked"

    return link


@pytest.mark.oracle
@pytest.mark.parametrize("flags", [(), ("-no-pie",), ("-s",)])
@pytest.mark.parametrize("sframe_version", ["2", "3"])
@pytest.mark.parametrize("version", ["2.44", "newest"])
def test_it_is_replaced_without_being_asked_and_comes_back(
    linked: Callable[..., Path],
    version: BinutilsVersion,
    sframe_version: str,
    flags: tuple[str, ...],
    tmp_path: Path,
) -> None:
    original = linked(version, flags=flags)
    data, expected, old = original.read_bytes(), attempt(original), decode_existing(original)
    convert = ("--in-place", "--sframe-version", sframe_version, original)
    done = run(*convert)
    place = f"replaces a section of version {old.version} with {len(old.starts)} functions"
    assert (done.status, place in "".join(done.err)) == (0, True)
    assert attempt(original) == expected
    assert verify(original).is_clean
    # Errata 2 of version 2, if the linker's section had a row for the outermost frame.
    assert (decode_existing(original).errata == 2) == (version == "newest" or sframe_version == "3")
    converted = original.read_bytes()
    assert run(*convert).status == 0
    assert original.read_bytes() == converted
    assert run("--in-place", "--replace", "--sframe-version", "3", original).status == 0
    assert run("remove", original, "-o", tmp_path / "removed").status == 0
    assert (tmp_path / "removed").read_bytes() == data


@pytest.mark.oracle
@pytest.mark.parametrize("in_tree", [False, True])
def test_a_named_version_loses_what_it_cannot_express(linked: Callable[..., Path], *, in_tree: bool) -> None:
    """Such as the outermost row with errata 1; a warning says so, also in a tree."""
    path = linked("newest")
    os.unlink(path.parent / "assembled.o")
    done = run("--in-place", "--for", "glibc", *(["-r", path.parent] if in_tree else [path]))
    assert (done.status, "loses what version 2 cannot express, such as the row at 0x" in done.err[0]) == (0, True)
    assert decode_existing(path).version == 2


@pytest.mark.oracle
def test_a_named_version_loses_nothing_else(linked: Callable[..., Path]) -> None:
    """Of code whose CFI has gone since, no version has a row."""
    path = linked("newest")
    assert attempt("objcopy", "-R", ".eh_frame", path).status == 0
    assert run(path, "-o", path.with_name("out"), "--for", "glibc", "--from", "code").status == 3


@pytest.mark.oracle
def test_a_section_is_not_lost_with_the_cfi(linked: Callable[..., Path]) -> None:
    """The CFI has gone since the section was made: stripped with `.debug_frame`, or by hand."""
    path = linked("newest")
    assert attempt("objcopy", "-R", ".eh_frame", path).status == 0
    data = path.read_bytes()
    done = run("--in-place", path)
    assert (done.status, "no call frame information" in done.err[0]) == (3, True)
    assert path.read_bytes() == data


class Case(NamedTuple):
    """Two sections as functions (start, states of rows at each byte), the addresses where walks end, and the loss."""

    old: tuple[tuple[int, tuple[FrameState, ...]], ...]
    new: tuple[tuple[int, tuple[FrameState, ...]], ...]
    lost: LostRow | None
    ends: tuple[Span, ...] = ()


def section(functions: tuple[tuple[int, tuple[FrameState, ...]], ...]) -> Section:
    bodies = tuple(FunctionBody(tuple(range(len(states))), states) for _, states in functions)
    sizes = tuple(max(len(states), 1) for _, states in functions)
    return Section(3, 3, tuple(start for start, _ in functions), sizes, bodies)


OTHER = CALLER._replace(cfa=Rule(7, 16, deref=False))
CASES = {
    "all are there": Case(((8, (CALLER,)),), ((0, (CALLER,) * 16),), None),
    "another CFA": Case(((8, (OTHER,)),), ((0, (CALLER,) * 16),), None),
    "one is missing": Case(((8, (CALLER,) * 4),), ((0, (CALLER,) * 10),), LostRow(10, is_outermost=False)),
    "an end is missing": Case(((8, (OUTERMOST,)),), ((0, (CALLER,) * 4),), LostRow(8, is_outermost=True)),
    "an end has a caller": Case(((8, (OUTERMOST,)),), ((0, (CALLER,) * 9),), LostRow(8, is_outermost=True)),
    "no rows are an end": Case(((8, ()),), ((0, (CALLER,) * 9),), LostRow(8, is_outermost=True)),
    "no rows for an end": Case(((8, (OUTERMOST,)),), ((8, ()),), None),
    "a caller at an end": Case(((8, (CALLER,)),), ((0, (CALLER,)),), None, (Span(8, 9),)),
}


@pytest.mark.parametrize(("most", "are_same"), [(16, True), (15, False)])
def test_sections_of_too_many_blocks_are_not_compared(
    most: int, monkeypatch: pytest.MonkeyPatch, *, are_same: bool
) -> None:
    """Two sections of one function of eight blocks each: what is not compared counts as different."""
    monkeypatch.setattr(section_column, "_MAX_BLOCK_EDGES", most)
    made = Section(3, 3, (0,), (8,), (FunctionBody((0,), (CALLER,), repeat_size=1),))
    assert section_column.have_same_answers(made, made) is are_same


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_first_row_that_is_lost(case: Case) -> None:
    assert first_lost_row(section(case.old), section(case.new), lambda _: True, case.ends) == case.lost
