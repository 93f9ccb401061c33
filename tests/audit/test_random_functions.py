# SPDX-License-Identifier: Apache-2.0
"""Random functions with right directives have no finding; any one directive changed in any of them has one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.audited import assembled, audited, contradicted, function

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What changes neither SP nor FP nor the frame.
NEUTRAL = ("nop", "lea 1(%rdi), %rax", "test %edi, %edi", "mov %rsi, 0(%rdx)", "imul %rcx, %rax", "call g")
SAVED = ("rbx", "r12", "r13", "r14", "r15", "rbp")


class Part(NamedTuple):
    """A piece of a body: what enters it, what it holds, and what leaves it again."""

    kind: str
    number: int
    inside: tuple[object, ...] = ()


def parts(depth: int) -> st.SearchStrategy[tuple[Part, ...]]:
    """Draw pieces of a body, nested up to some depth."""
    neutral = st.builds(Part, st.just("neutral"), st.integers(0, len(NEUTRAL) - 1))
    if depth == 0:
        return st.lists(neutral, max_size=2).map(tuple)
    inside = parts(depth - 1)
    pieces = st.one_of(
        neutral,
        st.builds(Part, st.just("push"), st.integers(0, len(SAVED) - 1), inside),
        st.builds(Part, st.just("sub"), st.integers(1, 40), inside),
        st.builds(Part, st.just("branch"), st.just(0), inside),
        st.builds(Part, st.just("return"), st.just(0)),
        st.builds(Part, st.just("arguments"), st.integers(1, 3)),
    )
    return st.lists(pieces, max_size=3).map(tuple)


class Writer:
    """Writes a body with its directives, which it keeps with their lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        #: What has been saved, the last one at the end: registers, or bytes.
        self.saved: list[str | int] = []
        self.frame = False
        self._labels = 0

    @property
    def offset(self) -> int:
        """The CFA's distance from SP."""
        return 8 + sum(8 if isinstance(each, str) else each for each in self.saved)

    def write(self, body: Iterable[object]) -> None:
        """Write some parts."""
        for part in body:
            assert isinstance(part, Part)
            getattr(self, f"_{part.kind}")(part)

    def _neutral(self, part: Part) -> None:
        self.lines.append(NEUTRAL[part.number])

    def _push(self, part: Part) -> None:
        register = SAVED[part.number]
        if register == "rbp" and "rbp" in self.saved:
            register = "rbx"
        self.lines += [f"push %{register}", ".cfi_adjust_cfa_offset 8"]
        self.saved.append(register)
        if register == "rbp":
            # What its rule says matters from here on.
            self.lines += [f".cfi_offset %rbp, -{self.offset}", "mov %rdi, %rbp"]
        else:
            self.lines.append(f"mov %rdi, %{register}")
        self.write(part.inside)
        self._pop()

    def _sub(self, part: Part) -> None:
        self.lines += [f"sub ${8 * part.number}, %rsp", f".cfi_adjust_cfa_offset {8 * part.number}", "nop"]
        self.saved.append(8 * part.number)
        self.write(part.inside)
        self._pop()

    def _pop(self) -> None:
        last = self.saved.pop()
        if isinstance(last, int):
            self.lines += [f"add ${last}, %rsp", f".cfi_adjust_cfa_offset -{last}", "nop"]
            return
        self.lines += [
            f"pop %{last}",
            ".cfi_adjust_cfa_offset -8",
            *([".cfi_restore %rbp"] if last == "rbp" else []),
            "nop",
        ]

    def _branch(self, part: Part) -> None:
        self._labels += 1
        label = f"{self._labels}"
        self.lines += ["cmp %rdi, %rsi", f"jne {label}f"]
        self.write(part.inside)
        self.lines.append(f"{label}: nop")

    def _arguments(self, part: Part) -> None:
        for _ in range(part.number):
            self.lines += ["push $1", ".cfi_adjust_cfa_offset 8"]
        self.lines += ["call g", f"add ${8 * part.number}, %rsp", f".cfi_adjust_cfa_offset -{8 * part.number}", "nop"]

    def _return(self, _part: Part) -> None:
        self._labels += 1
        label = f"{self._labels}"
        # Where nothing is saved, there is nothing to remember.
        remember, restore = ([".cfi_remember_state"], [".cfi_restore_state"]) if self.saved else ([], [])
        self.lines += ["cmp %rdi, %rsi", f"jne {label}f", *remember]
        saved = list(self.saved)
        while self.saved:
            self._pop()
        self.lines += ["ret", *restore, f"{label}: nop"]
        self.saved = saved


def written(body: tuple[Part, ...]) -> list[str]:
    """Return the lines of a function."""
    writer = Writer()
    writer.write((*body, Part("push", 0, (Part("neutral", 5),))))
    return [*writer.lines, "ret"]


def found_in(functions: list[list[str]]) -> tuple[list[int], int]:
    """Return the numbers of the functions that have findings, and how many instructions could not be compared."""
    source = "".join(function("; ".join(lines), f"f{number}") for number, lines in enumerate(functions))
    with tempfile.TemporaryDirectory() as folder:
        path = assembled(source, Path(folder))
        return sorted(contradicted(path)), sum(audited(path).undecided.values())


def changed(lines: list[str], number: int, by: int) -> list[str]:
    """Return the lines with a directive left out (0), or with its number changed."""
    name, *operands = lines[number].split()
    if by == 0 or name == ".cfi_restore_state":
        return lines[:number] + lines[number + 1 :]
    operands[-1] = str(int(operands[-1]) + by)
    return [*lines[:number], " ".join((name, *operands)), *lines[number + 1 :]]


def may_change(lines: list[str]) -> list[int]:
    """Return the lines with directives whose change makes the CFI wrong.

    A rule that outlives the instruction that restores FP says the truth as long as its slot is in the red zone, and a
    state that is remembered changes nothing by itself.
    """
    harmless = (".cfi_restore %rbp", ".cfi_remember_state")
    return [number for number, line in enumerate(lines) if line.startswith(".cfi") and line not in harmless]


@st.composite
def with_a_change(draw: st.DrawFn) -> list[str]:
    """Draw a function of which one directive is wrong."""
    lines = written(draw(parts(3)))
    return changed(lines, draw(st.sampled_from(may_change(lines))), draw(st.sampled_from((0, 8, -8, 16))))


@given(st.lists(parts(3), min_size=1, max_size=8))
@settings(max_examples=12, deadline=None)
def test_right_directives_are_not_contradicted(bodies: list[tuple[Part, ...]]) -> None:
    assert found_in([written(body) for body in bodies]) == ([], 0)


@given(st.lists(with_a_change(), min_size=1, max_size=8))
@settings(max_examples=20, deadline=None)
def test_every_wrong_directive_is_found(functions: list[list[str]]) -> None:
    assert found_in(functions)[0] == list(range(len(functions)))
