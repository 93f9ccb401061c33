# SPDX-License-Identifier: Apache-2.0
"""The layout of the package: who may import whom, and what each module owes its readers."""

import ast
import graphlib
import itertools
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "cfi2sframe"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: The table: "| `package/`, `file.py` | its job | in | out | what it must not depend on | `what`, `it`, `imports` |".
TABLE = ROOT / "CONTRIBUTING.md"
TABLE_HEAD = "| package in `cfi2sframe/` |"
#: The last rows of the table, which every room may import.
FREE_ROWS = 3
#: The library's face, which imports what it hands on when it is asked for that.
FACE = "cfi2sframe"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
HEAVY = ("capstone", "elftools", "zstandard")
#: What takes 0.5 ms or more to import, and no small object needs.
NOT_FOR_OBJECTS = (
    *("dataclasses", "inspect", "json", "pathlib", "shutil", "subprocess", "cfi2sframe.files.find"),
    *("cfi2sframe.elf.debug_file", "cfi2sframe.gotable.header"),
    *("cfi2sframe.instructions.derive", "cfi2sframe.report.coverage", "cfi2sframe.report.tables"),
)
MAX_LINES = 400
#: One job behind several doors: verbs, programs, ABIs, kinds of files.
DOORS = {"configure", "run", "main", "effect_of", "insert", "remove", "check_insertion", "check_removal"}


class Import(NamedTuple):
    """An import statement: the full name of the module that is imported, also by way of the face."""

    line: int
    target: str
    is_for_types: bool


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of(path: Path) -> list[Import]:
    tree = ast.parse(path.read_text())
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = {node for block in blocks for node in ast.walk(block)}
    found: list[Import] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [module_of(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        found.extend(Import(node.lineno, name, node in for_types) for name in names)
    return found


def module_of(base: str, name: str) -> str:
    """Return the module that `from BASE import NAME` loads: of the face, that is the home of the name."""
    if base == FACE and name in FACE_HOMES:
        return f"{FACE}.{FACE_HOMES[name]}"
    full = f"{base}.{name}"
    return full if is_module(full) else base


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def homes_of_the_face() -> dict[str, str]:
    """Return the module of each name that the face hands on, from its source."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    tables = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    return {name: home for table in tables for name, home in ast.literal_eval(table).items()}


FACE_HOMES = homes_of_the_face()


class Row(NamedTuple):
    """A row of the table: the rooms, as files or folders of the package, what goes in and out, and what they import.

    Imports are numbers of rows; what goes in and out are the names in these cells.
    """

    rooms: tuple[str, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    imports: frozenset[int]


def read_table() -> tuple[Row, ...]:
    lines = TABLE.read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(TABLE_HEAD)) + 2
    cells = [
        line.strip("|").split("|") for line in itertools.takewhile(lambda line: line.startswith("|"), lines[begin:])
    ]
    names = [[tuple(re.findall(r"`([^`]+)`", cell)) for cell in row] for row in cells]
    numbers = {row[0][0].rstrip("/").removesuffix(".py"): number for number, row in enumerate(names)}
    return tuple(
        Row(rooms, takes, gives, frozenset(map(numbers.__getitem__, imports)))
        for rooms, _job, takes, gives, imports in names
    )


ROWS = read_table()


def row_of(module: str) -> int:
    """Return the number of a module's row: the one that names its file, or else its folder."""
    path = ROOT.joinpath(*module.split("."))
    file = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).relative_to(PACKAGE).as_posix()
    found = [
        (len(room), number)
        for number, row in enumerate(ROWS)
        for room in row.rooms
        if file == room or (room.endswith("/") and file.startswith(room))
    ]
    assert found, f"{module} has no room in {TABLE.name}"
    return max(found)[1]


def imported_modules(path: Path) -> dict[str, int]:
    """Return the package's modules that a module imports, also for types only, and the lines where it does."""
    found = {found.target: found.line for found in imports_of(path) if found.target.startswith(f"{FACE}.")}
    if name_of(path) == FACE:
        found |= {f"{FACE}.{home}": 0 for home in FACE_HOMES.values()}
    return found


@cache
def defined_in(row: int) -> frozenset[str]:
    """Return the names of the classes and functions that the rooms of a row define."""
    return frozenset(
        node.name
        for path in MODULES
        if row_of(name_of(path)) == row
        for node in ast.parse(path.read_text()).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    )


def test_every_room_of_the_table_is_there() -> None:
    assert len(ROWS) > 20
    assert [room for row in ROWS for room in row.rooms if not (PACKAGE / room).exists()] == []


def test_files_that_the_map_names_are_there() -> None:
    _, _, text = TABLE.read_text().partition("## Where does my change go?\n")
    text = text.partition("\n## ")[0]
    named = set(re.findall(r"`([\w/]+\.py)`", text)) - {"cli/VERB.py"}
    files = {name: base / name for name in named for base in (ROOT, PACKAGE) if (base / name).exists()}
    assert len(named) > 25
    assert sorted(named - files.keys()) == []
    functions = re.findall(r"`(\w+)`\s+in\s+`([\w/]+\.py)`", text)
    assert len(functions) > 2
    assert [name for name, file in functions if name not in files[file].read_text()] == []


def test_every_room_has_its_tests_and_helpers() -> None:
    rooms, tests = ({path.name for path in folder.iterdir() if path.is_dir()} for folder in (PACKAGE, ROOT / "tests"))
    helpers = {path.stem for path in (ROOT / "tests/support").iterdir()}
    assert rooms - tests - {"__pycache__"} == {"constants"}
    assert helpers - tests - {"__pycache__"} == {"consumer", "needs", "oracle", "skips"}


def test_the_table_points_downwards() -> None:
    assert [(row.rooms, below) for number, row in enumerate(ROWS) for below in row.imports if below <= number] == []


def test_modules_import_what_their_rooms_may() -> None:
    forbidden = []
    for path in MODULES:
        own = row_of(name_of(path))
        allowed = {own, *ROWS[own].imports, *range(len(ROWS) - FREE_ROWS, len(ROWS))}
        forbidden += [
            f"{path.name}:{line} imports {target}"
            for target, line in imported_modules(path).items()
            if row_of(target) not in allowed or row_of(target) < own
        ]
    assert forbidden == []


def test_only_the_version_comes_from_the_face_itself() -> None:
    """Everything else that the face hands on is imported from its home, where this test sees it."""
    taken = [
        (name_of(path), alias.name)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        for alias in getattr(node, "names", ())
        if (isinstance(node, ast.ImportFrom) and node.module == FACE and module_of(FACE, alias.name) == FACE)
        or (isinstance(node, ast.Import) and alias.name == FACE)
    ]
    assert taken == [(f"{FACE}.cli", "__version__"), (f"{FACE}.cli.results", "__version__")]


def test_rooms_give_what_is_their_own_and_take_what_they_know() -> None:
    for number, row in enumerate(ROWS):
        known = {number, *row.imports, *range(len(ROWS) - FREE_ROWS, len(ROWS))}
        assert set(row.gives) <= defined_in(number), row.rooms
        assert set(row.takes) <= frozenset().union(*map(defined_in, known)), row.rooms
    assert sum(len(row.takes + row.gives) for row in ROWS) > 30


def test_no_stage_of_a_conversion_knows_the_next() -> None:
    """The room's docstring has the stages in their order."""
    room = PACKAGE / "conversion"
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text()))
    stages = [name for line in re.findall(r"^    (\S.*?)  ", text or "", re.MULTILINE) for name in line.split(", ")]
    assert sorted(stages) == sorted({path.stem for path in room.glob("*.py")} - {"__init__"})
    for number, stage in enumerate(stages):
        modules = imported_modules(room / f"{stage}.py")
        assert {name.rpartition(".")[2] for name in modules if name.startswith(f"{FACE}.conversion.")} <= set(
            stages[:number]
        )


def test_the_table_allows_no_unused_import() -> None:
    used: dict[int, set[int]] = {number: set() for number in range(len(ROWS))}
    for path in MODULES:
        used[row_of(name_of(path))] |= {row_of(target) for target in imported_modules(path)}
    assert [
        (row.rooms[0], ROWS[n].rooms[0]) for number, row in enumerate(ROWS) for n in row.imports - used[number]
    ] == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name_of(path): set(imported_modules(path)) for path in MODULES}
    graphlib.TopologicalSorter(graph).prepare()


def test_no_two_classes_have_one_name() -> None:
    names = [
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_functions_of_one_name_have_one_job() -> None:
    names = [
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    assert {name for name in names if names.count(name) > 1} == DOORS


def test_nothing_is_looked_up_by_identity() -> None:
    """A later object may have the identity of one that is gone."""
    users = [
        name_of(path)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id == "id" and isinstance(node.ctx, ast.Load)
    ]
    assert users == []


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
    """The reader checks the writer; what both rest on checks nothing."""
    shared = closure("cfi2sframe.sframe.read") & closure("cfi2sframe.sframe.write")
    assert {name for name in shared if not name.startswith("cfi2sframe.abi")} <= {
        "cfi2sframe.errors",
        "cfi2sframe.constants.sframe",
        "cfi2sframe.sframe.model",
        "cfi2sframe.abi.rule",
        "cfi2sframe.constants.elf",
        "cfi2sframe.text",
    }
    assert "cfi2sframe.constants.sframe" in shared


def test_the_judge_of_rows_asks_nothing_that_writes_them() -> None:
    """Whatever both rested on, a fault there would be right for both."""
    needed = closure("cfi2sframe.verification.verify")
    rooms = {name.split(".")[1] for name in needed if "." in name}
    assert rooms.isdisjoint({"conversion", "stubs", "instructions", "gotable", "placing", "api", "emit"})
    assert "cfi2sframe.sframe.write" not in needed
    assert "cfi2sframe.elf.padding" not in needed
    assert {"dwarf", "sframe", "elf"} <= rooms


def test_removal_knows_nothing_of_insertion() -> None:
    """A later release, which places sections elsewhere, has to restore what an earlier one has written."""
    needed = closure("cfi2sframe.placing.removal")
    insertion = {f"cfi2sframe.placing.{name}" for name in ("linked", "place", "header_room", "moving")}
    assert all(map(is_module, insertion))
    assert needed.isdisjoint(insertion)
    assert {"cfi2sframe.placing.undo", "cfi2sframe.placing.checks"} <= needed


@pytest.mark.parametrize("words", [(), ("--from", "code")])
def test_a_conversion_loads_nothing_that_it_does_not_need(words: tuple[str, ...]) -> None:
    """Such as the analysis of code, where all code has CFI."""
    assert all(is_module(name) for name in NOT_FOR_OBJECTS if name.startswith(FACE))
    script = (
        # From Python 3.14 on, argparse alone loads some of them, for its colours.
        "import argparse, sys\nargparse.ArgumentParser().add_argument('x')\nbefore = set(sys.modules)\n"
        "from cfi2sframe.cli import main\n"
        f"status = main([{str(ROOT / 'testdata/golden/amd64-push-rbp.o')!r}, '-o', '/dev/null', *{words!r}])\n"
        f"names = {(*HEAVY, *NOT_FOR_OBJECTS)!r}\n"
        "print(status, [name for name in names if name in sys.modules.keys() - before])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "0 []\n"


def test_annotations_are_no_strings() -> None:
    """`NamedTuple` would compile each of them: 3 ms of the 60 that a small object takes."""
    assert [name_of(path) for path in MODULES if "__future__" in {found.target for found in imports_of(path)}] == []


def test_modules_are_short() -> None:
    assert [name_of(path) for path in MODULES if len(path.read_text().splitlines()) > MAX_LINES] == []


def sources() -> list[Path]:
    folders = (PACKAGE, ROOT / "tests", ROOT / "tools", ROOT / "bench", ROOT / "testdata" / "src")
    suffixes = {".py", ".s", ".S", ".c", ".cc", ".cpp", ".h"}
    return sorted(p for folder in folders if folder.is_dir() for p in folder.rglob("*") if p.suffix in suffixes)


def docstrings_of(path: Path) -> list[tuple[int, str]]:
    """Return the docstrings of modules, classes and functions, and the strings after fields, by line."""
    bodies = [node.body for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, DOCUMENTED)]
    values = [node.value for body in bodies for node in body if isinstance(node, ast.Expr)]
    texts = [(value.lineno, value.value) for value in values if isinstance(value, ast.Constant)]
    return [(line, text) for line, text in texts if isinstance(text, str)]


def test_docstrings_begin_with_a_verb_or_the_noun_that_it_is() -> None:
    wrong = re.compile("(What|Where|Whether|How|Of|Which|Why|Who)\\b")
    assert not [(path.name, line, text) for path in MODULES for line, text in docstrings_of(path) if wrong.match(text)]


def test_every_source_names_its_licence() -> None:
    assert len(sources()) > 100
    without = [
        str(path.relative_to(ROOT))
        for path in sources()
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in path.read_text().splitlines()[:3])
    ]
    assert without == []
