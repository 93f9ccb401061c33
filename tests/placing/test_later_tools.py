# SPDX-License-Identifier: Apache-2.0
"""What pipelines do to a file afterwards: it runs, and `.sframe` is mapped with the same bytes."""

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from tests.support.needs import attempt, need
from tests.support.oracle.tools import Binutils, BinutilsVersion
from tests.support.placing.embedded import (
    KINDS,
    LARGE,
    LINKERS,
    SMALL,
    checksum,
    embed,
    linked_program,
    mapped,
    sframe,
    take_out,
    write,
)

pytestmark = pytest.mark.oracle


class Command(NamedTuple):
    """A tool and its arguments; IN and OUT stand for the files. GNU tools come in several versions."""

    words: tuple[str, ...]
    version: BinutilsVersion | Literal["machine"] = "machine"

    @property
    def name(self) -> str:
        return "-".join([self.version, *self.words[:2]]).replace("/", "_")


_GNU = (
    ("strip", "-o", "OUT", "IN"),
    ("strip", "-g", "-o", "OUT", "IN"),
    ("objcopy", "IN", "OUT"),
)
COMMANDS = (
    *(Command(words, version) for version in ("2.40", "2.44", "newest") for words in _GNU),
    Command(("eu-strip", "-o", "OUT", "IN")),
    Command(("eu-strip", "-g", "-o", "OUT", "IN")),
    Command(("eu-strip", "-f", "OUT.debug", "-o", "OUT", "IN")),
    Command(("llvm-strip", "-o", "OUT", "IN")),
    Command(("llvm-objcopy", "IN", "OUT")),
    Command(("llvm-objcopy", "--strip-all", "IN", "OUT")),
    Command(("patchelf", "--set-rpath", "/opt/some/rather/long/directory/of/libraries", "--output", "OUT", "IN")),
    Command(("patchelf", "--set-interpreter", "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "--output", "OUT", "IN")),
)
#: patchelf puts a growing .dynamic of a program at fixed addresses into room after the program headers, and that is
#: read-only: the program crashes. Where .dynsym moved away there is such room.
PATCHELF_WRONG = "patchelf writes .dynamic into a read-only segment when there is room after the program headers"


@pytest.fixture
def change(binutils: Callable[[BinutilsVersion], Binutils], tmp_path: Path) -> Callable[[Command, Path], Path | None]:
    """`change(command, source)`: apply the tool; what it makes, None where it fails. Skips when it is not here."""

    def change(command: Command, source: Path) -> Path | None:
        tool, *words = command.words
        tool = need(tool) if command.version == "machine" else binutils(command.version).tool(tool)
        target = tmp_path / f"changed-{source.name}"
        places = {"IN": str(source), "OUT": str(target), "OUT.debug": f"{target}.debug"}
        return target if attempt(tool, *(places.get(word, word) for word in words)).status == 0 else None

    return change


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
@pytest.mark.parametrize("link", [*product(LINKERS, KINDS)])
@pytest.mark.parametrize("variant", ["plain", "noseparate"])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_survives(
    change: Callable[[Command, Path], Path | None],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    link: tuple[str, str],
    variant: str,
    size: int,
    command: Command,
) -> None:
    linker, kind = link
    original = linked_program(linker, kind, variant)
    plain = change(command, original)
    if not plain or attempt(plain) != attempt(original):
        pytest.skip("the unmodified file does not survive this either")
    plan = embed(original, tmp_path / "converted", size)
    dynsym_moved = ".dynsym" in plan.moved and linker != "mold"
    if command.words[:2] == ("patchelf", "--set-rpath") and kind == "nopie" and dynsym_moved:
        request.applymarker(pytest.mark.xfail(reason=PATCHELF_WRONG, strict=True))
    changed = change(command, tmp_path / "converted")
    assert changed
    assert attempt(changed) == attempt(original)
    assert mapped(changed) == [("main", size, checksum(sframe(size)))]
    # It works without its section, too.
    assert attempt(write(tmp_path / "removed", take_out(changed.read_bytes()))) == attempt(original)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pie", "nopie"])
def test_separate_debug_files(tmp_path: Path, kind: str) -> None:
    """With debug files from before and after the conversion, gdb works; eu-unstrip joins those from after it."""
    need("gdb", "eu-unstrip", "objcopy")
    original = linked_program("bfd", kind, "debug")
    converted, stripped, linked, debug = (tmp_path / n for n in ("converted", "stripped", "linked", "linked.debug"))
    embed(original, converted, LARGE)
    for source in (original, converted):
        debug.unlink(missing_ok=True)
        assert attempt("objcopy", "--only-keep-debug", source, debug).status == 0
        assert attempt("objcopy", "--strip-debug", f"--add-gnu-debuglink={debug}", converted, stripped).status == 0
        shutil.move(stripped, linked)
        assert attempt(linked) == attempt(original)
        commands = ["-ex", "break thrower", "-ex", "run", "-ex", "bt 3"]
        session = attempt("gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", *commands, linked)
        assert "#0  thrower (depth=" in session.out
        assert "program.cpp" in session.out
    joined = attempt("eu-unstrip", "-o", tmp_path / "joined", linked, debug)
    assert joined.status == 0, joined
    assert mapped(tmp_path / "joined") == [("main", LARGE, checksum(sframe(LARGE)))]
