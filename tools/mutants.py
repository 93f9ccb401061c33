# SPDX-License-Identifier: Apache-2.0
"""Change one thing at a time in the code that sections and rewritten files depend on, and see whether its tests notice.

A change (a mutant) is compiled in memory in a process of its own, which runs the tests of that module; no file is
changed. A mutant that no test notices has survived: a gap in the tests, or a change that no test can notice.

    tools/mutants.py [--module lower.py] [--share 1/20] [--report FILE] [--list]
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import json
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "cfi2sframe"
#: What every module that decides a section's rows is tested with, the tests that end soonest first.
_ROWS: Final = ("golden", "test_edges.py", "dwarf/test_row_machine.py")
_RANGES: Final = (
    *("sframe/test_ranges.py", "sframe/test_sharing.py", "test_edges.py"),
    *("sframe/test_levels_property.py", "test_conversion.py", "test_conversion_property.py"),
)
_ENCODING: Final = (
    "test_edges.py",
    "sframe/test_encode.py",
    "sframe/test_layout.py",
    "golden",
    "sframe/test_sharing.py",
)
#: The tests of each module, or of all modules that fit a pattern; the first failure is enough.
TESTS: Final = {
    "dwarf/row_machine.py": (*_ROWS, "elf/test_cfi.py", "dwarf/test_row_machine_property.py"),
    "dwarf/program_cache.py": (*_ROWS, "test_intern.py", "dwarf/test_row_machine_property.py"),
    "dwarf/programs.py": (
        *("dwarf/test_programs.py", "golden", "test_edges.py", "test_intern.py", "elf/test_cfi.py"),
        *("dwarf/test_row_machine_property.py", "test_conversion.py"),
    ),
    "dwarf/instructions.py": (*_ROWS, "elf/test_cfi.py", "dwarf/test_row_machine_property.py", "test_conversion.py"),
    "dwarf/rules.py": (*_ROWS, "test_lower.py", "dwarf/test_row_machine_property.py"),
    "lower.py": (
        *("golden", "test_lower.py", "test_edges.py", "test_intern.py"),
        *("test_conversion_property.py", "test_conversion.py"),
    ),
    "reduce.py": (
        *("golden", "test_lower.py", "test_edges.py", "verification/test_verify.py"),
        *("test_conversion_property.py", "test_conversion.py"),
    ),
    "assemble.py": (
        *("golden", "sframe/test_levels_property.py", "test_conversion_property.py", "test_conversion.py"),
        "plt/test_linked_stubs.py",
    ),
    "overlaps.py": ("golden", "test_overlaps.py", "test_conversion_property.py", "test_conversion.py"),
    "code_map.py": (
        *("golden", "test_code_map.py", "plt/test_stub_analysis.py", "verification/test_verify.py"),
        *("test_conversion_property.py", "test_conversion.py", "plt/test_linked_stubs.py"),
    ),
    "conversion.py": (
        *("golden", "sframe/test_levels_property.py", "test_conversion_property.py", "test_conversion.py"),
    ),
    "intern.py": ("test_intern.py", "golden", "test_edges.py"),
    "sframe/model.py": (
        *("golden", "test_overlaps.py", "test_edges.py", "sframe/test_sharing.py", "sframe/test_levels_property.py"),
        *("test_conversion.py", "plt/test_linked_stubs.py"),
    ),
    "sframe/rows.py": (*_ENCODING, "sframe/test_ranges.py", "sframe/test_round_trip_property.py"),
    "sframe/layout.py": (*_ENCODING, "test_conversion.py", "sframe/test_round_trip_property.py"),
    "sframe/ranges.py": _RANGES,
    "sframe/segments.py": _RANGES,
    "sframe/encode.py": (
        *("sframe/test_encode.py", "golden", "sframe/test_sharing.py", "sframe/test_round_trip_property.py"),
    ),
    "sframe/decode.py": (
        *("sframe/test_decode.py", "sframe/test_sharing.py", "golden", "sframe/test_big_endian.py"),
        "sframe/test_round_trip_property.py",
    ),
    "sframe/row_tails.py": (
        "sframe/test_decode.py",
        "sframe/test_sharing.py",
        "golden",
        "sframe/test_round_trip_property.py",
    ),
    "sframe/lookup_cost.py": ("sframe/test_lookup_cost.py", "report/test_measure.py"),
    "sframe/lookup.py": ("sframe/test_lookup.py", "sframe/test_decode.py", "verification/test_verify.py"),
    "code/amd64*.py": ("audit/test_registers.py", "audit/test_directives.py", "audit/test_compilers.py"),
    "audit/*.py": ("audit/test_directives.py", "cli/test_audit.py", "audit/test_compilers.py"),
    "verification/*.py": (
        *("verification/test_verify.py", "verification/test_address_set.py", "verification/test_agreement.py"),
        *("verification/test_cost.py", "cli/test_verbs.py"),
    ),
    "verification/readers/*.py": ("verification/test_readers.py", "cli/test_readers.py"),
    "rewrite/*.py": (
        *("rewrite/test_section_headers.py", "rewrite/test_refusals.py", "rewrite/test_removal_check.py"),
        *("rewrite/test_damage.py", "rewrite/test_objects.py", "rewrite/test_end_table.py"),
    ),
}
#: Modules whose tables are changed, too: entries are left out.
_TABLES: Final = "code/"
#: A mutant that loops, or that fills the memory, has been noticed.
CPU_SECONDS: Final = 60
MEMORY_SIZE: Final = 4 << 30

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}


class Mutant(NamedTuple):
    """A changed statement: `key` names the change by function and statement, and so outlives changes elsewhere."""

    module: str
    key: str
    original: ast.Module
    old: ast.stmt
    new: ast.stmt

    def tree(self) -> ast.Module:
        """Return the changed module."""
        return _replaced(self.original, self.old, self.new)


# Making mutants


def modules() -> dict[str, tuple[str, ...]]:
    """Return the tests of each module that is changed, by its path in the package: those that are there."""
    package = ROOT / PACKAGE
    return {
        path.relative_to(package).as_posix(): tuple(test for test in tests if (ROOT / "tests" / test).exists())
        for pattern, tests in TESTS.items()
        for path in sorted(package.glob(pattern))
        if path.name != "__init__.py"
    }


def mutants_of(module: str) -> Iterator[Mutant]:
    """Yield every mutant of a module, in the order of its lines."""
    tree = ast.parse((ROOT / PACKAGE / module).read_text(encoding="utf-8"))
    seen: dict[str, int] = {}
    for where, statement in _statements(tree, ()):
        if module.startswith(_TABLES) and isinstance(statement, ast.AnnAssign):
            for entry, changed in _without_entries(statement):
                key = f"{module} {where}: `{ast.unparse(statement.target)}` without `{entry}`"
                yield Mutant(module, key, tree, statement, changed)
        for changed in _changes(statement):
            before, after = _headline(statement), _headline(changed)
            key = f"{module} {where}: `{before}` -> `{after}`"
            seen[key] = seen.get(key, 0) + 1
            if seen[key] > 1:
                key += f" (no. {seen[key]})"
            yield Mutant(module, key, tree, statement, changed)


def _statements(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each statement that runs, with the function or class that contains it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield from _statements(child, (*names, child.name))
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        elif isinstance(child, ast.stmt):
            if not isinstance(child, ast.Import | ast.ImportFrom) and not _is_docstring(child):
                yield ".".join(names) or "(module)", child
            yield from _statements(child, names)
        elif isinstance(child, ast.match_case | ast.ExceptHandler):
            yield from _statements(child, names)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _changes(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statement with one change; statements inside it are not changed."""
    gone = _removed(statement)
    if gone is not None:
        yield gone
    if isinstance(statement, ast.Raise):
        return
    for field in _own_expressions(statement):
        original = getattr(statement, field)
        for changed in _changed_expressions(original):
            copied = copy.copy(statement)
            setattr(copied, field, changed)
            yield copied
    if isinstance(statement, ast.AugAssign):
        yield from _changed_operator(statement)
    if isinstance(statement, ast.If | ast.While):
        negated = copy.copy(statement)
        negated.test = ast.UnaryOp(ast.Not(), statement.test)
        yield negated


def _removed(statement: ast.stmt) -> ast.stmt | None:
    """Return what replaces a removed statement; None where removing it shows nothing."""
    if isinstance(statement, ast.Raise | ast.Continue | ast.Break | ast.Expr | ast.Assign | ast.AugAssign | ast.Delete):
        return ast.Pass()
    if isinstance(statement, ast.Return) and statement.value is not None:
        is_none = isinstance(statement.value, ast.Constant) and statement.value.value is None
        return ast.Pass() if is_none else ast.Return(ast.Constant(None))
    return ast.Pass() if isinstance(statement, ast.Return) else None


def _without_entries(statement: ast.AnnAssign) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each name that a table has, and the statement without it; nested tuples are tables, too."""
    if statement.value is None:
        return
    for index, node in enumerate(ast.walk(statement.value)):
        elements = (
            node.elts if isinstance(node, ast.Tuple | ast.Set) else node.keys if isinstance(node, ast.Dict) else []
        )
        for number, element in enumerate(elements):
            if isinstance(element, ast.Constant) and isinstance(element.value, str):
                copied = copy.deepcopy(statement)
                table = list(ast.walk(copied.value or copied))[index]
                if isinstance(table, ast.Tuple | ast.Set):
                    del table.elts[number]
                elif isinstance(table, ast.Dict):
                    del table.keys[number], table.values[number]
                yield element.value, copied


def _own_expressions(statement: ast.stmt) -> list[str]:
    """Return the fields that hold values: no annotations, targets or inner statements."""
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return []
    wanted = ("value", "test", "iter", "subject")
    return [name for name in wanted if isinstance(getattr(statement, name, None), ast.expr)]


def _changed_operator(statement: ast.AugAssign) -> Iterator[ast.stmt]:
    other = _ARITHMETIC.get(type(statement.op))
    if other is not None:
        changed = copy.copy(statement)
        changed.op = other()
        yield changed


def _changed_expressions(expression: ast.expr) -> Iterator[ast.expr]:
    """Yield the expression with one node in it changed."""
    for index, node in enumerate(ast.walk(expression)):
        for changed in _changed_node(node):
            copied = copy.deepcopy(expression)
            old = list(ast.walk(copied))[index]
            exchanged = _Exchange(old, changed).visit(copied)
            if isinstance(exchanged, ast.expr):
                yield exchanged


def _changed_node(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left, [operator, *rest], comparators):
            other = _COMPARISONS.get(type(operator))
            if other is not None:
                yield ast.Compare(left, [other(), *rest], comparators)
        case ast.BinOp(left, operator, right):
            exchanged = _ARITHMETIC.get(type(operator))
            if exchanged is not None:
                yield ast.BinOp(left, exchanged(), right)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(ast.And() if isinstance(operator, ast.Or) else ast.Or(), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
            if value > 0:
                yield ast.Constant(value - 1)


class _Exchange(ast.NodeTransformer):
    """Replaces one node by another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


def _replaced(tree: ast.Module, old: ast.stmt, new: ast.stmt) -> ast.Module:
    """Return the tree with one statement replaced; all others are shared."""

    def rebuilt(node: ast.AST) -> ast.AST:
        if node is old:
            return new
        copied = copy.copy(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(copied, name, [rebuilt(item) if isinstance(item, ast.AST) else item for item in value])
            elif isinstance(value, ast.stmt | ast.excepthandler | ast.match_case):
                setattr(copied, name, rebuilt(value))
        return copied

    result = rebuilt(tree)
    if not isinstance(result, ast.Module):
        raise TypeError("a tree stays a tree")
    return ast.fix_missing_locations(copy.deepcopy(result))


def _headline(statement: ast.stmt) -> str:
    """Return a statement without the ones inside it, on one line."""
    copied = copy.copy(statement)
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        if isinstance(getattr(copied, name, None), list):
            setattr(copied, name, [])
    text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(copied)))
    return " ".join(text.split()).replace("`", "'").replace("|", "\\|")


# Running them


class _Finder(importlib.abc.MetaPathFinder):
    """Loads one module from a given tree."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self._name, self._tree = name, tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._tree)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, _fullname: str) -> types.CodeType:
        return compile(self._tree, self.path, "exec", dont_inherit=True)


def run_tests(module: str, tree: ast.Module | None) -> str:
    """Run a module's tests in a process of its own; return `survived`, `killed` or `killed by a limit`."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            status = _run_here(module, tree)
        finally:
            os._exit(status)
    _, code = os.waitpid(process, 0)
    if os.WIFSIGNALED(code):
        return "killed by a limit"
    return "survived" if os.WEXITSTATUS(code) == 0 else "killed"


def _run_here(module: str, tree: ast.Module | None) -> int:
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_SIZE, MEMORY_SIZE))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    if tree is not None:
        name = f"{PACKAGE}.{module.removesuffix('.py').replace('/', '.')}"
        sys.meta_path.insert(0, _Finder(name, tree))
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=no", "-m", "not slow"]
    # hypothesis was loaded on purpose.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *(str(ROOT / "tests" / test) for test in modules()[module])]))


def _prepare() -> None:
    """Load once what every process needs, except the package; make random tests repeatable and short."""
    import hypothesis
    import pytest

    hypothesis.settings.register_profile(
        "mutants",
        deadline=None,
        max_examples=40,
        derandomize=True,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    if any(name == PACKAGE or name.startswith(f"{PACKAGE}.") for name in sys.modules) or not pytest.__version__:
        raise SystemExit("the package must not be loaded before it is changed")


# The command line


def _chosen(names: Sequence[str], share: str) -> list[Mutant]:
    """Return the mutants to run, spread evenly over each module: every Mth, from the Nth on, for a share of N/M."""
    first, every = (int(number) for number in share.split("/"))
    return [mutant for name in names for mutant in list(mutants_of(name))[first - 1 :: every]]


def _is_wanted(key: str, texts: Sequence[str] | None) -> bool:
    return not texts or any(text in key for text in texts)


def main() -> int:
    """Run the mutants; return 1 when one survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", choices=sorted(modules()), help="only this module")
    parser.add_argument("--share", default="1/1", metavar="N/M", help="every Mth mutant, from the Nth on")
    parser.add_argument("--grep", action="append", metavar="TEXT", help="only mutants whose key holds one of these")
    parser.add_argument("--report", metavar="FILE", help="append a line of JSON per mutant")
    parser.add_argument("--trust", action="store_true", help="do not first run the tests on the modules as they are")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    arguments = parser.parse_args()
    names = arguments.module or list(modules())
    chosen = [mutant for mutant in _chosen(names, arguments.share) if _is_wanted(mutant.key, arguments.grep)]
    if arguments.list:
        print(*(mutant.key for mutant in chosen), sep="\n")
        return 0
    _prepare()
    for module in () if arguments.trust else sorted({mutant.module for mutant in chosen}):
        if run_tests(module, None) != "survived":
            raise SystemExit(f"{module}: its tests fail without a change")
    counts: dict[str, int] = {}
    for number, mutant in enumerate(chosen, 1):
        verdict = run_tests(mutant.module, mutant.tree())
        counts[verdict] = counts.get(verdict, 0) + 1
        if verdict == "survived":
            print(f"survived ({number} of {len(chosen)}): {mutant.key}", flush=True)
        if arguments.report:
            with open(arguments.report, "a", encoding="utf-8") as report:
                report.write(json.dumps([mutant.module, mutant.key, verdict]) + "\n")
    print(f"{len(chosen)} mutants:", ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return 1 if counts.get("survived") else 0


if __name__ == "__main__":
    sys.exit(main())
