# SPDX-License-Identifier: Apache-2.0
"""Faults put into the CFI that compilers write are found by `audit`, nearly all.

One directive of each function is changed at a time. What is no fault is not made: a rule that comes late for a register
that still has its value, and one that outlives its register where the slot is still the frame's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.support.audited import contradicted
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.oracle

ROOT: Final = Path(__file__).resolve().parents[2]
WHOLE_FUNCTIONS: Final = ROOT / "tests/support/programs/whole_functions.c"
SOURCES: Final = (WHOLE_FUNCTIONS, *sorted((ROOT / "testdata/src/amd64").glob("*.c")))


class Target(NamedTuple):
    """A compiler's ABI: the names of its registers in directives, and one that has neither the CFA nor FP's value.

    `spared`: slots of saved registers outlive what restores them, because they are the caller's or in the red zone.
    """

    name: str
    assembler: str
    sp: str
    fp: str
    ra: str
    other: str
    spared: bool


AMD64: Final = Target("AMD64", "x86_64-linux-gnu-as", "%rsp", "%rbp", "", "%r14", spared=True)
AARCH64: Final = Target("AArch64", "aarch64-linux-gnu-as", "sp", "x29", "x30", "x28", spared=False)
S390X: Final = Target("s390x", "s390x-linux-gnu-as", "%r15", "%r11", "%r14", "%r9", spared=True)
_NAMES: Final = {
    AMD64: {"6": "%rbp", "7": "%rsp"},
    AARCH64: {"29": "x29", "30": "x30", "31": "sp", "w29": "x29", "w30": "x30", "wsp": "sp"},
    S390X: {"11": "%r11", "14": "%r14", "15": "%r15"},
}
COMPILERS: Final = {
    "gcc": (AMD64, ("-O0", "-O2", "-Os", "-O2 -fno-omit-frame-pointer")),
    "clang -fno-addrsig": (AMD64, ("-O0", "-O2", "-O2 -fno-omit-frame-pointer")),
    "aarch64-linux-gnu-gcc": (AARCH64, ("-O0", "-O2", "-O2 -mbranch-protection=standard")),
    "clang --target=aarch64-linux-gnu -fno-addrsig": (AARCH64, ("-O0", "-O2")),
    "s390x-linux-gnu-gcc": (S390X, ("-O0", "-O2", "-Os")),
}
_FUNCTION: Final = re.compile(r"^\t\.cfi_startproc$.*?^\t\.cfi_endproc$", re.MULTILINE | re.DOTALL)


class Directive(NamedTuple):
    """A directive at a line of a function; registers by the names of `Target`."""

    line: int
    name: str
    operands: tuple[str, ...]


def directives_of(lines: list[str], target: Target) -> list[Directive]:
    """Return the directives that change rows."""
    found = []
    for number, line in enumerate(lines):
        name, _, rest = line.strip().partition(" ")
        if name.startswith(".cfi_") and not name.endswith("proc"):
            operands = tuple(_NAMES[target].get(each.strip(), each.strip()) for each in rest.split(","))
            found.append(Directive(number, name.removeprefix(".cfi_"), operands))
    return found


def faults_in(lines: list[str], target: Target) -> Iterator[tuple[str, list[str]]]:
    """Yield the kinds of faults that a function may have, each with the lines of the function that has it.

    None for functions that align SP: the CFA is in a third register there.
    """
    if any(".cfi_escape" in line for line in lines):
        return
    body = "\n".join(line for line in lines if not re.match(r"\t(\.|stmg|lmg)", line))
    uses = {register: register in body for register in (target.fp, target.ra) if register}
    # Calls change the RA.
    uses[target.ra] = uses.get(target.ra, False) or re.search(r"\t(bl|blr|brasl|basr)\s", body) is not None
    moved = set()
    for found in directives_of(lines, target):
        number, name, operands = found
        before, after = lines[:number], lines[number + 1 :]

        def instead(text: str, *, before: list[str] = before, after: list[str] = after) -> list[str]:
            return [*before, f"\t.cfi_{text}", *after]

        if name in ("def_cfa", "def_cfa_register") and operands[0] in (target.sp, target.fp):
            yield "wrong register", instead(f"{name} {', '.join((target.other, *operands[1:]))}")
        if name in ("def_cfa", "def_cfa_offset", "adjust_cfa_offset"):
            yield "wrong offset", instead(f"{name} {', '.join((*operands[:-1], str(int(operands[-1]) + 8)))}")
            yield "missing adjustment", [*before, *after]
        if name == "restore_state" and _has_changed(lines[:number], target):
            yield "missing restore", [*before, *after]
        if name == "restore" and uses.get(operands[0]) and not target.spared:
            yield "missing restore", [*before, *after]
        if name == "offset" and operands[0] in (target.fp, target.ra) and uses[operands[0]]:
            yield f"missing offset of {_letter(operands[0], target)}", [*before, *after]
            wrong = instead(f"offset {operands[0]}, {int(operands[1]) - 8}")
            yield f"wrong slot of {_letter(operands[0], target)}", wrong
        if name in ("def_cfa", "def_cfa_offset", "adjust_cfa_offset", "def_cfa_register"):
            first, end = _group(lines, number)
            if first not in moved:
                moved.add(first)
                if _is_instruction(lines[first - 1]):
                    yield "early", [*lines[: first - 1], *lines[first:end], lines[first - 1], *lines[end:]]
                # Both registers have the CFA once FP does, and as long as an s390x leaf has not restored it.
                has_both = name == "def_cfa_register" or "lgdr" in lines[first - 1]
                if _is_instruction(lines[end]) and not has_both:
                    yield "late", [*lines[:first], lines[end], *lines[first:end], *lines[end + 1 :]]


def _has_changed(lines: list[str], target: Target) -> bool:
    """Whether rules that an audit compares have changed since the state was remembered."""
    directives = directives_of(lines, target)
    while directives and directives[-1].name != "remember_state":
        found = directives.pop()
        if found.name.startswith("def_cfa") or found.operands[0] in (target.fp, target.ra):
            return True
    return False


def _letter(register: str, target: Target) -> str:
    return "FP" if register == target.fp else "RA"


def _group(lines: list[str], number: int) -> tuple[int, int]:
    """Return the first line of the directives around one, and the line after the last of them."""
    first = end = number
    while lines[first - 1].startswith("\t.cfi_") and "startproc" not in lines[first - 1]:
        first -= 1
    while lines[end].startswith("\t.cfi_") and "endproc" not in lines[end]:
        end += 1
    return first, end


def _is_instruction(line: str) -> bool:
    return line.startswith("\t") and not line.startswith("\t.")


class Compiled(NamedTuple):
    """A translation unit: the text between its functions, and its functions' lines."""

    name: str
    target: Target
    between: list[str]
    functions: list[list[str]]

    def assembled(self, functions: list[list[str]], path: Path) -> None:
        """Write an object with these functions in place of its own."""
        texts = ["\n".join(lines) for lines in functions]
        source = "".join(text for pair in zip(self.between, [*texts, ""], strict=True) for text in pair)
        subprocess.run([self.target.assembler, "-o", path, "-"], input=source, text=True, check=True)


def compiled(compiler: str, options: str, source: Path, target: Target) -> Compiled:
    """Compile a source file, to assembly."""
    words = [*compiler.split(), *options.split(), "-w", "-fno-verbose-asm", "-S", "-o", "-", str(source)]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    functions = [found.group().split("\n") for found in _FUNCTION.finditer(text)]
    return Compiled(f"{compiler} {options} {source.name}", target, _FUNCTION.split(text), functions)


class Fault(NamedTuple):
    """A fault in the CFI of a function: its kind, the translation unit, the function as it then is, if it is found."""

    kind: str
    unit: str
    lines: list[str]
    is_found: bool


def measure(unit: Compiled, folder: Path) -> Iterator[Fault]:
    """Put each fault into a unit's functions, those of several functions at a time; yield what is found of it."""
    path = folder / "faulty.o"
    unit.assembled(unit.functions, path)
    # A fault in a function that is contradicted as it is would not be measured.
    clean = set(range(len(unit.functions))) - contradicted(path)
    waiting = {number: list(faults_in(unit.functions[number], unit.target)) for number in clean}
    for _ in range(max(map(len, waiting.values()), default=0)):
        chosen = {number: faults.pop() for number, faults in waiting.items() if faults}
        unit.assembled([chosen.get(n, ("", lines))[1] for n, lines in enumerate(unit.functions)], path)
        found = contradicted(path)
        for number, (kind, lines) in chosen.items():
            yield Fault(kind, unit.name, lines, number in found)


def units(*targets: Target) -> Iterator[Compiled]:
    """Yield all sources by all compilers for some ABIs that are there."""
    for compiler, (target, several) in COMPILERS.items():
        if target not in targets or not all(map(shutil.which, (compiler.split()[0], target.assembler))):
            continue
        for source in SOURCES:
            for options in several:
                yield compiled(compiler, options, source, target)


def test_a_function_of_each_kind_of_frame(tmp_path: Path) -> None:
    need("gcc", AMD64.assembler)
    source = tmp_path / "calls.c"
    source.write_text("int g(int); int f(int a) { return g(a) + g(1); }")
    faults = list(measure(compiled("gcc", "-O0", source, AMD64), tmp_path))
    assert len({fault.kind for fault in faults}) >= 6
    assert [fault.kind for fault in faults if not fault.is_found] == []


def test_functions_of_a_program(tmp_path: Path) -> None:
    """Without cold parts, of whose entry nothing is known."""
    need("gcc", AMD64.assembler)
    options = "-O2 -fno-reorder-blocks-and-partition"
    faults = list(measure(compiled("gcc", options, WHOLE_FUNCTIONS, AMD64), tmp_path))
    missed = [fault for fault in faults if not fault.is_found]
    assert len(faults) > 100
    assert len(missed) <= 0.01 * len(faults), missed


@pytest.mark.slow
@pytest.mark.parametrize(("target", "share"), [(AMD64, 0.99), (AARCH64, 0.99), (S390X, 0.97)])
def test_recall(target: Target, share: float, tmp_path: Path) -> None:
    faults = [fault for unit in units(target) for fault in measure(unit, tmp_path)]
    missed = [f"{fault.kind}, {fault.unit}: {fault.lines}" for fault in faults if not fault.is_found]
    assert len(faults) > 1000
    assert len(missed) <= (1 - share) * len(faults), missed
