# SPDX-License-Identifier: Apache-2.0
"""Nothing contradicts what compilers write for whole functions; faults put into it are all found by `audit`.

One directive of each function is changed at a time. What is no fault is not made: a rule that comes late for a register
that still has its value, and one that outlives its register where the slot is still the frame's or in the red zone.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.audit import audited, contradicted, said_of
from tests.support.needs import need

pytestmark = pytest.mark.oracle

SOURCE: Final = Path(__file__).resolve().parents[1] / "support/instructions/programs/whole_functions.c"
#: Options of compilers. Cold parts are left out: of their entry nothing is known.
CASES: Final = [
    ("gcc", "-O2 -fno-reorder-blocks-and-partition"),
    *(
        pytest.param(compiler, options, marks=pytest.mark.slow)
        for compiler, several in {"gcc": ("-O0", "-Os"), "clang": ("-O0", "-O2", "-O2 -fno-omit-frame-pointer")}.items()
        for options in several
    ),
]
_FUNCTION: Final = re.compile(r"^\t\.cfi_startproc$.*?^\t\.cfi_endproc$", re.MULTILINE | re.DOTALL)
_NAMES: Final = {"6": "%rbp", "7": "%rsp"}


class Directive(NamedTuple):
    """A directive at a line of a function; registers by their names."""

    line: int
    name: str
    operands: tuple[str, ...]


def directives_of(lines: list[str]) -> list[Directive]:
    """Return the directives that change rows."""
    found = []
    for number, line in enumerate(lines):
        name, _, rest = line.strip().partition(" ")
        if name.startswith(".cfi_") and not name.endswith("proc"):
            operands = tuple(_NAMES.get(each.strip(), each.strip()) for each in rest.split(","))
            found.append(Directive(number, name.removeprefix(".cfi_"), operands))
    return found


def faults_in(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the kinds of faults that a function may have, each with the lines of the function that has it.

    None for functions that align SP: the CFA is in a third register there.
    """
    if any(".cfi_escape" in line for line in lines):
        return
    uses_fp = any("%rbp" in line for line in lines if not line.startswith("\t."))
    moved = set()
    for number, name, operands in directives_of(lines):
        before, after = lines[:number], lines[number + 1 :]

        def instead(text: str, *, before: list[str] = before, after: list[str] = after) -> list[str]:
            return [*before, f"\t.cfi_{text}", *after]

        if name in ("def_cfa", "def_cfa_register") and operands[0] in ("%rsp", "%rbp"):
            # One that has neither the CFA nor FP's value.
            yield "wrong register", instead(f"{name} {', '.join(('%r14', *operands[1:]))}")
        if name in ("def_cfa", "def_cfa_offset", "adjust_cfa_offset"):
            yield "wrong offset", instead(f"{name} {', '.join((*operands[:-1], str(int(operands[-1]) + 8)))}")
            yield "missing adjustment", [*before, *after]
        if name == "restore_state" and _has_changed(before):
            yield "missing restore", [*before, *after]
        if name == "offset" and operands[0] == "%rbp" and uses_fp:
            yield "missing offset of FP", [*before, *after]
            yield "wrong slot of FP", instead(f"offset %rbp, {int(operands[1]) - 8}")
        if name in ("def_cfa", "def_cfa_offset", "adjust_cfa_offset", "def_cfa_register"):
            first, end = _group(lines, number)
            if first not in moved:
                moved.add(first)
                if _is_instruction(lines[first - 1]):
                    yield "early", [*lines[: first - 1], *lines[first:end], lines[first - 1], *lines[end:]]
                # Both registers have the CFA once FP does.
                if _is_instruction(lines[end]) and name != "def_cfa_register":
                    yield "late", [*lines[:first], lines[end], *lines[first:end], *lines[end + 1 :]]


def _has_changed(lines: list[str]) -> bool:
    """Whether rules that an audit compares have changed since the state was remembered."""
    directives = directives_of(lines)
    while directives and directives[-1].name != "remember_state":
        found = directives.pop()
        if found.name.startswith("def_cfa") or found.operands[0] == "%rbp":
            return True
    return False


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

    between: list[str]
    functions: list[list[str]]

    def assembled(self, functions: list[list[str]], path: Path) -> None:
        """Write an object with these functions in place of its own."""
        texts = ["\n".join(lines) for lines in functions]
        source = "".join(text for pair in zip(self.between, [*texts, ""], strict=True) for text in pair)
        subprocess.run(["as", "-o", path, "-"], input=source, text=True, check=True)


def compiled(compiler: str, options: str, source: Path) -> Compiled:
    """Compile a source file, to assembly."""
    words = [need(compiler), *options.split(), "-w", "-fno-verbose-asm", "-S", "-o", "-", str(source)]
    if compiler == "clang":
        words.append("-fno-addrsig")
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    functions = [found.group().split("\n") for found in _FUNCTION.finditer(text)]
    return Compiled(_FUNCTION.split(text), functions)


class Fault(NamedTuple):
    """A fault in the CFI of a function: its kind, the function as it then is, if it is found."""

    kind: str
    lines: list[str]
    is_found: bool


def measure(unit: Compiled, folder: Path) -> Iterator[Fault]:
    """Put each fault into a unit's functions, those of several functions at a time; yield what is found of it."""
    path = folder / "faulty.o"
    unit.assembled(unit.functions, path)
    # A fault in a function that is contradicted as it is would not be measured.
    clean = set(range(len(unit.functions))) - contradicted(path)
    waiting = {number: list(faults_in(unit.functions[number])) for number in clean}
    for _ in range(max(map(len, waiting.values()), default=0)):
        chosen = {number: faults.pop() for number, faults in waiting.items() if faults}
        unit.assembled([chosen.get(n, ("", lines))[1] for n, lines in enumerate(unit.functions)], path)
        found = contradicted(path)
        for number, (kind, lines) in chosen.items():
            yield Fault(kind, lines, number in found)


def test_a_function_of_each_kind_of_frame(tmp_path: Path) -> None:
    source = tmp_path / "calls.c"
    source.write_text("int g(int); int f(int a) { return g(a) + g(1); }")
    faults = list(measure(compiled("gcc", "-O0", source), tmp_path))
    assert len({fault.kind for fault in faults}) >= 6
    assert [fault.kind for fault in faults if not fault.is_found] == []


@pytest.mark.parametrize(("compiler", "options"), CASES)
def test_functions_of_a_program(compiler: str, options: str, tmp_path: Path) -> None:
    faults = list(measure(compiled(compiler, options, SOURCE), tmp_path))
    assert len(faults) > 100
    assert [fault for fault in faults if not fault.is_found] == []


# What is right

#: What the linker says of its stubs are expressions.
_NO_STUBS = "-Wl,--no-ld-generated-unwind-info"
OPTIONS = (
    "-O0",
    "-O2",
    "-Os",
    "-O3 -mavx2",
    "-O2 -fno-omit-frame-pointer",
    "-O2 -fstack-protector-all -fcf-protection",
    "-O2 -fno-plt -fstack-clash-protection",
    "-O1 -mno-red-zone -mno-push-args -maccumulate-outgoing-args",
)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("options", OPTIONS)
def test_compiled_functions(compiler: str, options: str, tmp_path: Path) -> None:
    need(compiler)
    if compiler == "clang" and "accumulate" in options:
        pytest.skip("clang has no such options")
    path = tmp_path / "compiled.so"
    words = [compiler, *options.split(), "-w", "-fPIC", "-shared", "-nostdlib", _NO_STUBS, str(SOURCE), "-o", str(path)]
    subprocess.run(words, check=True)
    result = audited(path)
    assert said_of(result) == []
    assert result.agreed_count > 400
    # Realigned frames have expressions.
    assert sum(result.undecided.values()) <= result.agreed_count // 15
