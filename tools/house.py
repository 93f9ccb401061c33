#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print what a change of structure did: lines by room, and what converting a small object enters, before and after.

house.py --before COMMIT [--object FILE]

Rooms are the folders and modules of the package. A module or function is entered when Python code of it runs during
`convert` of a loaded object (comprehensions are functions of their own in Python 3.11).
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from commits import ROOT, check_out

PACKAGE: Final = "cfi2sframe"
SMALL_OBJECT: Final = ROOT / "testdata/golden/amd64-several-cies.o"

#: Run by an interpreter that sees one state's package only. The second conversion counts, when everything is imported.
ENTERED: Final = """
import json, sys
import cfi2sframe
image = cfi2sframe.load(sys.argv[1])
cfi2sframe.convert(image)
functions = set()
def note(frame, event, argument):
    if event == "call" and "/cfi2sframe/" in frame.f_code.co_filename:
        functions.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))
sys.setprofile(note)
cfi2sframe.convert(image)
sys.setprofile(None)
print(json.dumps([len({file for file, _ in functions}), len(functions)]))
"""


class State(NamedTuple):
    """One state of the package: lines by room, and the numbers of modules and functions that a conversion enters.

    `code_line_count` is without docstrings, comments, imports and empty lines.
    """

    lines: Counter[str]
    code_line_count: int
    module_count: int
    function_count: int


def main() -> int:
    """Run the program and return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", metavar="COMMIT", default="HEAD~1", help="the state to compare with")
    parser.add_argument("--object", metavar="FILE", default=str(SMALL_OBJECT), help="the object to convert")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        roots = (check_out(arguments.before, Path(folder)), ROOT)
        before, after = (state_of(root, arguments.object) for root in roots)
    rows = [(room, before.lines[room], after.lines[room]) for room in sorted(before.lines | after.lines)]
    rows += [
        ("all lines", before.lines.total(), after.lines.total()),
        ("lines of code", before.code_line_count, after.code_line_count),
        ("modules entered", before.module_count, after.module_count),
        ("functions entered", before.function_count, after.function_count),
    ]
    print(f"{'':<20}{'before':>8}{'after':>8}")
    for name, old, new in rows:
        print(f"{name:<20}{old or '-':>8}{new or '-':>8}")
    return 0


def state_of(root: Path, path: str) -> State:
    """Return what the package under a folder is."""
    lines: Counter[str] = Counter()
    code_line_count = 0
    for file in (root / PACKAGE).rglob("*.py"):
        inner, text = file.relative_to(root / PACKAGE), file.read_text()
        lines[f"{inner.parts[0]}/" if len(inner.parts) > 1 else inner.parts[0]] += len(text.splitlines())
        code_line_count += len(code_lines(text))
    command = [sys.executable, "-P", "-c", ENTERED, path]
    done = subprocess.run(command, capture_output=True, check=True, env={"PYTHONPATH": str(root)})
    module_count, function_count = json.loads(done.stdout)
    return State(lines, code_line_count, module_count, function_count)


def code_lines(text: str) -> set[int]:
    """Return the numbers of the lines of a module that hold code, other than imports."""
    other: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (is_text or isinstance(node, ast.Import | ast.ImportFrom)):
            other.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    return {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in layout
        for line in range(token.start[0], token.end[0] + 1)
    } - other


if __name__ == "__main__":
    sys.exit(main())
