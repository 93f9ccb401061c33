#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plant small faults in a room of the package, and tell which of them its tests do not see.

    mutants.py [--seed S] [--count N] ROOM            # `make mutants ROOM=placing N=50`

Each fault is alone in a copy of the project: a comparison, an operator, a constant, a condition, a call or a returned
value is another one. First come the tests of the room (tests/ROOM), then, if those see nothing, the outer ones (WIDER).
A mutant that no test sees is open: it shows a hole in the tests, or a line that makes no difference.
build/mutants/ROOM.txt has the open ones, each as a change of its line, and then those that are seen, and by which
tests: with the same seed, a run after a change of tests tells what they no longer see. Rooms of one module (`emit`,
`api`) are named without `.py`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
#: Tests that run the whole program, in the order of what they cost.
WIDER: Final = (
    "tests/golden",
    "tests/test_library.py",
    "tests/faults/test_planted.py",
    "tests/conversion/test_convert.py",
)
#: Where a room's tests are, if not in a folder of its name alone: other rooms judge what they ask of it.
TESTS_OF: Final = {
    "emit": ("tests/placing/test_objects.py", "tests/placing/test_place.py"),
    "api": ("tests/test_library.py",),
    "existing": ("tests/jobs/test_decision.py",),
    "abi": (
        *("tests/abi", "tests/conversion/test_lower.py", "tests/sframe/test_write.py", "tests/elf/test_padding.py"),
        *("tests/trace/test_signal_frames.py", "tests/trace/test_frames.py", "tests/golden"),
    ),
    "constants": ("tests/abi", "tests/trace/test_recordings.py", "tests/sframe", "tests/dwarf"),
    "errors": ("tests/test_errors.py",),
    "text": ("tests/cli/test_messages.py",),
    "range_map": ("tests/test_range_map.py",),
    "verification": (
        *("tests/verification", "tests/cli/test_lookup.py", "tests/jobs/test_decision.py", "tests/stubs"),
        *("tests/elf/test_padding.py", "tests/jobs/test_linkers_sections.py"),
    ),
    "audit": ("tests/audit", "tests/cli/test_audit.py"),
    "report": (
        *("tests/report", "tests/cli/test_audit.py", "tests/cli/test_coverage.py", "tests/cli/test_size.py"),
        "tests/cli/test_from_code.py",
    ),
    "trace": ("tests/trace", "tests/cli/test_trace.py"),
    "placing": ("tests/placing", "tests/jobs/test_stamps.py"),
    "process": ("tests/process", "tests/faults/test_signals.py"),
    "files": (
        *("tests/files", "tests/jobs/test_job.py", "tests/cli/test_output.py", "tests/cli/test_rewriting.py"),
        "tests/faults/test_targets.py",
    ),
    "elf/referrers": ("tests/elf/test_referrers.py", "tests/elf/test_operands.py", "tests/elf/test_readers.py"),
    "elf/operands": ("tests/elf/test_referrers.py", "tests/elf/test_operands.py", "tests/elf/test_readers.py"),
    "placing/observed": ("tests/placing/test_each_check.py", "tests/placing/test_observed.py"),
    "placing/segments_view": ("tests/placing/test_each_check.py", "tests/placing/test_observed.py"),
    "placing/tools_view": ("tests/placing/test_each_check.py", "tests/placing/test_observed.py"),
    "placing/loader_tables": ("tests/placing/test_each_check.py", "tests/placing/test_loader_tables.py"),
}
#: Seconds that one run of tests may take: a mutant that loops is seen.
LIMIT: Final = 600
_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


class Mutant(NamedTuple):
    """A module with one fault: the line it is in, and what the code there was and is."""

    path: Path
    line: int
    old: str
    new: str
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.old}  ->  {self.new}"

    def difference(self) -> str:
        """Return the lines that the fault changes, and one more on either side."""
        before, after = (ROOT / self.path).read_text().splitlines(), self.source.splitlines()
        _, _, *lines = difflib.unified_diff(before, after, lineterm="", n=1)
        return "\n".join(lines)


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in the place of a node."""
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in _COMPARISONS:
            yield ast.Compare(left, [_COMPARISONS[type(operator)]()], [right])
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
            yield ast.BinOp(left, _OPERATORS[type(operator)](), right)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(ast.And() if isinstance(operator, ast.Or) else ast.Or(), values)
            yield from values
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield ast.Constant(value + 1)
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Call(function, [first, second, *others], words):
            yield ast.Call(function, [second, first, *others], words)
        case ast.Expr(ast.Call()) | ast.Raise() | ast.AugAssign():
            yield ast.Pass()
        case ast.Return(value) if value is not None:
            yield ast.Return(ast.Constant(None))


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a module that can be told by their text; its annotations and docstrings stay."""
    source = path.read_text()
    tree = ast.parse(source)
    left_out = {id(inner) for node in ast.walk(tree) for hint in _hints(node) for inner in ast.walk(hint)}
    for node in ast.walk(tree):
        if id(node) in left_out or not isinstance(node, (ast.expr, ast.stmt)):
            continue
        old = ast.get_source_segment(source, node)
        for new in changes(node):
            text = ast.unparse(ast.fix_missing_locations(new))
            if old is None or text == old:
                continue
            text = f"({text})" if isinstance(node, ast.expr) else text
            lines = source.encode().splitlines(keepends=True)
            start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
            changed = (source.encode()[:start] + text.encode() + source.encode()[start + len(old.encode()) :]).decode()
            try:
                compile(changed, str(path), "exec")
            except (SyntaxError, ValueError):
                continue
            yield Mutant(path.relative_to(ROOT), node.lineno, " ".join(old.split()), " ".join(text.split()), changed)


def _hints(node: ast.AST) -> Iterator[ast.AST]:
    for name in ("annotation", "returns"):
        if isinstance(hint := getattr(node, name, None), ast.AST):
            yield hint
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        yield node


def sees(copy: Path, tests: list[str]) -> bool:
    """Whether some tests fail in a copy of the project, or take too long."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "2", *tests]
    nothing, env = subprocess.DEVNULL, os.environ | {"PYTHONPATH": str(copy)}
    with subprocess.Popen(
        command, cwd=copy, env=env, stdout=nothing, stderr=nothing, start_new_session=True
    ) as process:
        try:
            return process.wait(LIMIT) != 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return True


class Results(NamedTuple):
    """The mutants that were tried, by what sees them: the tests of the room, the outer ones, none."""

    own: list[Mutant]
    others: list[Mutant]
    open: list[Mutant]

    def text(self, title: str) -> str:
        """Return what a reader goes through: the open mutants with their lines, then a line for each other one."""
        parts = [title, f"# Open: {len(self.open)}", *(f"{mutant}\n{mutant.difference()}" for mutant in self.open)]
        for who, found in (("the tests of the room", self.own), ("other tests", self.others)):
            parts.append("\n".join([f"# Seen by {who}: {len(found)}", *map(str, found)]))
        return "\n\n".join(parts) + "\n"


def try_all(chosen: Sequence[Mutant], own: list[str], report: Path, title: str) -> Results:
    """Plant each mutant in a copy of the project, run the tests, and keep the report up to date."""
    results = Results([], [], [])
    report.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "project")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("build", ".venv", ".git", "dist", "__pycache__"))
        (copy / "build").symlink_to(ROOT / "build")
        if sees(copy, own) or sees(copy, list(WIDER)):
            sys.exit("mutants: the tests fail without a mutant")
        for mutant in chosen:
            (copy / mutant.path).write_text(mutant.source)
            if sees(copy, own):
                results.own.append(mutant)
            elif sees(copy, list(WIDER)):
                results.others.append(mutant)
            else:
                results.open.append(mutant)
                print(mutant, flush=True)
            shutil.copy(ROOT / mutant.path, copy / mutant.path)
            report.write_text(results.text(title))
    return results


def main() -> int:
    """Try some mutants of a room; the exit status is 1 where one survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    place = ROOT / "cfi2sframe" / arguments.room
    modules = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    known = [mutant for module in modules for mutant in mutants_of(module)]
    chosen = random.Random(arguments.seed).sample(known, min(arguments.count, len(known)))  # noqa: S311 - a sample
    own = list(TESTS_OF.get(arguments.room, (f"tests/{arguments.room}",)))
    report = ROOT / "build/mutants" / f"{arguments.room}.txt"
    title = f"{arguments.room}: {len(chosen)} of {len(known)} mutants, seed {arguments.seed}"
    print(f"{title}\ntests: {' '.join(own)}; then {' '.join(WIDER)}", flush=True)
    results = try_all(chosen, own, report, title)
    seen = f"{len(results.own)} seen by its own tests, {len(results.others)} by others"
    print(f"{arguments.room}: {seen}, {len(results.open)} open: {report.relative_to(ROOT)}")
    return 1 if results.open else 0


if __name__ == "__main__":
    sys.exit(main())
