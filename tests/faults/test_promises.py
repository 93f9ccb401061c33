# SPDX-License-Identifier: Apache-2.0
"""SECURITY.md names all tests of faults, and the package imports nothing that could break its word."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.cli import ROOT

MODULES = sorted((ROOT / "cfi2sframe").rglob("*.py"))
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
#: What starts programs or talks to other machines.
FORBIDDEN = {
    *("subprocess", "socket", "ssl", "http", "urllib", "ftplib", "smtplib", "xmlrpc", "asyncio", "pty", "ctypes"),
    *("pickle", "marshal", "shelve", "webbrowser", "multiprocessing"),
}
#: `ctypes` is how a live process is held still, how a copy of this process asks not to survive it, and how capstone is
#: called; `subprocess` starts c++filt and asks a driver what it would run; `multiprocessing` makes the copies.
ALLOWED = {
    ("trace/live.py", "ctypes"),
    ("elf/capstone5.py", "ctypes"),
    ("process/demangle.py", "subprocess"),
    ("cli/wrapper/programs.py", "subprocess"),
    ("process/batch.py", "ctypes"),
    ("process/batch.py", "multiprocessing"),
}
STARTERS = re.compile(r"^(system|popen|fork|forkpty|exec[lv].*|spawn.*|posix_spawn.*|startfile)$")
#: Copies of this process start no program.
MAY_START = {"cli/wrapper/programs.py": {"posix_spawn"}, "cli/wrapper/insertion.py": {"fork"}}


def test_each_test_of_faults_is_named() -> None:
    named = set(re.findall(r"`(tests/faults/test_\w+\.py)`", TEXT))
    assert named == {f"tests/faults/{path.name}" for path in (ROOT / "tests/faults").glob("test_*.py")}


def promises_broken_by(path: Path) -> Iterator[str]:
    """Yield what a module must not import, start or evaluate."""
    name = str(path.relative_to(ROOT / "cfi2sframe"))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        used, allowed = set[str](), set[str]()
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            used = FORBIDDEN.intersection(module.partition(".")[0] for module in modules)
            allowed = {module for file, module in ALLOWED if file == name}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            used, allowed = set(STARTERS.findall(node.attr)), MAY_START.get(name, set())
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            used = {node.func.id} & {"eval", "exec", "compile"}
        yield from (f"{name}: {word}" for word in used - allowed)


def test_no_shell_no_network_no_other_program() -> None:
    assert len(MODULES) > 50
    assert [found for path in MODULES for found in promises_broken_by(path)] == []
