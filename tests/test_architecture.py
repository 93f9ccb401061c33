# SPDX-License-Identifier: Apache-2.0
"""The layout of the house: who may import whom, and what each module owes its readers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "cfi2sframe"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: Layers from the bottom up: a module imports from its own layer and those below it. The longest prefix counts.
LAYERS = (
    (
        *(
            "errors",
            "budget",
            "intern",
            "interrupts",
            "lazy",
            "limits",
            "pool",
            "printable",
            "processes",
            "reasons",
            "arch",
        ),
        *("elf.constants", "sframe.constants", "dwarf.constants"),
    ),
    ("elf", "rewrite"),
    ("dwarf", "sframe.model"),
    ("describe",),
    ("lower", "overlaps", "sframe", "plt"),
    ("code_map",),
    ("assemble",),
    ("conversion", "verification"),
    ("api",),
    ("emit",),
    ("trace", "files", "jobs", "report", "gnu", "render"),
    ("cli",),
    ("__main__",),
)
#: The package's face knows the names of everything and imports them when asked.
FACE = "cfi2sframe"
HEAVY = ("capstone", "elftools", "zstandard")
MAX_LINES = 400


class Import(NamedTuple):
    """An import statement: the full name of what is imported, and whether it runs when the module is loaded."""

    line: int
    target: str
    is_at_load: bool
    is_for_types: bool


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> list[Import]:
    found: list[Import] = []

    def visit(node: ast.AST, *, is_at_load: bool, is_for_types: bool) -> None:
        for child in ast.iter_child_nodes(node):
            in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            types = is_for_types or (
                isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"
            )
            if isinstance(child, ast.Import):
                found.extend(Import(child.lineno, a.name, is_at_load, is_for_types) for a in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: relative import"
                base = child.module or ""
                found.extend(
                    Import(
                        child.lineno,
                        f"{base}.{a.name}" if is_module(f"{base}.{a.name}") else base,
                        is_at_load,
                        is_for_types,
                    )
                    for a in child.names
                )
            visit(child, is_at_load=is_at_load and not in_function, is_for_types=types)

    visit(ast.parse(path.read_text()), is_at_load=True, is_for_types=False)
    return found


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def layer_of(module: str) -> int:
    """Return the number of a module's layer; the package's own name is on top of all."""
    inner = module.removeprefix(f"{FACE}.")
    best = ("", len(LAYERS))
    for number, names in enumerate(LAYERS):
        for name in names:
            if (inner == name or inner.startswith(f"{name}.")) and len(name) > len(best[0]):
                best = (name, number)
    return best[1]


def ids(path: Path) -> str:
    return name_of(path)


def test_every_module_has_a_layer() -> None:
    assert len(MODULES) > 40
    assert [name_of(path) for path in MODULES if layer_of(name_of(path)) == len(LAYERS)] == [FACE]


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_imports_point_downwards(path: Path) -> None:
    own = layer_of(name_of(path))
    upwards = [
        f"{path.name}:{found.line} imports {found.target}"
        for found in imports_of(path)
        if found.target.startswith(f"{FACE}.") and not found.is_for_types and layer_of(found.target) > own
    ]
    assert upwards == []


def test_the_layers_are_told_apart() -> None:
    """What the test above would say of an import that points upwards."""
    assert layer_of("cfi2sframe.elf.image") < layer_of("cfi2sframe.dwarf.row_machine") < layer_of("cfi2sframe.lower")
    assert layer_of("cfi2sframe.sframe.encode") < layer_of("cfi2sframe.conversion") < layer_of("cfi2sframe.render.text")
    assert layer_of("cfi2sframe.elf.constants") < layer_of("cfi2sframe.elf.image")
    assert layer_of("cfi2sframe.api") < layer_of("cfi2sframe.report.coverage") < layer_of("cfi2sframe.cli.convert")


def closure(module: str) -> set[str]:
    """Return the package's modules that a module needs, directly or not, but for types."""
    found, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        base = ROOT.joinpath(*name.split("."))
        path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        waiting += [i.target for i in imports_of(path) if i.target.startswith(f"{FACE}.") and not i.is_for_types]
    return found


def test_writer_and_reader_share_constants_and_the_model_only() -> None:
    """The decoder checks the encoder; what both rest on checks nothing."""
    shared = closure("cfi2sframe.sframe.decode") & (
        closure("cfi2sframe.sframe.encode") | closure("cfi2sframe.sframe.layout")
    )
    assert shared <= {
        "cfi2sframe.errors",
        "cfi2sframe.sframe.constants",
        "cfi2sframe.sframe.model",
        "cfi2sframe.arch",
        "cfi2sframe.elf.constants",
    }
    assert "cfi2sframe.sframe.constants" in shared


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_heavy_packages_are_imported_where_they_are_used(path: Path) -> None:
    """A small object must not pay for what it does not need."""
    eager = [i for i in imports_of(path) if i.is_at_load and not i.is_for_types and i.target.split(".")[0] in HEAVY]
    assert eager == []


def test_a_conversion_loads_no_heavy_package() -> None:
    script = (
        # From Python 3.14 on, argparse alone loads some of them, for its colours.
        "import argparse, sys\nargparse.ArgumentParser().add_argument('x')\nbefore = set(sys.modules)\n"
        "from cfi2sframe.cli import main\n"
        f"status = main([{str(ROOT / 'testdata/golden/amd64-push-rbp.o')!r}, '-o', '/dev/null', '--emit', 'raw'])\n"
        f"names = {HEAVY!r} + ('dataclasses', 'json', 'inspect')\n"
        "print(status, [name for name in names if name in sys.modules.keys() - before])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "0 []\n"


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_modules_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def undocumented(path: Path) -> list[str]:
    """Return the public functions, methods and classes of a module that have no docstring."""
    missing: list[str] = []

    def visit(node: ast.Module | ast.ClassDef, prefix: str) -> None:
        for child in node.body:
            if not isinstance(child, ast.FunctionDef | ast.ClassDef) or child.name.startswith("_"):
                continue
            if ast.get_docstring(child) is None:
                missing.append(prefix + child.name)
            if isinstance(child, ast.ClassDef):
                visit(child, f"{child.name}.")

    visit(ast.parse(path.read_text()), "")
    return missing


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_public_things_have_docstrings(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "the module itself"
    assert undocumented(path) == []


def sources() -> list[Path]:
    folders = (PACKAGE, ROOT / "tests", ROOT / "tools", ROOT / "bench", ROOT / "testdata" / "src")
    suffixes = {".py", ".s", ".S", ".c", ".cc", ".cpp", ".h"}
    return sorted(p for folder in folders if folder.is_dir() for p in folder.rglob("*") if p.suffix in suffixes)


def test_every_source_names_its_licence() -> None:
    assert len(sources()) > 100
    without = [
        str(path.relative_to(ROOT))
        for path in sources()
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in path.read_text().splitlines()[:3])
    ]
    assert without == []


def asserts_and_broad_handlers(path: Path) -> list[str]:
    """Return where a module asserts, or catches everything without raising it again."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assert):
            found.append(f"{path.name}:{node.lineno} assert")
        if isinstance(node, ast.ExceptHandler):
            kind = "BaseException" if node.type is None else ast.unparse(node.type)
            raises = any(isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(node))
            if kind in {"BaseException", "Exception"} and not raises:
                found.append(f"{path.name}:{node.lineno} except {kind}")
    return found


#: Where whatever was raised becomes the failure of one file or thread, or the last line of a process.
LAST_LINES = ("jobs.job", "cli", "cli.coverage", "report.size.sources", "trace.failures")


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_input_is_not_asserted_and_errors_are_not_swallowed(path: Path) -> None:
    """Only where the work of a file, a thread or the process ends, what nobody foresaw becomes a line."""
    found = {re.sub(r".*:\d+ ", "", each) for each in asserts_and_broad_handlers(path)}
    is_last = name_of(path).removeprefix(f"{FACE}.") in LAST_LINES
    assert found == ({"except Exception"} if is_last else set())
